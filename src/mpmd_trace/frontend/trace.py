"""`trace`: from a function and example arguments to an MLIR module with `mpmd` ops."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.frontend import arg_shardings, explicit_axes, flatten_arguments
from mpmd_trace.frontend.batch_rows import split_rows, uneven_rows
from mpmd_trace.frontend.effects import effect_problems
from mpmd_trace.frontend.errors import FrontendError, place_of, problem, raise_problems, warn
from mpmd_trace.frontend.explanations import explained, leak
from mpmd_trace.frontend.flatten_arguments import Leaf
from mpmd_trace.frontend.gradient_accumulation import microbatches_refused_by
from mpmd_trace.frontend.jaxpr_queries import large_constants, only_returned
from mpmd_trace.frontend.layer_scan import assigned_parts
from mpmd_trace.frontend.memory_kinds import divide_results, returned_arguments
from mpmd_trace.frontend.mpmd_interpreter import MpmdInterpreter
from mpmd_trace.frontend.name_checks import name_problems, without_names
from mpmd_trace.frontend.nonlinear_losses import nonlinear_losses
from mpmd_trace.frontend.remat import Site
from mpmd_trace.frontend.shardings import Meshes
from mpmd_trace.frontend.stacked.arrays import split
from mpmd_trace.frontend.traced import Rewritten, Specs, Traced
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.garbage_collection import paused_collector
from mpmd_trace.jax_compat import lowering, tracing

tracing.hide_from_locations(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


@paused_collector()
@explains_internal_errors
def trace(
    fn: Callable[..., Any],
    *args: Any,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    meshes: Sequence[Any] = (),
    platform: str | None = None,
    place: Callable[[str], Site] | None = None,
    assigned: Iterable[str] = (),
    parts: int = 1,
    refusal: Callable[[int], str | None] | None = None,
    rewrites: bool = True,
    **kwargs: Any,
) -> Traced:
    """Trace `fn` on example arguments (arrays or `jax.ShapeDtypeStruct`s).

    Args:
        fn: a function of pytrees of arrays.
        *args: its arguments; those at `static_argnums` are passed as they are.
        static_argnums: positions of static arguments.
        donate_argnums: positions of arguments whose buffers may be reused.
        donate_argnames: names of such arguments; positions and names imply each other.
        in_shardings: a pytree prefix of the tuple of dynamic arguments, of NamedSharding, Format or None.
        out_shardings: a pytree prefix of the result, likewise.
        meshes: where `in_shardings` says nothing, committed arguments on one of these keep their sharding.
        platform: what to lower for (`cpu`, `cuda`, `tpu`); by default that of `meshes`, or JAX's default backend.
        place: the mesh and stage of a name: what `jax.checkpoint` recomputes is cut there.  None: nowhere.
        assigned: the names that are assigned, of which ranges of layers cut stacked ones (`scan`).
        parts: into how many parts stacked layers are cut that are not assigned yet.
        refusal: why the program cannot have so many microbatches, as text, or None if it can.
        rewrites: whether to rewrite the program now, and not when it is first asked for.
        **kwargs: keyword arguments, dynamic.

    Raises:
        FrontendError: when an argument is not an array, the program has side effects, a name occurs
            where it cannot be placed, or shardings or positions do not fit.
    """
    given = flatten_arguments.flatten(fn, args, kwargs, static_argnums, donate_argnums, donate_argnames)
    leaves: list[Any] = jax.tree.leaves((tuple(a for i, a in enumerate(args) if i not in given.statics), kwargs))
    with assigned_parts(assigned, parts), microbatches_refused_by(refusal):
        closed, out_kept, out_names, out_tree = _jaxpr(fn, args, kwargs, given, leaves, in_shardings, meshes)
    for text, where in nonlinear_losses(closed):
        warn(text, where or place_of(fn))
    with tracing.known_forms():
        pieces = split(closed, given, out_names, out_tree)
    if pieces is not None:
        closed, given, out_names, out_tree = pieces.closed, pieces.given, pieces.out_names, pieces.out_tree
        leaves = pieces.leaves(leaves, meshes)
        in_shardings = pieces.spread(in_shardings, meshes, results=False)
        out_shardings = pieces.spread(out_shardings, meshes, results=True)
        out_kept = []
    outputs = tuple(Leaf.of(name, aval) for name, aval in zip(out_names, tracing.out_avals(closed), strict=True))
    raise_problems(effect_problems(closed), place_of(fn))

    platform = platform or _platform_of(meshes)
    kept = [arg_shardings.kept_sharding(leaf, meshes) for leaf in leaves]
    layouts = arg_shardings.given_layouts(leaves, meshes)

    def specs(axes: Meshes) -> tuple[Specs, Specs, list[str]]:
        into, bad = arg_shardings.shardings(
            in_shardings, given.in_tree, given.leaves, axes, meshes, "in_shardings", kept, layouts
        )
        out, worse = arg_shardings.shardings(out_shardings, out_tree, outputs, axes, meshes, "out_shardings", out_kept)
        return into, out, [*bad, *worse]

    @paused_collector()
    def rewrite(is_short: bool) -> Rewritten:
        interpreter = MpmdInterpreter(Meshes(m.shape for m in meshes), place, is_short=is_short)
        program = _interpreted(interpreter, closed, given.name, place_of(fn))
        raise_problems([*interpreter.problems, *specs(interpreter.meshes)[2]], place_of(fn))
        return Rewritten(
            program,
            names=dict(sorted(interpreter.names.items())),
            computations=interpreter.computations,
            nested=interpreter.nested,
            recomputed=interpreter.recomputed,
            mesh_ops=interpreter.meshes.ops(),
            is_short=interpreter.repeats,
        )

    in_specs, out_specs, bad = specs(Meshes(m.shape for m in meshes))
    if bad:
        rewrite(True)  # raises them with all others
    sharded_rows = split_rows(closed, given.leaves, arg_shardings.known(in_shardings, given.in_tree, kept))
    for text in uneven_rows(sharded_rows):
        warn(text, place_of(fn))
    returned = returned_arguments(closed)
    in_specs = arg_shardings.staying(in_specs, kept, only_returned(closed), leaves, meshes)
    results_on = functools.partial(divide_results, closed, out_specs)
    out_specs, out_memories = results_on(platform)
    traced = Traced(
        jaxpr=closed,
        in_tree=given.in_tree,
        out_tree=out_tree,
        inputs=given.leaves,
        outputs=outputs,
        constants=tuple(large_constants(closed).values()),
        donated=given.donated,
        in_shardings=in_specs,
        out_shardings=out_specs,
        out_memories=out_memories,
        returned=returned,
        platform=platform,
        name=given.name,
        rewrite=functools.cache(rewrite),
        results_on=results_on,
        stacks=None if pieces is None else pieces.stacks,
        split_rows=sharded_rows,
    )
    if rewrites:
        _ = traced.rewritten
    return traced


def _jaxpr(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: flatten_arguments.Given,
    leaves: list[Any],
    in_shardings: Any,
    meshes: Sequence[Any],
) -> tuple[Any, list[Any], list[str], Any]:
    """Return the jaxpr of `fn`, the shardings of its results, their names and their structure.

    Raises `FrontendError` with what JAX's error says, in terms of the user's function.
    """
    shape: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        result = given.call(fn, leaves)
        named, tree = jax.tree_util.tree_flatten_with_path(result)
        flatten_arguments.check_results(named, place_of(fn))
        shape.append(([flatten_arguments.path_name("result", path) for path, _ in named], tree))
        return [leaf for _, leaf in named]

    tracing.describe(flat, given.name, place_of(fn), [leaf.name for leaf in given.leaves])
    try:
        with jax.disable_jit(False), tracing.known_forms(of_user=True):  # names are jits
            closed, out_kept = explicit_axes.traced(flat, given, leaves, in_shardings, meshes)
    except jax.errors.UnexpectedTracerError as error:
        raise leak(fn, error) from error
    except Exception as error:
        told = explained(error, fn, args, kwargs)
        if told is None:
            raise
        raise told from error
    leaked = [c for c in tracing.opened(closed).consts if isinstance(c, jax.core.Tracer)]
    if leaked:
        raise leak(fn, leaked[0])
    return closed, out_kept, *shape[-1]


def _interpreted(interpreter: MpmdInterpreter, closed: Any, name: str, where: str | None) -> Any:
    """Return the jaxpr with `mpmd` equations.  Raises `FrontendError` for one that is nested too deeply."""
    try:
        with tracing.known_forms():
            return interpreter.program(closed, name)
    except RecursionError:
        limit = sys.getrecursionlimit()
        text = (
            f"names, calls or loops are nested in each other too deeply for Python's recursion limit of {limit}. "
            f"Nest fewer of them, or call sys.setrecursionlimit({4 * limit}) before the step is compiled."
        )
        raise FrontendError([problem(text, where)]) from None


def _platform_of(meshes: Sequence[Any]) -> str:
    """Return the platform of the meshes; JAX's default backend where they say nothing, or several."""
    default = jax.default_backend().replace("gpu", "cuda")
    said = {lowering.platform_of(mesh) for mesh in meshes} - {None}
    return said.pop() or default if len(said) == 1 else default


def check_names(
    traced: Traced, assignments: Mapping[str, Assignment], where: str | None = None, *, is_placed: bool = False
) -> None:
    """Raise one `FrontendError` for every assigned name that does not fit the program; `where` it was assigned.

    Checked: each named computation that is not inside another one is assigned; a name inside a named
    computation has that one's mesh and stage, or none; not all of the names of several meshes are absent, unless
    arguments or results have meshes (`is_placed`, or shardings).  Other assigned names that do not occur are warned of.
    """
    program = traced.rewritten
    problems, unused = name_problems(program.names, program.computations, program.nested, assignments, where)
    raise_problems(problems)
    several = len({assigned.mesh for assigned in assignments.values()}) > 1
    is_placed = is_placed or any(place is not None for place in traced.in_shardings)
    if several and not traced.names and not is_placed:
        raise_problems([without_names(traced.name, assignments)], where)
    for text in unused:
        warn(text, where)
