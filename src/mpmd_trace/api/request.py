"""What the partitioner is asked for a traced program and its configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

from mpmd_trace.api import meshes
from mpmd_trace.backend.placement import device_owners
from mpmd_trace.backend.replacements import alike, replacements
from mpmd_trace.config import Config
from mpmd_trace.frontend.arg_shardings import Spec
from mpmd_trace.frontend.errors import raise_problems
from mpmd_trace.frontend.memory_kinds import HOST
from mpmd_trace.frontend.trace import Traced
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import MeshAttr, TopologyAttr
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.memory.reserved import Reserved
from mpmd_trace.passes.memory.shard_optimizer_state import Replaced
from mpmd_trace.passes.request import PartitionRequest, StepFacts
from mpmd_trace.scheduling.bridge import ScheduleChoice

__all__ = ["Asked"]


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """Where arguments and results are wanted, and the requests made of that.  Raises `MpmdError` when read."""

    traced: Traced
    config: Config
    schedule: ScheduleChoice
    engine: str
    #: Groups of results that are better on one mesh each.
    together: tuple[tuple[int, ...], ...] = ()
    #: Bytes of a device of each mesh that programs take besides values, as far as they are known.
    reserved: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def on_host(self) -> frozenset[int]:
        """The arguments that are assigned to host memory, from which programs get them by a transfer."""
        assigned, specs = self._assigned, self.traced.in_shardings
        return frozenset(
            i for i, a in assigned.items() if a.memory_kind == HOST and (specs[i] or Spec()).memory != HOST
        )

    @functools.cached_property
    def _assigned(self) -> dict[int, Assignment]:
        assigned = meshes.of_named_inputs(self.traced, self.config)
        specs = self.traced.in_shardings
        inferred = {i: a for i, a in assigned.items() if (spec := specs[i]) is None or spec.mesh is None}
        return {**inferred, **self.config.input_meshes(self.traced.in_tree)}

    @functools.cached_property
    def assignments(self) -> tuple[list[Assignment | None], list[Assignment | None]]:
        """The mesh of each argument and result that is assigned to one, or has a sharding over one."""
        config, traced = self.config, self.traced
        inputs, bad = meshes.assigned(config, self._assigned, traced.in_shardings, traced.inputs, "input")
        outputs, worse = meshes.assigned(
            config, config.output_meshes(traced.out_tree), traced.out_shardings, traced.outputs, "output"
        )
        raise_problems([*bad, *worse], config.where)
        return inputs, outputs

    def request(self, placement: Literal["cut", "reference"]) -> PartitionRequest:
        """Return the request, but for rules."""
        config, traced, options = self.config, self.traced, self.config.options
        constants = len(traced.constants)
        infers, equal = options.mpmd_infer_transfers, options.mpmd_equal_microbatches
        shapes = {n: MeshAttr.get((str(a), size) for a, size in m.shape.items()) for n, m in config.topology.items()}
        return PartitionRequest(
            traced.name,
            TopologyAttr.get(shapes),
            config.assignments,
            (*(None,) * constants, *self.assignments[0]),
            tuple(self.assignments[1]) if self.engine == "cpp" else tuple(map(_on_device, self.assignments[1])),
            tuple(constants + i for i in traced.donated),
            dataclasses.replace(
                options,
                placement=placement,
                # The cut infers transfers, and so does what stands in for it.
                mpmd_infer_transfers=options.placement == "cut" if infers is None else infers,
                # Programs equal for all microbatches are what differs most from the reference's: not where it
                # partitions.
                mpmd_equal_microbatches=self.engine != "cpp" if equal is None else equal,
                mpmd_split_bwd_fragments=self.schedule.splits_backward or options.mpmd_split_bwd_fragments,
            ),
            self.schedule.order,
            same_mesh=tuple(SameMesh(constants + i, o) for i, o in config.same_mesh(traced)),
            together=self.together if placement == "cut" else (),
            device_owners=device_owners(config.topology),
            step=StepFacts(
                stages=self.schedule.stages,
                reverse_backward=self.schedule.reverse_backward,
                schedule_is_chosen=config.pipeline_schedule is not None,
                own_meshes=config.is_heterogeneous,
                keeps_chlo=self.engine != "cpp",
                device_memory=self.limit,
                reserved=tuple(Reserved(mesh, size) for mesh, size in self.reserved.items()),
                replaced=self._replaced if options.optimizer_sharding else (),
            ),
        )

    @functools.cached_property
    def limit(self) -> int:
        """The bytes of a device that a step may take; 0 where nobody knows."""
        return meshes.device_memory(self.config) or 0

    @property
    def _replaced(self) -> tuple[Replaced, ...]:
        """The arguments that results replace, as a step that is called with them would."""
        traced, first = self.traced, len(self.traced.constants)
        given = {i: (leaf.name, leaf.physical) for i, leaf in enumerate(traced.inputs)}
        made = [(leaf.name, leaf.physical) for leaf in traced.outputs]
        like = alike(given)
        replaced = replacements(given, made, traced.donated, trains=True)
        return tuple(Replaced(first + i, o, first + like[i]) for i, o in sorted(replaced.items()))


def _on_device(assignment: Assignment | None) -> Assignment | None:
    """The mesh alone: results go to the memory of the host in the end, since those of calls cannot be made there."""
    return None if assignment is None else dataclasses.replace(assignment, memory_kind=None)
