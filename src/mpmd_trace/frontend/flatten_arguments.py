"""Flattening of the arguments of a program, with their names and donation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.frontend import mutation
from mpmd_trace.frontend.errors import FrontendError, mistake, place_of, problem, raise_problems
from mpmd_trace.frontend.functions import labels, name_of, parameters_of, positional_names
from mpmd_trace.frontend.tags import listed
from mpmd_trace.jax_compat import tracing


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One array among the arguments or results."""

    #: Where it is, such as `model.layers[0].weight`.
    name: str
    #: Shape and dtype as the user sees them; typed keys keep their key dtype.
    struct: jax.ShapeDtypeStruct
    #: The PRNG of a typed key (`threefry2x32`), None for other arrays.
    key_impl: str | None
    #: Shape and dtype of the array in the compiled program (the key data of a typed key).
    physical: tuple[tuple[int, ...], str]

    @staticmethod
    def of(name: str, aval: Any) -> Leaf:
        """Return the leaf called `name` of the type `aval`."""
        impl = tracing.key_implementation(aval) if tracing.is_key(aval) else None
        return Leaf(name, tracing.struct(aval), impl, tracing.physical(aval))

    def rows(self, axis: int, start: int, stop: int) -> Leaf:
        """Rows `start` to `stop` of it, along an axis."""
        struct, (shape, dtype), size = self.struct, self.physical, stop - start

        def resized(shape: tuple[int, ...]) -> tuple[int, ...]:
            return *shape[:axis], size, *shape[axis + 1 :]

        part = jax.ShapeDtypeStruct(resized(struct.shape), struct.dtype, weak_type=struct.weak_type)
        return Leaf(rows_name(self.name, axis, start, stop), part, self.key_impl, (resized(shape), dtype))


def rows_name(name: str, axis: int, start: int, stop: int) -> str:
    """Return the name of rows of an array, as one would write them."""
    return f"{name}[{':, ' * axis}{start}:{stop}]"


def path_name(root: str, path: Sequence[Any]) -> str:
    """Return the name of the leaf at `path` of the value called `root`."""
    return f"{root}{jax.tree_util.keystr(tuple(path))}"


@dataclasses.dataclass(frozen=True)
class Given:
    """The arguments of one call of the user's function."""

    name: str
    leaves: tuple[Leaf, ...]
    in_tree: Any
    donated: tuple[int, ...]
    statics: dict[int, Any]

    def call(self, fn: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        """Return `fn` on arguments whose arrays are `leaves`."""
        dynamic, kwargs = jax.tree.unflatten(self.in_tree, leaves)
        fill = iter(dynamic)
        count = len(dynamic) + len(self.statics)
        args = [self.statics[i] if i in self.statics else next(fill) for i in range(count)]
        return mutation.kept(fn, tuple(args), kwargs, "mpmd_trace.jit", "mpmd_trace.nnx.jit")


def flatten(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int],
    donate_argnums: int | Sequence[int],
    donate_argnames: str | Sequence[str] = (),
) -> Given:
    """Return the flat dynamic arguments of `fn(*args, **kwargs)`.

    Raises:
        FrontendError: for positions out of range, unknown names, arguments both static and donated, and
            leaves that are not arrays.
    """
    if not callable(fn):
        raise mistake(f"trace needs a function, got {type(fn).__name__}: {fn!r}.")
    name = name_of(fn)
    static = _positions(static_argnums, len(args), "static_argnums", fn)
    donate, donated_names = _donations(donate_argnums, donate_argnames, len(args), kwargs, fn)
    both = sorted(static & donate)
    if both:
        raise FrontendError([problem(f"arguments {both} of {name} are both static and donated.", place_of(fn))])
    names = labels(fn, len(args))
    dynamic = [(names[i], a, i in donate) for i, a in enumerate(args) if i not in static]
    dynamic += [(k, kwargs[k], k in donated_names) for k in sorted(kwargs)]
    leaves: list[Leaf] = []
    donated: list[int] = []
    problems: list[str] = []
    for label, value, gives in dynamic:
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            where = path_name(label, path)
            aval = _type_of(leaf)
            if aval is None:
                problems.append(_not_an_array(where, leaf))
                continue
            if gives:
                donated.append(len(leaves))
            leaves.append(Leaf.of(where, aval))
    raise_problems(problems, place_of(fn))
    in_tree = jax.tree.structure((tuple(a for i, a in enumerate(args) if i not in static), kwargs))
    return Given(name, tuple(leaves), in_tree, tuple(donated), {i: args[i] for i in sorted(static)})


