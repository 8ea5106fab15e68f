"""Models and optimizer states on the meshes of a compiled program: moved there, or created there."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import ArgInfo

from mpmd_trace.api.compiled import Compiled
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.backend.arguments import put_apart
from mpmd_trace.backend.stacked import Pieces, PiecesType, check_not_deleted
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError, raise_errors
from mpmd_trace.frontend.flatten_arguments import listed_positions, path_name
from mpmd_trace.frontend.statics import Statics, divided, join
from mpmd_trace.jax_compat.layouts import elsewhere, place_of, put
from mpmd_trace.jax_compat.refs import array_in, is_ref, replace_array

_NUMBERS = (bool, int, float, complex)


def abstract(compiled: Compiled, argnums: int | Sequence[int] = 0) -> Any:
    """Return the argument at `argnums` (a tuple for several), with shapes, dtypes and shardings instead of arrays.

        like = abstract(compiled, (0, 1))  # the first two arguments of the step: (model, opt_state)

    Leaves that are not arrays have the values for which the program was compiled.
    """
    if not isinstance(compiled, Compiled):
        raise MpmdError(
            f"this needs a compiled program, not a {type(compiled).__name__}; pass what jitted.lower(*args).compile() "
            "returns"
        )
    inputs = compiled.function_types.inputs[0]
    numbers = listed_positions(argnums, "argnums")
    bad = [n for n in numbers if not -len(inputs) <= n < len(inputs)]
    if bad:
        raise MpmdError(f"the program takes {len(inputs)} positional arguments, so there is no argument {bad[0]}")
    return inputs[argnums] if isinstance(argnums, int) else tuple(inputs[n] for n in numbers)


@explains_internal_errors
def place(compiled: Compiled, *args: Any, argnums: int | Sequence[int] | None = None) -> tuple[Any, ...]:
    """Move arguments of a program to its meshes, with its shardings; return them.

        model, opt_state = place(compiled, model, opt_state)  # the first two arguments of the step
        model, opt_state = place(compiled, model, opt_state, argnums=(1, 2))  # of a step that takes the batch first

    A Ref is returned itself, and its array is moved.  An array that is given twice, and donated by the program, becomes
    two arrays.

    Args:
        compiled: the program.
        *args: the arguments to move.
        argnums: their positions among the arguments of the program; by default, they are the first ones.

    Raises:
        MpmdError: if an argument has another structure, shape or dtype than the program was compiled for, or is gone,
            or if there are more or fewer `argnums` than `args`.
    """
    numbers = tuple(range(len(args))) if argnums is None else listed_positions(argnums, "argnums")
    if len(numbers) != len(args):
        raise MpmdError(f"argnums has {len(numbers)} positions for {len(args)} arguments; give one for each")
    wanted = abstract(compiled, numbers)
    compiled.program.check_attached()
    check_not_deleted(args)
    given = jax.tree.leaves(args)
    arrays = jax.tree.map(lambda x: array_in(x) if is_ref(x) else x, args)
    leaves, structure = _matched(wanted, arrays, compiled)
    # Layers in unequal pieces have no sharding of the whole; the program takes them from where they are.
    moved = [i for i, (_, spec) in enumerate(leaves) if is_dynamic(spec) and spec.sharding is not None]
    infos = jax.tree.leaves([compiled.args_info[0][n] for n in numbers], is_leaf=lambda x: isinstance(x, ArgInfo))
    donated = {at for at, i in enumerate(moved) if infos[i].donated}
    there = put_apart([leaves[i][0] for i in moved], [leaves[i][1] for i in moved], donated)
    placed = [x for x, _ in leaves]
    for i, x in zip(moved, there, strict=True):
        placed[i] = x
    for i, x in enumerate(given):
        if is_ref(x):
            replace_array(x, placed[i])
            placed[i] = x
    result: tuple[Any, ...] = jax.tree.unflatten(structure, placed)
    return result


@explains_internal_errors
def create(fn: Callable[..., Any], compiled: Compiled, *args: Any, argnums: int | Sequence[int] = 0) -> Any:
    """Compute `fn(*args)`, and create each array on the devices where the program needs it.

    Use it for models that are too large for one device.  `fn` runs once per mesh, and creates only the arrays of this
    mesh, so no device ever holds more than its part.

        model = create(lambda key: Model(key), compiled, jax.random.key(0))
        model, opt_state = create(init, compiled, key, argnums=(0, 1))

    Args:
        fn: a function that returns the argument at `argnums`, or a tuple for several.
        compiled: the program.
        *args: the arguments of `fn`.
        argnums: the positions of the arguments of the program to create.

    Raises:
        MpmdError: if `fn` returns something else than what the program was compiled for.
    """
    wanted = abstract(compiled, argnums)
    compiled.program.check_attached()
    dynamic, static = divided(args, is_dynamic)
    made: list[Statics] = []  # what `fn` returned last

    def make_all(dynamic: Sequence[Any]) -> list[Any]:
        arrays, rest = divided(fn(*join(dynamic, static)), is_dynamic)
        made[:] = [rest]
        return arrays

    shape = join(jax.eval_shape(make_all, dynamic), made[0])
    leaves, structure = _matched(wanted, shape, compiled)

    make = jax.jit(make_all)
    specs = [spec for _, spec in leaves if is_dynamic(spec)]
    #: What is made: which of the arrays, which part of it, and its type.
    parts: list[tuple[int, Callable[[jax.Array], jax.Array], Any]] = []
    for i, spec in enumerate(specs):
        if isinstance(spec, PiecesType):
            cuts = zip(itertools.pairwise(spec.bounds), spec.parts, strict=True)
            parts += [(i, functools.partial(_layers, axis=spec.axis, rows=rows), one) for rows, one in cuts]
        else:
            parts.append((i, lambda x: x, spec))
    done: list[Any] = [None] * len(parts)
    for mesh, numbers in _by_mesh([spec for _, _, spec in parts]).items():
        if all(d.process_index != jax.process_index() for d in mesh.devices.flat):
            for n in numbers:
                done[n] = elsewhere(parts[n][2])
            continue
        own = [parts[n] for n in numbers]

        def make_own(given: Any, own: Any = own) -> list[jax.Array]:
            """Return the arrays of this mesh; `make` is traced once, and XLA drops what they do not need."""
            whole = make(given)
            return [cut(whole[i]) for i, cut, _ in own]

        here = [place_of(spec) for _, _, spec in own]
        given = _everywhere(dynamic, NamedSharding(mesh, PartitionSpec()))
        for n, array in zip(numbers, jax.jit(make_own, out_shardings=here)(given), strict=True):
            done[n] = array
    left = iter(done)
    arrays = [
        Pieces(spec.bounds, [next(left) for _ in spec.parts], spec.axis) if isinstance(spec, PiecesType) else next(left)
        for spec in specs
    ]
    fill = iter(arrays)
    return jax.tree.unflatten(structure, [next(fill) if is_dynamic(spec) else x for x, spec in leaves])


def _layers(x: jax.Array, axis: int, rows: tuple[int, int]) -> jax.Array:
    return jax.lax.slice_in_dim(x, *rows, axis=axis)


def _everywhere(arrays: list[Any], sharding: NamedSharding) -> list[Any]:
    if sharding.is_fully_addressable:
        result: list[Any] = jax.device_put(arrays, sharding)
        return result
    types = [jax.typeof(x) for x in arrays]
    specs = [jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=sharding) for t in types]
    return [put(x, spec) for x, spec in zip(arrays, specs, strict=True)]


def _by_mesh(specs: Sequence[Any]) -> dict[Any, list[int]]:
    by_mesh: dict[Any, list[int]] = {}
    for i, spec in enumerate(specs):
        by_mesh.setdefault(spec.sharding.mesh, []).append(i)
    return by_mesh


def _matched(wanted: Any, given: Any, compiled: Compiled) -> tuple[list[tuple[Any, Any]], Any]:
    """Pairs (leaf, wanted leaf), and the structure.  Raises `MpmdError` where they do not fit."""
    theirs, structure = jax.tree_util.tree_flatten_with_path(given)
    ours = jax.tree_util.tree_leaves_with_path(wanted)
    if len(theirs) == len(ours):  # a number where the program takes an array is one, as in a call
        pairs = zip(theirs, ours, strict=True)
        theirs = [(p, jnp.asarray(x) if is_dynamic(s) and isinstance(x, _NUMBERS) else x) for (p, x), (_, s) in pairs]
    name = compiled.lowered.traced.name
    if jax.tree.structure(wanted) != structure:
        before = {jax.tree_util.keystr(p) for p, _ in ours}
        after = {jax.tree_util.keystr(p) for p, _ in theirs}
        listed = [f"  missing: {p or 'the value'}" for p in sorted(before - after)]
        listed += [f"  unknown: {p or 'the value'}" for p in sorted(after - before)]
        more = "\n".join(listed[:8]) or f"  {structure}\ninstead of\n  {jax.tree.structure(wanted)}"
        raise MpmdError(
            f"this is not the structure that {name} was compiled for:\n{more}\nGive the arguments of the "
            "program in their order, and choose others with argnums."
        )
    problems = []
    for (path, x), (_, spec) in zip(theirs, ours, strict=True):
        where = path_name("", path) or "the value"
        if is_dynamic(spec) != is_dynamic(x):
            problems.append(f"{where} is {x!r}, and {name} was compiled for {spec!r}")
        elif is_dynamic(spec) and (x.shape, x.dtype) != (spec.shape, spec.dtype):
            problems.append(
                f"{where} is {x.dtype}{list(x.shape)}, and {name} was compiled for {spec.dtype}{list(spec.shape)}"
            )
    raise_errors(problems)
    return [(x, spec) for (_, x), (_, spec) in zip(theirs, ours, strict=True)], structure
