"""`scan` over stacked layers: inside `mpmd_trace.jit`, one scan for each part of the layers that is assigned.

Deep models keep one array per weight, with a leading axis for the layers, and scan over it.  The scan is split here,
while the user's function is traced and before it is differentiated, so its derivatives are split as well.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mpmd_trace.frontend import tags
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.naming import named_computation
from mpmd_trace.jax_compat import tracing

#: The names that are assigned, and in how many parts others are cut, while a program is traced for `mpmd_trace.jit`;
#: None elsewhere.  JAX traces a function again where this differs.
_assigned = jax.make_user_context(None)

_RANGE = re.compile(r"(.+)\[(\d+):(\d+)\]")
_PART = re.compile(r"(.+)\[(\d+)/(\d+)\]")
_MARK = "mpmd_trace.layers="


class _Part(NamedTuple):
    """Layers `start` to `stop - 1`, which are the computation `name`."""

    start: int
    stop: int
    name: str


def assigned_parts(names: Iterable[str], count: int = 1) -> AbstractContextManager[Any]:
    """Within, `scan` is cut as the assigned `names` say, and where none does into `count` parts, as equal as can be.

    With a count of 0, each layer is a part.
    """
    result: AbstractContextManager[Any] = _assigned((tuple(sorted(names)), count))
    return result


def is_assigning() -> bool:
    """Return whether a program is being traced for `mpmd_trace.jit`."""
    return _assigned.value is not None


def equal_parts(name: str, count: int) -> list[str]:
    """Return the names of `count` equal parts of the layers `name`."""
    return [f"{name}[{i}/{count}]" for i in range(count)]


def joined_parts(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return the names with neighboring layers of one scan as a range, or as the scan if they are all of its layers.

    `blocks[0/3]`, `blocks[1/3]` and `head` become `blocks[0:2]` and `head`; beside each result are the names in it.
    """
    result = []
    matches = [(name, _PART.fullmatch(name)) for name in names]
    for of, group in itertools.groupby(matches, lambda pair: pair[1] and (pair[1][1], pair[1][3])):
        layers = [name for name, _ in group]
        if of is None:
            result += [(name, [name]) for name in layers]
            continue
        first = int(_PART.fullmatch(layers[0])[2])  # type: ignore[index]
        whole = len(layers) == int(of[1])
        result.append((of[0] if whole else f"{of[0]}[{first}:{first + len(layers)}]", layers))
    return result


def _ranges(names: Iterable[str]) -> dict[str, list[_Part]]:
    ranges: dict[str, list[_Part]] = {}
    for name in names:
        match = _RANGE.fullmatch(name)
        if match is not None:
            ranges.setdefault(match[1], []).append(_Part(int(match[2]), int(match[3]), name))
    return {name: sorted(parts) for name, parts in ranges.items()}


def range_mistakes(names: Sequence[str]) -> list[str]:
    """Return what is wrong with the ranges of layers among assigned names: gaps, overlaps, a name given in two ways."""
    mistakes = []
    by_parts = {match[1] for name in names if (match := _PART.fullmatch(name))}
    for name, parts in _ranges(names).items():
        others = [repr(name)] if name in names else []
        others += [f"{name!r} as a list"] if name in by_parts else []
        if others:
            mistakes.append(f"{others[0]} is assigned, and {parts[0].name!r}, too. Assign the layers in one way.")
        end = 0
        for part in parts:
            if part.start >= part.stop:
                mistakes.append(f"{part.name!r} has no layers. A range is name[start:stop], without the layer stop.")
            elif part.start > end:
                missing = f"{name}[{end}:{part.start}]"
                mistakes.append(f"{missing!r} is assigned to no mesh, and {part.name!r} is. Assign all layers.")
            elif part.start < end:
                mistakes.append(f"{part.name!r} overlaps with the layers below {end}, which are assigned, too.")
            end = max(end, part.stop)
    twice = [name for name in names if name in by_parts]
    return mistakes + [f"{name!r} is assigned as a whole and as a list. Assign it in one way." for name in twice]


