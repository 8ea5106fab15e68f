"""What `mpmd_trace.partition` is asked for: where a program lives and how it is scheduled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import MeshAttr, TopologyAttr
from mpmd_trace.passes.base import option
from mpmd_trace.passes.fragment_rules import MergeRule, ScheduleRule
from mpmd_trace.passes.hoisting.hoist_invariants import HoistInvariants
from mpmd_trace.passes.hoisting.reduce_once import ReduceOnce
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.find_stages import FindStages
from mpmd_trace.passes.memory.fit_memory import FitMemory
from mpmd_trace.passes.memory.shard_optimizer_state import ShardOptimizerState
from mpmd_trace.passes.optimize.schedules import SCHEDULES, Comparator, ExplicitOrder, Order, Predicate, Sparse
from mpmd_trace.passes.options import nearest

__all__ = ["OUR_OPTIONS", "NamedMeshes", "PartitionRequest", "PartitioningOptions", "Phases", "check_phases"]

Phases = Literal["import", "optimize", "all"]
NamedMeshes = Sequence[tuple[str, Sequence[tuple[str, int]]]]


@dataclasses.dataclass(frozen=True)
class PartitioningOptions:
    """The options of `partition`."""

    mpmd_infer_transfers: bool = option(False, "add transfers where values are needed on other meshes")
    mpmd_infer_cross_mesh_reductions: bool = option(
        False, "turn reductions over values of several meshes into mpmd reductions"
    )
    mpmd_fragment_remat: bool = option(False, "recompute forward fragments before backward ones")
    mpmd_merge_remat_fragments: bool = option(False, "merge the recomputation into the backward fragment")
    mpmd_split_bwd_fragments: bool = option(False, "split backward fragments at the values that are transferred")
    mpmd_pipeline_schedule: Order = option(SCHEDULES["GPipe"], f"one of {', '.join(SCHEDULES)}")
    mpmd_assume_homogeneous_devices: bool = option(False, "accepted for the reference's sake; has no effect")
    mpmd_absorb_inferred_fragments_on_entry_point_function: bool = option(
        False, "let user fragments absorb inferred ones in the main function, too"
    )
    mpmd_copy_constant_creation_from_producer_to_consumer: bool = option(
        False, "create constants where they are used instead of sending them"
    )
    mpmd_apply_merge_transfers_pass: bool = option(False, "send small values between the same meshes in one transfer")
    mpmd_merge_inferred_after_scheduling: bool = option(
        False, "merge inferred fragments after scheduling instead of before"
    )
    mpmd_fail_on_backward_deps: bool = option(
        False, "refuse programs in which a value moves to an earlier mesh in a forward pass"
    )
    mpmd_merge_forward_with_backward: bool = option(
        False,
        "one program for a forward and the backward that follows it on its mesh, as on the last one of 1F1B "
        "(the C++ partitioner has the pass, but no such option; mpmd_trace.jit, if it is not given, does so with what "
        "no other stage runs)",
    )
    mpmd_merge_backward_with_forward: bool = option(
        False,
        "one program for a backward and the next microbatch's forward that follows it on its mesh, as between the "
        "warm-up and the end of 1F1B (the C++ partitioner has no such pass)",
    )
    mpmd_equal_microbatches: bool = option(
        False,
        "one program for all microbatches of a stage: sums start from zeros that are passed in, and what comes before "
        "the first and after the last microbatch is a program of its own (the C++ partitioner has no such option)",
    )

    @classmethod
    def of(cls, given: Mapping[str, Any] | None, besides: Iterable[str] = ()) -> Self:
        """Return the options by name, defaults for the others.  Raises `MpmdError` that lists every mistake.

        `besides`: options that the caller knows, to be offered instead of a name that is close.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        offered = [*known, *besides]
        values: dict[str, Any] = {}
        problems: list[Diagnostic] = []
        for name, value in dict(given or {}).items():
            if name not in known:
                text = f"there is no partitioning option '{name}'"
                text += nearest(name, offered) or f"; known: {', '.join(offered)}"
                problems.append(Diagnostic("error", text))
            elif name == "mpmd_pipeline_schedule":
                text = "none" if value is None else str(value) or "none"
                try:
                    values[name] = value if isinstance(value, Order) else Order.parse(text)
                except MpmdError as error:
                    problems += error.diagnostics
            elif not isinstance(value, bool):
                text = f"partitioning option '{name}' is True or False, not {value!r}"
                problems.append(Diagnostic("error", text))
            else:
                values[name] = value
        if problems:
            raise MpmdError(problems)
        return cls(**values)

    def changed(self) -> dict[str, Any]:
        """Return the options that are not at their default, with schedules by name."""
        changed = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default
        }
        return {name: value if isinstance(value, bool) else str(value) for name, value in changed.items()}


#: Options that change the program and that the reference's driver does not know.
OUR_OPTIONS = ("mpmd_merge_forward_with_backward", "mpmd_merge_backward_with_forward")