def listed_positions(positions: object, what: str) -> tuple[int, ...]:
    """Return `positions` of arguments, one or several or None, as a tuple; `what` names them in the error."""
    wanted = f"{what} are positions of arguments, one int or several"
    return tuple(map(int, listed(positions, int | np.integer, wanted)))


def _positions(positions: int | Sequence[int], count: int, what: str, fn: Callable[..., Any]) -> frozenset[int]:
    numbers = listed_positions(positions, what)
    bad = [p for p in numbers if not -count <= p < count]
    if bad:
        text = f"{what} {bad} are out of range: {name_of(fn)} was given {count} arguments."
        raise FrontendError([problem(text, place_of(fn))])
    return frozenset(p % count for p in numbers)


def _donations(
    positions: int | Sequence[int], names: object, count: int, kwargs: dict[str, Any], fn: Callable[..., Any]
) -> tuple[frozenset[int], frozenset[str]]:
    """Return the donated positional and keyword arguments; it makes no difference how a parameter is passed."""
    wanted = listed(names, str, "donate_argnames are names of arguments, one or several")
    numbers = listed_positions(positions, "donate_argnums")
    parameters = parameters_of(fn) or []
    positional = positional_names(parameters)
    known = {p.name for p in parameters} | set(kwargs)
    unknown = [n for n in wanted if n not in known and not any(p.kind is p.VAR_KEYWORD for p in parameters)]
    if unknown:
        takes = [p.name for p in parameters]
        text = f"donate_argnames {unknown} are not arguments of {name_of(fn)}, which takes {takes}."
        raise FrontendError([problem(text, place_of(fn))])
    # A parameter that was given by keyword, or not at all, is in range.
    there = [n for n in numbers if not count <= n < len(positional)]
    result = _positions(there, count, "donate_argnums", fn)
    by_name = {positional.index(n) for n in wanted if n in positional}
    by_number = {positional[n] for n in numbers if 0 <= n < len(positional)}
    return result | {n for n in by_name if n < count}, frozenset(wanted) | by_number


def _type_of(leaf: Any) -> Any:
    """Return the abstract value of an argument leaf, None when it is not an array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        weak = bool(getattr(leaf, "weak_type", False))
        return jax.core.ShapedArray(leaf.shape, leaf.dtype, weak_type=weak)
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        return None
    try:
        aval = jax.typeof(leaf)
    except (TypeError, ValueError, OverflowError):
        return None
    return jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=bool(aval.weak_type))


def _not_an_array(where: str, leaf: Any) -> str:
    if isinstance(leaf, int):
        return f"argument {where} is {leaf}, which is too large for an int of JAX. Pass an array or a float."
    return (
        f"argument {where} is not an array but a {type(leaf).__name__}: {_short(leaf)}. Make the "
        "argument static (static_argnums), or split arrays from the rest first "
        "(mpmd_trace.filter_jit does so for Equinox modules and other pytrees; filter_jit=True in a Program)."
    )


#: Stands for None in a prefix.
_NOTHING = object()


def spread_prefix(prefix: Any, numbers: Any, what: str) -> dict[int, Any]:
    """Return what a pytree prefix says of each leaf of a pytree of numbers, by number; None says nothing.

    Raises:
        ValueError: where it does not fit; `what` is its name there.
    """
    result: dict[int, Any] = {}
    # JAX takes None for a tree without leaves, and would say that it does not fit where something else does not.
    prefix = jax.tree.map(lambda one: _NOTHING if one is None else one, prefix, is_leaf=lambda x: x is None)
    try:
        jax.tree.map(lambda one, below: result.update(dict.fromkeys(jax.tree.leaves(below), one)), prefix, numbers)
    except ValueError as error:
        raise ValueError(str(error).replace("tree_map tree", what)) from None
    return {number: one for number, one in result.items() if one is not _NOTHING}


def one_line(error: Exception) -> str:
    """Return what JAX says about pytrees that do not fit, which takes many lines, on one."""
    text = " ".join(str(error).split())
    return text if len(text) <= 400 else text[:397] + "..."


def _short(value: Any) -> str:
    text = repr(value)
    if re.search(r" at 0x[0-9a-f]+", text):  # an address tells nothing
        text = getattr(value, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", text)
    return text if len(text) <= 80 else text[:77] + "..."


def check_results(named: Sequence[tuple[Any, Any]], where: str | None = None) -> None:
    """Raise a `FrontendError` at `where` when a result is not an array."""
    raise_problems(
        (
            f"{path_name('result', path)} is not an array but a {type(leaf).__name__}: {_short(leaf)}. Return only "
            "arrays (eqx.partition splits a module)."
            for path, leaf in named
            if _type_of(leaf) is None
        ),
        where,
    )