def _parts(name: str, length: int, names: Sequence[str], otherwise: int) -> list[_Part]:
    """Return the parts of `length` layers called `name`, in their order.  Raises `FrontendError`."""
    ranges = _ranges(names).get(name)
    if ranges is not None:
        if ranges[-1].stop != length:
            raise mistake(
                f"the scan {name!r} has {length} layers, and the ranges assigned end at {ranges[-1].stop} "
                f"({', '.join(repr(part.name) for part in ranges)}). Assign as many as there are."
            )
        return ranges
    otherwise = otherwise or length
    counts = {int(match[3]) for one in names if (match := _PART.fullmatch(one)) and match[1] == name}
    if not counts and (otherwise == 1 or name in names or length < otherwise):
        return [_Part(0, length, name)]
    count = min(counts, default=otherwise)
    if length < count:
        raise mistake(
            f"the scan {name!r} has {length} layers, which cannot be cut into {count} parts. Assign {length} meshes or "
            "fewer."
        )
    if length % count:
        cuts = [i * length // count for i in range(count + 1)]
        near = [_Part(a, b, f"{name}[{a}:{b}]") for a, b in itertools.pairwise(cuts)]
        if not counts:
            return near
        ways = ", ".join(f'"{part.name}": ...' for part in near)
        raise mistake(
            f"the {length} layers of the scan {name!r} cannot be cut into {count} equal parts. Give ranges: "
            f"{{{ways}}}, or a list of as many meshes as divide {length}."
        )
    size = length // count
    return [_Part(i * size, (i + 1) * size, one) for i, one in enumerate(equal_parts(name, count))]


def bounds_of(eqn: tracing.Equation) -> tuple[int, ...] | None:
    """For an equation that cuts or joins the layers of a scan, where they are cut: `(0, 4, 8)`; else None."""
    for scope in tracing.scopes(eqn):
        if scope.startswith(_MARK):
            return tuple(map(int, scope[len(_MARK) :].split("-")))
    return None


@tracing.per_jaxpr
def has_marks(closed: tracing.Closed) -> bool:
    """Return whether the program cuts the layers of a scan."""
    return any(
        (eqn.primitive.name == "slice" and bounds_of(eqn) is not None) or any(map(has_marks, tracing.subjaxprs(eqn)))
        for eqn in tracing.opened(closed).eqns
    )


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    name: str,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """Run `jax.lax.scan` over layers that may be on several meshes.

    Inside `mpmd_trace.jit` it becomes one scan for each part that a configuration assigns:
    `{"blocks[0:4]": "m0", "blocks[4:8]": "m1"}`, or `{"blocks": ["m0", "m1"]}` for equal parts; with
    `{"blocks": "m0"}` it remains one scan.  Each mesh then holds only its own slices of `xs`, and of gradients and
    optimizer states that are computed from them (`docs/stacked.md`).  Elsewhere it is `jax.lax.scan`.

    Args:
        body: a function of the carry and one slice of `xs`; returns the carry and an output.
        init: the first carry, a pytree of arrays.
        xs: a pytree of arrays with a leading axis for the layers, or None.
        length: the number of layers, if `xs` is None.
        name: the name of the layers; several scans may have the same name.
        reverse: whether to run the last layer first.
        unroll: the number of layers to run in one iteration of each scan.

    Returns:
        The last carry, and the outputs along a new first axis.

    Raises:
        FrontendError: for an invalid name, or parts that do not match the number of layers.
    """
    tags.check_name(name, "scan")
    assigned = _assigned.value
    lengths = {int(jnp.shape(x)[0]) for x in jax.tree.leaves(xs) if jnp.ndim(x)}
    lengths |= set() if length is None else {length}
    if assigned is None or len(lengths) != 1:  # JAX says what is wrong with the lengths
        plain: tuple[Any, Any] = lax.scan(body, init, xs, length, reverse=reverse, unroll=unroll)
        return plain
    parts = _parts(name, lengths.pop(), *assigned)
    if len(parts) == 1:
        whole: tuple[Any, Any] = _scan_of(body, parts[0], reverse, unroll)(init, xs)
        return whole
    mark = _MARK + "-".join(str(bound) for bound in (0, *(part.stop for part in parts)))
    with jax.named_scope(mark):
        slices = [jax.tree.map(lambda x, p=p: lax.slice_in_dim(jnp.asarray(x), p.start, p.stop), xs) for p in parts]
    outputs: dict[int, Any] = {}
    carry = init
    order = range(len(parts))
    for i in reversed(order) if reverse else order:
        carry, outputs[i] = _scan_of(body, parts[i], reverse, unroll)(carry, slices[i])
    with jax.named_scope(mark):
        joined = jax.tree.map(lambda *ys: jnp.concatenate(ys), *(outputs[i] for i in order))
    return carry, joined


def _scan_of(body: Callable[..., Any], part: _Part, reverse: bool, unroll: int | bool) -> Callable[..., Any]:
    """Return the scan over one part, which is a computation of its own."""

    def run(carry: Any, xs: Any) -> Any:
        return lax.scan(body, carry, xs, part.stop - part.start, reverse=reverse, unroll=unroll)

    return named_computation(run, name=part.name)
