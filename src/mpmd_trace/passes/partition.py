"""The partitioner as one function: import, optimise, shard and export a module.

It takes the arguments of the reference's driver (`jaxlib._sdy_mpmd.apply_mpmd_partitioning`) and gives the same
module, but never changes its input, and rejects what the reference ignores or aborts on.
Source: section 6 of the optimise and export specification.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.ir.attributes import BoolAttr, MeshAttr, StringAttr, TopologyAttr
from mpmd_trace.ir.collector import paused_collector
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.import_.clean_up import CleanUp, read_clean
from mpmd_trace.passes.manager import Hook, PassManager, PassRun
from mpmd_trace.passes.mesh_order import split_memory_kind
from mpmd_trace.passes.optimize.predicates import SCHEDULES, Predicate, Sparse, find_schedule
from mpmd_trace.passes.options import nearest

__all__ = ["OPTIONS", "OUR_OPTIONS", "IoSpec", "Partitioned", "Phases", "partition", "read_module"]

Phases = Literal["import", "optimize", "all"]
NamedMeshes = Sequence[tuple[str, Sequence[tuple[str, int]]]]
Assignment = Mapping[str, str | tuple[str, int | None]]

#: Partitioning options with their defaults and what they do.
OPTIONS: dict[str, tuple[bool | str, str]] = {
    "mpmd_infer_transfers": (False, "add transfers where values are needed on other meshes"),
    "mpmd_infer_cross_mesh_reductions": (
        False,
        "turn reductions over values of several meshes into mpmd reductions",
    ),
    "mpmd_fragment_remat": (False, "recompute forward fragments before backward ones"),
    "mpmd_merge_remat_fragments": (False, "merge the recomputation into the backward fragment"),
    "mpmd_split_bwd_fragments": (
        False,
        "split backward fragments at the values that are transferred",
    ),
    "mpmd_pipeline_schedule": ("GPipe", f"one of {', '.join(SCHEDULES)}"),
    "mpmd_assume_homogeneous_devices": (False, "accepted for the reference's sake; has no effect"),
    "mpmd_absorb_inferred_fragments_on_entry_point_function": (
        False,
        "let user fragments absorb inferred ones in the main function, too",
    ),
    "mpmd_copy_constant_creation_from_producer_to_consumer": (
        False,
        "create constants where they are used instead of sending them",
    ),
    "mpmd_apply_merge_transfers_pass": (
        False,
        "send small values between the same meshes in one transfer",
    ),
    "mpmd_merge_inferred_after_scheduling": (
        False,
        "merge inferred fragments after scheduling instead of before",
    ),
    "mpmd_fail_on_backward_deps": (
        False,
        "refuse programs in which a value moves to an earlier mesh in a forward pass",
    ),
    "mpmd_merge_forward_with_backward": (
        False,
        "one program for a forward and the backward that follows it on its mesh, as on the last one of 1F1B "
        "(the C++ partitioner has the pass, but no such option)",
    ),
    "mpmd_merge_backward_with_forward": (
        False,
        "one program for a backward and the next microbatch's forward that follows it on its mesh, as between the "
        "warm-up and the end of 1F1B (the C++ partitioner has no such pass)",
    ),
}
#: Those that change the program and that the reference's driver does not know.
OUR_OPTIONS = ("mpmd_merge_forward_with_backward", "mpmd_merge_backward_with_forward")


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
        """The module as MLIR."""
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


def read_module(module: Any) -> Module:
    """Our IR of MLIR text, of a jaxlib module, or a copy of a module that is our IR already."""
    if isinstance(module, Module):
        return module.clone()
    if isinstance(module, str):
        return parse(module)
    if hasattr(module, "operation"):
        from mpmd_trace.jax_compat.mlir import module_to_generic

        return parse(module_to_generic(module))
    raise TypeError(
        f"a module is MLIR text, a jaxlib.mlir.ir.Module or an mpmd_trace Module, not {type(module).__name__}"
    )


def check_options(options: Mapping[str, Any] | None, besides: Iterable[str] = ()) -> dict[str, Any]:
    """All partitioning options with defaults filled in.  Raises `MpmdError` that lists every mistake.

    `besides`: options that the caller knows, to be offered instead of a name that is close.
    """
    offered = [*OPTIONS, *besides]
    checked: dict[str, Any] = {name: default for name, (default, _) in OPTIONS.items()}
    problems: list[str] = []
    for name, value in dict(options or {}).items():
        if name not in OPTIONS:
            problems.append(
                f"there is no partitioning option '{name}'"
                f"{nearest(name, offered) or '; known: ' + ', '.join(offered)}"
            )
        elif name == "mpmd_pipeline_schedule":
            known = find_schedule(value or "none") if isinstance(value, str | None) else None
            if known is None:
                problems.append(
                    f"there is no schedule '{value}'"
                    f"{nearest(str(value), SCHEDULES) or '; known: ' + ', '.join(SCHEDULES)}"
                )
            checked[name] = known
        elif not isinstance(value, bool):
            problems.append(f"partitioning option '{name}' is True or False, not {value!r}")
        else:
            checked[name] = value
    if problems:
        raise MpmdError([Diagnostic("error", p) for p in problems])
    return checked


def _check_names(
    meshes: Mapping[str, Any],
    assignment: Assignment,
    inputs: Sequence[str | None],
    outputs: Sequence[str | None],
) -> None:
    wanted = [(f"name '{n}'", v if isinstance(v, str) else v[0]) for n, v in assignment.items()]
    wanted += [(f"input {i}", m) for i, m in enumerate(inputs) if m is not None]
    wanted += [(f"output {i}", m) for i, m in enumerate(outputs) if m is not None]
    problems = [
        f"{what} is assigned to mesh '{split_memory_kind(mesh)[0]}', which the topology does not have"
        f"{nearest(mesh, meshes) or '; it has ' + ', '.join(meshes)}"
        for what, mesh in wanted
        if split_memory_kind(mesh)[0] not in meshes
    ]
    if problems:
        raise MpmdError([Diagnostic("error", p) for p in problems])


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
    if problems:
        raise MpmdError([Diagnostic("error", p, main.args[0].location) for p in problems])
    main.set_all_arg_attrs(dicts)


def _assignment_items(assignment: Assignment) -> tuple[str, ...]:
    """`name@mesh/stage` for each name."""
    parts = []
    for name, value in assignment.items():
        mesh, stage = (value, None) if isinstance(value, str) else (value[0], value[1])
        parts.append(f"{name}@{mesh}" + ("" if stage is None else f"/{stage}"))
    return tuple(parts)


def _index_items(meshes: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(f"{i}@{mesh}" for i, mesh in enumerate(meshes) if mesh is not None)


def phase_passes(
    options: Mapping[str, Any],
    assignment: Assignment,
    input_meshes: Sequence[str | None],
    output_meshes: Sequence[str | None],
    *,
    merge_rules: Sequence[str] = (),
    schedule_rules: Sequence[str] = (),
    predicate: Predicate | None = None,
    constraints: Sparse | None = None,
    phases: Phases = "all",
    same_mesh: Sequence[tuple[int, int]] = (),
    heterogeneous_meshes: bool = False,
) -> list[list[Pass]]:
    """The passes of each phase, as the driver runs them."""
    from mpmd_trace.passes.export.pipelines import ExportPipeline
    from mpmd_trace.passes.import_.pipelines import ImportPipeline
    from mpmd_trace.passes.optimize.pipelines import OptimizePipeline
    from mpmd_trace.passes.sharding.pipelines import ShardingPropagationPipeline

    found: list[list[Pass]] = []
    found.append(
        ImportPipeline(
            name_to_mesh_assignment=_assignment_items(assignment),
            input_assignment=_index_items(input_meshes),
            output_assignment=_index_items(output_meshes),
            constraints=tuple(f"{i}:{o}" for i, o in same_mesh),
            merge_after_scheduling=options["mpmd_merge_inferred_after_scheduling"],
            absorb_on_entry_point=options["mpmd_absorb_inferred_fragments_on_entry_point_function"],
            infer_transfers=options["mpmd_infer_transfers"],
            infer_cross_mesh_reductions=options["mpmd_infer_cross_mesh_reductions"],
            split_bwd_fragments=options["mpmd_split_bwd_fragments"],
            enable_heterogeneous_meshes=heterogeneous_meshes,
        ).passes()
    )
    if phases == "import":
        return found
    found.append(
        OptimizePipeline(
            any_schedule=True,
            pipeline_schedule=options["mpmd_pipeline_schedule"],
            predicate=predicate,
            constraints=constraints,
            fragment_merge_rules=tuple(merge_rules),
            fragment_schedule_rules=tuple(schedule_rules),
            merge_after_scheduling=options["mpmd_merge_inferred_after_scheduling"],
            absorb_on_entry_point=options["mpmd_absorb_inferred_fragments_on_entry_point_function"],
            apply_fragment_remat=options["mpmd_fragment_remat"],
            merge_remat_fragments=options["mpmd_merge_remat_fragments"],
            merge_forward_with_backward=options["mpmd_merge_forward_with_backward"],
            merge_backward_with_forward=options["mpmd_merge_backward_with_forward"],
        ).passes()
    )
    if phases == "optimize":
        return found
    found.append(ShardingPropagationPipeline().passes())
    found.append(
        ExportPipeline(
            copy_constants_from_producer_to_consumer=options[
                "mpmd_copy_constant_creation_from_producer_to_consumer"
            ],
            apply_merge_transfers=options["mpmd_apply_merge_transfers_pass"],
            fail_on_backward_deps=options["mpmd_fail_on_backward_deps"],
        ).passes()
    )
    return found


def partition(
    module: Any,
    func_name: str,
    named_meshes: NamedMeshes,
    assignment: Assignment,
    input_meshes: Sequence[str | None],
    output_meshes: Sequence[str | None],
    donate_argnums: Sequence[int] = (),
    *,
    partitioning_options: Mapping[str, Any] | None = None,
    fragment_merge_rules: Sequence[Any] = (),
    fragment_schedule_rules: Sequence[Any] = (),
    phases: Phases = "all",
    predicate: Predicate | None = None,
    constraints: Sparse | None = None,
    same_mesh: Sequence[tuple[int, int]] = (),
    heterogeneous_meshes: bool = False,
    hooks: Sequence[Hook] = (),
) -> Partitioned:
    """Partition the program `@main` of a module over meshes.

    Args:
        module: MLIR text, a jaxlib module, or our IR; it is not changed.
        func_name: the program's name, for messages; the function processed is always `@main`.
        named_meshes: the topology, as (mesh name, [(axis name, size), ...]) pairs.
        assignment: the mesh, or (mesh, stage), of each named computation and tensor.
        input_meshes: for each argument of `@main` a mesh or None (inferred); likewise `output_meshes`.
        donate_argnums: the arguments whose buffers the program may reuse.
        partitioning_options: see `OPTIONS`.
        fragment_merge_rules: which fragments become one (rules or their text).
        fragment_schedule_rules: which fragments run in a given order; they replace the schedule.
        phases: "import", "optimize" (import and optimise) or "all".
        predicate: says which of two scheduling units of a mesh runs first, instead of a named schedule.
        constraints: the orders wanted on a mesh, from its units, instead of a named schedule.
        same_mesh: arguments and results that are to share a mesh, as (argument, result) pairs: mesh inference
            places both where it can, and the result is transferred in the end where it cannot.
        heterogeneous_meshes: whether the meshes of the topology have axes of their own, whose names begin with
            that of the mesh and an underscore.
        hooks: called after each pass.

    Raises:
        MpmdError: with every problem found.
    """
    if phases not in ("import", "optimize", "all"):
        raise ValueError(f"phases is 'import', 'optimize' or 'all', not {phases!r}")
    options = check_options(partitioning_options)
    meshes = {name: MeshAttr.get((str(a), int(n)) for a, n in axes) for name, axes in named_meshes}
    if not meshes:
        raise MpmdError("the topology has no mesh; give at least one")
    _check_names(meshes, assignment, input_meshes, output_meshes)
    with paused_collector():  # once for all phases: enabling it again makes it scan the whole program
        # With hooks each step is seen by itself; otherwise MLIR cleans up the text while it has it.
        cleaned = read_clean(module) if isinstance(module, str) and not hooks else None
        work = read_module(module) if cleaned is None else cleaned[0]
        main = work.lookup("main")
        if main is None:
            raise MpmdError(f"the module of '{func_name}' has no function @main to partition")
        for given, declared, what in (
            (input_meshes, main.type.inputs, "arguments"),
            (output_meshes, main.type.results, "results"),
        ):
            if len(given) > len(declared):
                raise MpmdError(
                    f"@main of '{func_name}' has {len(declared)} {what}, but meshes are given for {len(given)}"
                )
        main.attrs["topology"] = TopologyAttr.get(meshes)
        _mark_donated(main, donate_argnums)
        runs: list[PassRun] = []
        found: list[Diagnostic] = []
        if cleaned is not None:
            runs.append(PassRun(0, CleanUp.name, True, cleaned[2]))
            found += cleaned[1]
        for passes in phase_passes(
            options,
            assignment,
            input_meshes,
            output_meshes,
            merge_rules=[str(r) for r in fragment_merge_rules],
            schedule_rules=[str(r) for r in fragment_schedule_rules],
            predicate=predicate,
            constraints=constraints,
            phases=phases,
            same_mesh=same_mesh,
            heterogeneous_meshes=heterogeneous_meshes,
        ):
            left = [one for one in passes if cleaned is None or not isinstance(one, CleanUp)]
            manager = PassManager(left, hooks, first_index=len(runs))
            runs += manager.run(work)
            found += manager.diagnostics.found
    return Partitioned(work, tuple(runs), tuple(found))
