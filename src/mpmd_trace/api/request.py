"""The request to the partitioner for a traced program and its configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import jax
from jax.sharding import Mesh

from mpmd_trace.api.options import Settings
from mpmd_trace.api.stage_info import StageInfo
from mpmd_trace.backend.placement import device_owners
from mpmd_trace.backend.replacements import alike, replacements
from mpmd_trace.config import Config
from mpmd_trace.frontend.arg_shardings import Spec, same_devices
from mpmd_trace.frontend.errors import raise_problems
from mpmd_trace.frontend.flatten_arguments import Leaf
from mpmd_trace.frontend.memory_kinds import HOST
from mpmd_trace.frontend.traced import Traced
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import MeshAttr, TopologyAttr
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.jax_compat.lowering import named_tensor_p
from mpmd_trace.jax_compat.targets import is_described, link_speed_of, memory_of
from mpmd_trace.jax_compat.tracing import is_literal, opened
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.memory.reserved import Reserved
from mpmd_trace.passes.memory.shard_optimizer_state import Replaced
from mpmd_trace.passes.programs.blocks import Work
from mpmd_trace.passes.request import PartitionRequest, StepFacts
from mpmd_trace.scheduling.costs import hiding_of, work_by_counts
from mpmd_trace.scheduling.resolve_schedule import ScheduleChoice
from mpmd_trace.scheduling.utilization import peak_flops


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ConfiguredProgram(StageInfo):
    """A traced program with its configuration: where arguments and results are wanted, and the requests made of that.

    Properties raise `MpmdError` when they are read.
    """

    traced: Traced
    config: Config
    schedule: ScheduleChoice
    settings: Settings
    #: Groups of results that are better on one mesh each, by number.
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
        assigned = of_named_inputs(self.traced, self.config)
        specs = self.traced.in_shardings
        inferred = {i: a for i, a in assigned.items() if (spec := specs[i]) is None or spec.mesh is None}
        return {**inferred, **self.config.input_meshes(self.traced.in_tree)}

    @functools.cached_property
    def assignments(self) -> tuple[list[Assignment | None], list[Assignment | None]]:
        """The mesh of each argument and result that is assigned to one, or has a sharding over one."""
        config, traced = self.config, self.traced
        inputs, bad = assigned(config, self._assigned, traced.in_shardings, traced.inputs, "input")
        outputs, worse = assigned(
            config, config.output_meshes(traced.out_tree), traced.out_shardings, traced.outputs, "output"
        )
        raise_problems([*bad, *worse], config.where)
        return inputs, outputs

    def request_for(self, placement: Literal["cut", "reference"]) -> PartitionRequest:
        """Return the request, but for rules."""
        config, traced, options = self.config, self.traced, self.config.options
        constants, is_cpp = len(traced.constants), self.settings.engine == "cpp"
        infers, equal = options.mpmd_infer_transfers, options.mpmd_equal_microbatches
        shapes = {n: MeshAttr.get((str(a), size) for a, size in m.shape.items()) for n, m in config.topology.items()}
        return PartitionRequest(
            traced.name,
            TopologyAttr.get(shapes),
            config.assignments,
            (*(None,) * constants, *self.assignments[0]),
            tuple(self.assignments[1]) if is_cpp else tuple(map(_on_device, self.assignments[1])),
            tuple(constants + i for i in traced.donated),
            dataclasses.replace(
                options,
                placement=placement,
                # The cut infers transfers, and so does what stands in for it.
                mpmd_infer_transfers=options.placement == "cut" if infers is None else infers,
                # Programs equal for all microbatches are what differs most from the reference's: not where it
                # partitions.
                mpmd_equal_microbatches=not is_cpp if equal is None else equal,
                mpmd_split_bwd_fragments=self.schedule.splits_backward or options.mpmd_split_bwd_fragments,
            ),
            self.schedule.order,
            same_mesh=tuple(SameMesh(constants + i, o) for i, o in config.same_mesh(traced)),
            together=self.together if placement == "cut" else (),
            device_owners=device_owners(config.topology),
            step=StepFacts(
                stages=self.schedule.stages,
                reverse_backward=self.schedule.reverse_backward,
                split_meshes=() if options.mpmd_split_bwd_fragments else self.schedule.split_meshes,
                own_meshes=config.is_heterogeneous,
                keeps_chlo=not is_cpp,
                device_memory=self.limit,
                # The memory of a CPU is that of its host.
                offload_up_to=0.0 if self.traced.platform == "cpu" else _OFFLOAD_UP_TO,
                reserved=tuple(Reserved(mesh, size) for mesh, size in self.reserved.items()),
                replaced=self._replaced if options.optimizer_sharding else (),
                work=work_of(self.config),
            ),
        )

    @functools.cached_property
    def limit(self) -> int:
        """The bytes of a device that a step may take; 0 where that is unknown."""
        return device_memory(self.config) or 0

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
    """Return the mesh alone: results go to host memory in the end, since those of calls cannot be made there."""
    return None if assignment is None else dataclasses.replace(assignment, memory_kind=None)


# The meshes of arguments and results, from assignments and from shardings.


#: What takes longer than that is not worth it: recomputing costs a third of a step at most.
_OFFLOAD_UP_TO = 0.2


def device_memory(config: Config) -> int | None:
    """Return the bytes of a device that a step may take: as configured, or as the smallest device has; or None."""
    if config.options.device_memory is not None or config.is_abstract:
        return config.options.device_memory
    sizes = [
        memory_of(device) for mesh in config.topology.values() if isinstance(mesh, Mesh) for device in _one_of(mesh)
    ]
    return min((size for size in sizes if size), default=None)


def work_of(config: Config) -> Callable[[FragmentOp, Module], Work] | None:
    """Return the function that estimates the work of fragments to overlap; None if none may."""
    wanted = config.options.overlap
    meshes = [mesh for mesh in config.topology.values() if isinstance(mesh, Mesh)]
    if wanted is not None and meshes and not config.is_abstract:
        device = _one_of(meshes[0])[0]
        operations, sent = peak_flops(device.device_kind), link_speed_of(device)
        if operations is not None and sent is not None:
            return work_by_counts(operations, sent, hiding_of(config))
    return work_by_counts() if wanted == "pairs" else None


def _one_of(mesh: Mesh) -> list[jax.Device]:
    """Return a device of a mesh that says how much memory it has."""
    first = mesh.devices.flat[0]
    # One of this process is of the same kind, where others have the mesh.
    return [first] if is_described(first) else (mesh.local_devices or jax.local_devices())[:1]


def of_named_inputs(traced: Traced, config: Config) -> dict[int, Assignment]:
    """Return the assignments of arguments that are named tensors in host memory.

    Such an argument is in host memory if nothing but these names uses it, and in device memory otherwise; mesh
    inference alone would refuse it when its users differ.
    """
    program = opened(traced.rewritten.program.jaxpr)
    inputs = {v: i for i, v in enumerate(program.invars[len(traced.constants) :])}
    users: dict[int, list[Assignment | None]] = {}
    for eqn in program.eqns:
        name = eqn.params["name"] if eqn.primitive is named_tensor_p else None
        for atom in eqn.invars:
            if not is_literal(atom) and atom in inputs:
                users.setdefault(inputs[atom], []).append(config.assignments.get(name) if name else None)
    result: dict[int, Assignment] = {}
    for i, all_of_them in sorted(users.items()):
        named = sorted((a for a in all_of_them if a is not None), key=lambda a: a.mesh)
        if any(a.memory_kind == HOST for a in named):
            alike = None not in all_of_them and len(set(named)) == 1 and i not in traced.returned.values()
            result[i] = named[0] if alike else dataclasses.replace(named[0], memory_kind=None)
    return result


def assigned(
    config: Config,
    assignments: Mapping[int, Assignment],
    specs: Sequence[Spec | None],
    leaves: Sequence[Leaf],
    what: str,
) -> tuple[list[Assignment | None], list[str]]:
    """For each argument (`what` is "input") or result ("output") its mesh or None, and the contradictions.

    A sharding over a mesh of the topology names that mesh, unless the topology has these devices twice.  The host
    memory of an argument is left out: `annotate_io.put_on_host` cares for it.
    """
    per_argument: list[Assignment | None] = []
    problems: list[str] = []
    for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        assignment = assignments.get(i)
        named: list[str] = []
        if spec is not None and spec.mesh is not None:
            named = [name for name, mesh in config.topology.items() if same_devices(spec.mesh, mesh)]
        if assignment is None:
            per_argument.append(Assignment(named[0]) if len(named) == 1 else None)
            continue
        if named and assignment.mesh not in named:
            problems.append(
                f"{leaf.name} is on mesh {assignment.mesh!r} in {what}_mesh_assignment, and its sharding is over "
                f"the devices of mesh {named[0]!r}. Give both the same mesh, or leave one of them out."
            )
        on_host = what == "input" and assignment.memory_kind == HOST
        per_argument.append(dataclasses.replace(assignment, memory_kind=None) if on_host else assignment)
    return per_argument, problems