@dataclasses.dataclass(frozen=True)
class PartitionRequest:
    """What `partition` is to do with a module.

    func_name: the program's name, for messages; the function processed is always `@main`.
    topology: the meshes, in order.
    assignment: where each named computation and tensor is.
    inputs: where each argument of `@main` is, None where that is inferred; likewise `outputs`.
    donated: the arguments whose buffers the program may reuse.
    merge_rules: which fragments become one.
    schedule_rules: which fragments run in a given order; they replace the schedule.
    same_mesh: arguments and results that are to share a mesh.
    together: groups of results that are better on one mesh each; with placement "cut".
    heterogeneous: whether the meshes have axes of their own, whose names begin with that of the mesh.
    own_meshes: whether an axis means that of the mesh where its value is, for meshes that share names of axes and
        differ in their sizes; the reference refuses them.
    placement: where unnamed code goes: "reference", as the reference says, or "cut", where the fewest bytes move.
    copies_between_hosts: whether transfers from host memory to host memory are allowed, which the reference refuses.
    allow_reshard_fragments: whether a named computation that computes nothing may change a sharding; the reference
        refuses it.
    fuse_fwd_bwd: whether a forward and a backward of which each always runs with the other are one program, as the
        reference has them only if asked.
    merge_parts: whether parts of a stage that do not need each other are one fragment; the reference refuses them.
    warns_of_schedules: whether to warn of a schedule that the data flow does not allow, as the reference does not.
    stages: how the order of meshes and the stages on them are found, which the reference does not do; None: not at all.
    cut_in_calls: whether called functions cut their microbatches out of the batch, which the reference does not do.
    keep_sends_separate: whether what is computed from gradients for another mesh stays out of backward fragments that
        are split, into which the reference merges it.
    reverse_backward: whether the schedule runs backward passes from the last microbatch to the first.
    keeps_chlo: whether ops of CHLO stay what they are, since XLA knows them; the reference writes them out.
    outlines: whether large functions of keys that are called often stay out of line; the reference inlines them.
    hoist: how what is the same for all microbatches is computed once; None: each time, as the reference does.
    reduce: how sums over devices are finished once per step; None: for each microbatch, as the reference does.
    state: how the state of an optimizer is sharded; None: as the program says, as the reference does.
    fit: how activations are made to fit into memory; None: they are kept, as the reference does.
    device_owners: for each mesh the first one that has its devices, where meshes share them, as in the reference none
        does.
    """

    func_name: str
    topology: TopologyAttr
    assignment: Mapping[str, Assignment]
    inputs: tuple[Assignment | None, ...]
    outputs: tuple[Assignment | None, ...]
    donated: tuple[int, ...] = ()
    options: PartitioningOptions = PartitioningOptions()
    merge_rules: tuple[MergeRule, ...] = ()
    schedule_rules: tuple[ScheduleRule, ...] = ()
    same_mesh: tuple[SameMesh, ...] = ()
    together: tuple[tuple[int, ...], ...] = ()
    heterogeneous: bool = False
    own_meshes: bool = False
    placement: str = "reference"
    copies_between_hosts: bool = False
    allow_reshard_fragments: bool = False
    fuse_fwd_bwd: bool = False
    merge_parts: bool = False
    stages: FindStages | None = None
    warns_of_schedules: bool = False
    cut_in_calls: bool = False
    keep_sends_separate: bool = False
    reverse_backward: bool = False
    keeps_chlo: bool = False
    outlines: bool = False
    hoist: HoistInvariants | None = None
    reduce: ReduceOnce | None = None
    state: ShardOptimizerState | None = None
    fit: FitMemory | None = None
    device_owners: Mapping[str, str] = dataclasses.field(default_factory=dict)

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
        constraints: Sparse | None = None,
        same_mesh: Sequence[tuple[int, int]] = (),
        heterogeneous_meshes: bool = False,
        placement: str = "reference",
    ) -> Self:
        """Return the request that arguments of `mpmd_trace.partition` make.  Raises `MpmdError`."""
        options = PartitioningOptions.of(partitioning_options)
        order: Order = options.mpmd_pipeline_schedule
        if constraints is not None:
            order = ExplicitOrder("constraints", constraints)
        elif predicate is not None:
            order = Comparator(getattr(predicate, "__name__", "predicate"), predicate)
        if not named_meshes:
            raise MpmdError("the topology has no mesh; give at least one")
        result = cls(
            func_name,
            TopologyAttr.get({name: MeshAttr.get((str(a), int(n)) for a, n in axes) for name, axes in named_meshes}),
            {n: Assignment.on_mesh(v) if isinstance(v, str) else Assignment.on_mesh(*v) for n, v in assignment.items()},
            tuple(None if mesh is None else Assignment.on_mesh(mesh) for mesh in input_meshes),
            tuple(None if mesh is None else Assignment.on_mesh(mesh) for mesh in output_meshes),
            tuple(donate_argnums),
            dataclasses.replace(options, mpmd_pipeline_schedule=order),
            tuple(MergeRule.parse(str(rule)) for rule in fragment_merge_rules),
            tuple(ScheduleRule.parse(str(rule)) for rule in fragment_schedule_rules),
            tuple(SameMesh(i, o) for i, o in same_mesh),
            heterogeneous=heterogeneous_meshes,
            placement=placement,
        )
        result._check_names()
        return result

    def _check_names(self) -> None:
        wanted = [(f"name '{name}'", place) for name, place in self.assignment.items()]
        for what, places in (("input", self.inputs), ("output", self.outputs)):
            wanted += [(f"{what} {i}", place) for i, place in enumerate(places) if place is not None]
        meshes = self.topology.meshes
        problems = [
            f"{what} is assigned to mesh '{place.mesh}', which the topology does not have"
            f"{nearest(place.mesh, meshes) or '; it has ' + ', '.join(meshes)}"
            for what, place in wanted
            if place.mesh not in meshes
        ]
        if problems:
            raise MpmdError([Diagnostic("error", p) for p in problems])


def check_phases(phases: str) -> None:
    """Raise `MpmdError` for what is no phase."""
    if phases not in ("import", "optimize", "all"):
        raise MpmdError(f"phases is 'import', 'optimize' or 'all', not {phases!r}")
