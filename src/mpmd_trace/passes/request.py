"""What `mpmd_trace.compiler.partition` is asked for: where a program lives and how it is scheduled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from mpmd_trace.diagnostics.messages import MpmdError, did_you_mean, raise_errors
from mpmd_trace.diagnostics.moved import moved
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import MeshAttr, TopologyAttr
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.passes.compile_options import CompileOptions, Overlap
from mpmd_trace.passes.fragment_rules import MergeRule, ScheduleRule
from mpmd_trace.passes.import_.assignments import IndexAssignment, NameAssignment, SameMesh
from mpmd_trace.passes.memory.reserved import Reserved
from mpmd_trace.passes.memory.shard_optimizer_state import Replaced
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Comparator, Order, Predicate
from mpmd_trace.passes.programs.blocks import Work

__getattr__ = moved(
    __name__,
    "mpmd_trace.passes.compile_options",
    {"PartitioningOptions": "CompileOptions", "OUR_OPTIONS": "OUR_OPTIONS"},
)

Phases = Literal["import", "optimize", "all"]
if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

#: Meshes with their axes, as (name, size) pairs, or as those of a `jax.sharding.Mesh`.
NamedMeshes: TypeAlias = "Sequence[tuple[str, Sequence[tuple[str, int]] | Mesh | AbstractMesh]]"


@dataclasses.dataclass(frozen=True)
class StepFacts:
    """What `mpmd_trace.jit` knows of a step besides its module, for what the reference does not do."""

    #: Whether the order of meshes and the stages on them go by the stages of the program, and how: "no", "loop", "v".
    stages: str = "no"
    #: Whether the schedule runs backward passes from the last microbatch to the first.
    reverse_backward: bool = False
    #: The meshes whose backwards are split, if any are; all by default.
    split_meshes: tuple[str, ...] = ()
    #: Whether an axis means that of the mesh where its value is, for meshes that share names of axes and differ in
    #: their sizes; the reference refuses them.
    own_meshes: bool = False
    #: Whether ops of CHLO stay what they are, since XLA knows them, and large functions of keys that are called often
    #: stay out of line; the reference writes them out.
    keeps_chlo: bool = True
    #: The bytes of a device that a step may take, 0 where that is unknown; and those of each mesh that are taken.
    device_memory: int = 0
    reserved: tuple[Reserved, ...] = ()
    #: How much of the work of a mesh offloading may cost in addition, 0: any.
    offload_up_to: float = 0.0
    #: The arguments that results replace.
    replaced: tuple[Replaced, ...] = ()
    #: What a fragment computes and sends inside its mesh, in one unit of time; None where that is unknown.
    work: Callable[[FragmentOp, Module], Work] | None = None


@dataclasses.dataclass(frozen=True)
class PartitionRequest:
    """What `partition` is to do with a module.

    func_name: the program's name, for messages; the function processed is always `@main`.
    topology: the meshes, in order.
    assignment: where each named computation and tensor is.
    inputs: where each argument of `@main` is, None where that is inferred; likewise `outputs`.
    donated: the arguments whose buffers the program may reuse.
    options: how to compile it.
    schedule: the order of the fragments of a mesh.
    merge_rules: which fragments become one.
    schedule_rules: which fragments run in a given order; they replace the schedule.
    same_mesh: arguments and results that are to share a mesh.
    together: groups of results that are better on one mesh each; with placement "cut".
    heterogeneous: whether the meshes have axes of their own, whose names begin with that of the mesh.
    device_owners: for each mesh the first one that has its devices, where meshes share them, as in the reference none
        does.
    step: what `mpmd_trace.jit` knows besides; None for the passes of the reference alone.
    """

    func_name: str
    topology: TopologyAttr
    assignment: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    inputs: tuple[Assignment | None, ...] = ()
    outputs: tuple[Assignment | None, ...] = ()
    donated: tuple[int, ...] = ()
    options: CompileOptions = dataclasses.field(default_factory=CompileOptions)
    schedule: Order = SCHEDULES["GPipe"]
    merge_rules: tuple[MergeRule, ...] = ()
    schedule_rules: tuple[ScheduleRule, ...] = ()
    same_mesh: tuple[SameMesh, ...] = ()
    together: tuple[tuple[int, ...], ...] = ()
    heterogeneous: bool = False
    device_owners: Mapping[str, str] = dataclasses.field(default_factory=dict)
    step: StepFacts | None = None

    @property
    def name_assignments(self) -> tuple[NameAssignment, ...]:
        """The assignment of names, as passes take it."""
        return tuple(NameAssignment(name, place) for name, place in self.assignment.items())

    @property
    def input_assignments(self) -> tuple[IndexAssignment, ...]:
        """The assignment of inputs, as passes take it."""
        return tuple(IndexAssignment(i, place) for i, place in enumerate(self.inputs) if place is not None)

    @property
    def output_assignments(self) -> tuple[IndexAssignment, ...]:
        """The assignment of outputs, as passes take it."""
        return tuple(IndexAssignment(i, place) for i, place in enumerate(self.outputs) if place is not None)

    @property
    def keeps_chlo(self) -> bool:
        """True if ops of CHLO and large functions of keys stay what they are."""
        return self.step is not None and self.step.keeps_chlo

    @property
    def overlap(self) -> Overlap | None:
        """The way in which fragments of several microbatches become one program, None if they do not."""
        wanted = self.options.overlap
        return wanted if self.step is not None and (wanted == "pairs" or self.step.work is not None) else None

    def with_options(self, **changes: Any) -> Self:
        """Return the request with other options."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, **changes))

    @classmethod
    def of(
        cls,
        func_name: str,
        named_meshes: NamedMeshes,
        assignment: Mapping[str, str | tuple[str, int | None]],
        input_meshes: Sequence[str | None],
        output_meshes: Sequence[str | None],
        donate_argnums: Sequence[int] = (),
        *,
        partitioning_options: Mapping[str, Any] | None = None,
        fragment_merge_rules: Sequence[Any] = (),
        fragment_schedule_rules: Sequence[Any] = (),
        predicate: Predicate | None = None,
        same_mesh: Sequence[tuple[int, int]] = (),
        heterogeneous_meshes: bool = False,
        placement: Literal["reference", "cut"] = "reference",
    ) -> Self:
        """Return the request that arguments of `mpmd_trace.compiler.partition` make.  Raises `MpmdError`."""
        options = dataclasses.replace(CompileOptions.of_partition(partitioning_options), placement=placement)
        order = options.schedule or SCHEDULES["GPipe"]
        if predicate is not None:
            order = Comparator(getattr(predicate, "__name__", "predicate"), predicate)
        if not named_meshes:
            raise MpmdError("the topology has no mesh; give at least one")
        result = cls(
            func_name,
            TopologyAttr.get(
                {name: MeshAttr.get((str(a), int(n)) for a, n in _axes(mesh)) for name, mesh in named_meshes}
            ),
            {n: Assignment.on_mesh(v) if isinstance(v, str) else Assignment.on_mesh(*v) for n, v in assignment.items()},
            tuple(None if mesh is None else Assignment.on_mesh(mesh) for mesh in input_meshes),
            tuple(None if mesh is None else Assignment.on_mesh(mesh) for mesh in output_meshes),
            tuple(donate_argnums),
            options,
            order,
            tuple(MergeRule.parse(str(rule)) for rule in fragment_merge_rules),
            tuple(ScheduleRule.parse(str(rule)) for rule in fragment_schedule_rules),
            tuple(SameMesh(i, o) for i, o in same_mesh),
            heterogeneous=heterogeneous_meshes,
        )
        result._check_names()
        return result

    def _check_names(self) -> None:
        wanted = [(f"name '{name}'", place) for name, place in self.assignment.items()]
        for what, places in (("input", self.inputs), ("output", self.outputs)):
            wanted += [(f"{what} {i}", place) for i, place in enumerate(places) if place is not None]
        meshes = self.topology.meshes
        raise_errors(
            f"{what} is assigned to mesh '{place.mesh}', which the topology does not have"
            f"{did_you_mean(place.mesh, meshes) or '; it has ' + ', '.join(meshes)}"
            for what, place in wanted
            if place.mesh not in meshes
        )


def _axes(mesh: Sequence[tuple[str, int]] | Mesh | AbstractMesh) -> Iterable[tuple[str, int]]:
    return mesh if isinstance(mesh, Sequence) else mesh.shape.items()


def check_phases(phases: str) -> None:
    """Raise `MpmdError` for what is no phase."""
    if phases not in ("import", "optimize", "all"):
        raise MpmdError(f"phases is 'import', 'optimize' or 'all', not {phases!r}")
