"""The partitioner as one function: import, optimize, shard and export a module.

It takes the arguments of the reference's driver (`jaxlib._sdy_mpmd.apply_mpmd_partitioning`) and gives the same
module, but never changes its input, and rejects what the reference ignores or aborts on.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, raise_errors
from mpmd_trace.ir.attributes import BoolAttr, IntegerAttr, StringAttr
from mpmd_trace.ir.garbage_collection import paused_collector
from mpmd_trace.ir.ops import OMITTED, FuncOp, Module
from mpmd_trace.ir.text import read_module
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.import_.clean_up import CleanUp, read_clean
from mpmd_trace.passes.manager import Hook, PassManager, PassRun
from mpmd_trace.passes.microbatches.rule_orders import UserRules
from mpmd_trace.passes.optimize.reference_schedules import Predicate
from mpmd_trace.passes.pipelines import passes_of
from mpmd_trace.passes.placement.hypergraph import TOGETHER
from mpmd_trace.passes.request import NamedMeshes, PartitionRequest, Phases, check_phases

#: How many phases of a pipeline run: "all" has two after "optimize".
_PHASES = {"import": 1, "optimize": 2, "all": 4}


@dataclasses.dataclass(frozen=True)
class IoSpec:
    """Where an input or output of the program lives.

    `dims`: per dimension the axis names that shard it; empty when there is no sharding.
    """

    mesh: str
    dims: tuple[tuple[str, ...], ...] = ()
    unreduced: tuple[str, ...] = ()
    memory_kind: str | None = None


@dataclasses.dataclass(frozen=True)
class Partitioned:
    """What `partition` returns: the module, and for each pass that ran what it did and how long it took."""

    module: Module
    runs: tuple[PassRun, ...]
    diagnostics: tuple[Diagnostic, ...] = ()

    def as_text(self) -> str:
        """Return the module as MLIR."""
        return str(self.module)

    @property
    def input_specs(self) -> list[IoSpec]:
        """The mesh and sharding of each argument of `@main`.  Raises `MpmdError` before mesh inference."""
        main = self.module.main
        return [_io_spec(main, i, True) for i in range(len(main.type.inputs))]

    @property
    def output_specs(self) -> list[IoSpec]:
        """The mesh and sharding of each result of `@main`.  Raises `MpmdError` before mesh inference."""
        main = self.module.main
        return [_io_spec(main, i, False) for i in range(len(main.type.results))]


def _io_spec(main: FuncOp, index: int, is_input: bool) -> IoSpec:
    type = (main.type.inputs if is_input else main.type.results)[index]
    if not isinstance(type, MeshTensorType):
        what = "argument" if is_input else "result"
        raise MpmdError(f"{what} {index} of @main is on no mesh; it is a {type}")
    attr = (main.arg_attr if is_input else main.res_attr)(index, "mhlo.memory_kind")
    kind = type.memory_kind or (attr.value if isinstance(attr, StringAttr) else None)
    sharding = type.sharding
    if sharding is None:
        return IoSpec(type.mesh, memory_kind=kind)
    dims = tuple(tuple(a.name for a in sharding.dim_axes(i)) for i in range(len(sharding.dims)))
    return IoSpec(type.mesh, dims, tuple(a.name for a in sharding.unreduced), kind)


def _mark_donated(main: FuncOp, donated: Iterable[int]) -> None:
    wanted = set(donated)
    count = len(main.type.inputs)
    bad = sorted(i for i in wanted if not 0 <= i < count)
    if bad:
        raise MpmdError(f"@main has {count} arguments, so argument {bad[0]} cannot be donated")
    problems = []
    dicts = main.arg_attrs
    for i, attrs in enumerate(dicts):
        marked = {"jax.buffer_donor", "tf.aliasing_output"} & attrs.entries.keys()
        if i in wanted and not marked:
            dicts[i] = attrs.with_("jax.buffer_donor", BoolAttr.get(True))
        elif i not in wanted and marked:
            problems.append(
                f"argument {i} of @main carries {sorted(marked)[0]} but is not among the donated arguments; "
                "donate it or drop the attribute"
            )
    raise_errors(Diagnostic("error", p, main.args[0].location) for p in problems)
    main.set_all_arg_attrs(dicts)


@explains_internal_errors
def partition(
    module: Any,
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
    phases: Phases = "all",
    predicate: Predicate | None = None,
    same_mesh: Sequence[tuple[int, int]] = (),
    heterogeneous_meshes: bool = False,
    placement: Literal["reference", "cut"] = "reference",
    hooks: Sequence[Hook] = (),
    constraints: object = None,
) -> Partitioned:
    """Partition the program `@main` of a module over meshes.

    Args:
        module: MLIR text, a jaxlib module, or our IR; it is not changed.
        func_name: the program's name, for messages; the function processed is always `@main`.
        named_meshes: the topology, as (mesh name, [(axis name, size), ...]) pairs, or (mesh name, `jax.sharding.Mesh`).
        assignment: the mesh, or (mesh, stage), of each named computation and tensor.
        input_meshes: for each argument of `@main` a mesh or None (inferred); likewise `output_meshes`.
        donate_argnums: the arguments whose buffers the program may reuse.
        partitioning_options: see `CompileOptions`.
        fragment_merge_rules: which fragments become one (rules or their text).
        fragment_schedule_rules: which fragments run in a given order; they replace the schedule.
        phases: "import", "optimize" (import and optimize) or "all".
        predicate: says which of two scheduling units of a mesh runs first, instead of a named schedule.
        same_mesh: arguments and results that are to share a mesh, as (argument, result) pairs: mesh inference
            places both where it can, and the result is transferred in the end where it cannot.
        heterogeneous_meshes: whether the meshes of the topology have axes of their own, whose names begin with
            that of the mesh and an underscore.
        placement: where unnamed code goes: "reference", as the reference says, or "cut", where the fewest bytes move.
        hooks: called after each pass.
        constraints: no longer taken; give a `predicate`, or `fragment_schedule_rules`.

    Raises:
        MpmdError: with every problem found.
    """
    if constraints is not None:
        raise MpmdError(
            "partition takes no constraints any more: give the order of the units of a mesh as predicate, a function "
            "of two of them that says whether the first runs before the second, or that of fragments as "
            "fragment_schedule_rules"
        )
    check_phases(phases)
    request = PartitionRequest.of(
        func_name,
        named_meshes,
        assignment,
        input_meshes,
        output_meshes,
        donate_argnums,
        partitioning_options=partitioning_options,
        fragment_merge_rules=fragment_merge_rules,
        fragment_schedule_rules=fragment_schedule_rules,
        predicate=predicate,
        same_mesh=same_mesh,
        heterogeneous_meshes=heterogeneous_meshes,
        placement=placement,
    )
    return partition_as(module, request, phases=phases, hooks=hooks)


def partition_as(
    module: Any,
    request: PartitionRequest,
    *,
    phases: Phases = "all",
    hooks: Sequence[Hook] = (),
    user_rules: Callable[[Module], UserRules] | None = None,
    imported: Callable[[Module], None] | None = None,
    may_omit: bool = True,
) -> Partitioned:
    """Partition a module (MLIR text, a jaxlib module, or our IR; it is not changed) as requested.

    `user_rules` is asked after the import phase for rules that are followed on top of the schedule; they take the
    place of the rules of the request, and perhaps of its comparator; `imported` sees the module then, too.
    `may_omit`: whether most passes may go without some of many microbatches; if that fails, they get all of them.
    Raises `MpmdError` with every problem found.
    """
    with paused_collector():  # once for all phases: enabling it again makes it scan the whole program
        # With hooks each step is seen by itself; otherwise MLIR cleans up the module while it has it.
        is_mlir = isinstance(module, str) or hasattr(module, "operation")
        cleaned = read_clean(module, for_xla=request.keeps_chlo) if is_mlir and not hooks else None
        work = read_module(module) if cleaned is None else cleaned[0]
        main = work.lookup("main")
        if main is None:
            raise MpmdError(f"the module of '{request.func_name}' has no function @main to partition")
        for given, declared, what in (
            (request.inputs, main.type.inputs, "arguments"),
            (request.outputs, main.type.results, "results"),
        ):
            if len(given) > len(declared):
                raise MpmdError(
                    f"@main of '{request.func_name}' has {len(declared)} {what}, but meshes are given for {len(given)}"
                )
        main.attrs["topology"] = request.topology
        main.device_owners = request.device_owners
        _mark_donated(main, request.donated)
        for number, results in enumerate(request.together):
            for result in results:
                main.set_res_attr(result, TOGETHER, IntegerAttr.get(number))
        runs: list[PassRun] = []
        diagnostics: list[Diagnostic] = []
        if cleaned is not None:
            runs.append(PassRun(0, CleanUp.name, True, cleaned[2]))
            diagnostics += cleaned[1]
        rules = None if user_rules is None else functools.partial(user_rules, work)
        # A hook may run passes of its own, which change functions as they like.
        may_omit = may_omit and phases == "all" and user_rules is None and not hooks
        passes = passes_of(request, rules, alias_bodies=not hooks, module=work, may_omit=may_omit)
        for phase, steps in enumerate(itertools.islice(passes, _PHASES[phases])):
            left = [one for one in steps if cleaned is None or not isinstance(one, CleanUp)]
            manager = PassManager(left, hooks, first_index=len(runs))
            try:
                runs += manager.run(work)
            except MpmdError:
                if not may_omit or OMITTED not in work.main.attrs:
                    raise
                seen = imported if phase == 0 else None
                return partition_as(module, request, imported=seen, may_omit=False)
            diagnostics += manager.diagnostics.found
            if phase == 0 and imported is not None:
                imported(work)
    return Partitioned(work, tuple(runs), tuple(diagnostics))
