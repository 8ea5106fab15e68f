"""What the partitioner is asked for a traced program and its configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from mpmd_trace.api import meshes
from mpmd_trace.backend.placement import device_owners
from mpmd_trace.backend.replacements import alike, replacements
from mpmd_trace.frontend.arg_shardings import Spec
from mpmd_trace.frontend.config import Config
from mpmd_trace.frontend.errors import raise_problems
from mpmd_trace.frontend.memory_kinds import HOST
from mpmd_trace.frontend.trace import Traced
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import MeshAttr, TopologyAttr
from mpmd_trace.passes.hoisting.hoist_invariants import HoistInvariants
from mpmd_trace.passes.hoisting.reduce_once import ReduceOnce
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.find_stages import FindStages
from mpmd_trace.passes.memory.fit_memory import FitMemory
from mpmd_trace.passes.memory.reserved import Reserved
from mpmd_trace.passes.memory.shard_optimizer_state import Replaced, ShardOptimizerState
from mpmd_trace.passes.request import PartitioningOptions, PartitionRequest
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

    def request(self, placement: str) -> PartitionRequest:
        """Return the request, but for rules; `placement` is "cut" or "reference"."""
        config, traced = self.config, self.traced
        constants = len(traced.constants)
        cut = placement == "cut"
        # Programs equal for all microbatches are what differs most from the reference's: not where it partitions.
        equal = {"mpmd_equal_microbatches": self.engine != "cpp"}
        options = {**equal, **config.partitioning_options, **self.schedule.options}
        if config.placement == "cut":  # which infers transfers, and so does what stands in for it
            options.setdefault("mpmd_infer_transfers", True)
        options.pop("enable_heterogeneous_meshes", None)  # for the frontend
        parsed = PartitioningOptions.of(options)
        shapes = {n: MeshAttr.get((str(a), size) for a, size in m.shape.items()) for n, m in config.topology.items()}
        limit = self.limit
        besides = tuple(Reserved(mesh, size) for mesh, size in self.reserved.items())
        return PartitionRequest(
            traced.name,
            TopologyAttr.get(shapes),
            config.assignments,
            (*(None,) * constants, *self.assignments[0]),
            tuple(self.assignments[1]) if self.engine == "cpp" else tuple(map(_on_device, self.assignments[1])),
            tuple(constants + i for i in traced.donated),
            parsed,
            together=self.together if cut else (),
            same_mesh=tuple(SameMesh(constants + i, o) for i, o in config.same_mesh(traced)),
            own_meshes=config.is_heterogeneous,
            placement=placement,
            copies_between_hosts=True,
            fuse_fwd_bwd=parsed.mpmd_equal_microbatches and "mpmd_merge_forward_with_backward" not in options,
            allow_reshard_fragments=True,
            merge_parts=True,
            stages=FindStages(number=self.schedule.stages),
            warns_of_schedules=config.pipeline_schedule is not None,
            cut_in_calls=cut,
            keep_sends_separate=cut,
            reverse_backward=self.schedule.reverse_backward,
            keeps_chlo=self.engine != "cpp",
            outlines=self.engine != "cpp",
            hoist=self._hoist(besides),
            reduce=ReduceOnce(limit, besides) if config.gradient_reduction == "step" else None,
            state=ShardOptimizerState(config.optimizer_sharding, self._replaced) if config.optimizer_sharding else None,
            fit=self._fit(besides),
            device_owners=device_owners(config.topology),
        )

    @functools.cached_property
    def limit(self) -> int:
        """The bytes of a device that a step may take; 0 where nobody knows."""
        return meshes.device_memory(self.config) or 0

    def _hoist(self, besides: tuple[Reserved, ...]) -> HoistInvariants | None:
        """Return how what is the same for all microbatches is computed once, unless that is not wanted."""
        if not self.config.hoist_invariants:
            return None
        return HoistInvariants(limit=self.limit, reserved=besides, gather=self.config.gather)

    def _fit(self, besides: tuple[Reserved, ...]) -> FitMemory | None:
        """Return how activations are made to fit, if that is asked for."""
        remat, offload = self.config.remat is not None, self.config.offload is not None
        if not remat and not offload:
            return None
        return FitMemory(self.limit, remat, offload, besides)

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
