"""The rows of a batch: how many are cut into microbatches, and those that devices do not divide in a microbatch.

The numbers of microbatches that a program may have divide them.  Where a microbatch has rows that are not sharded as
those of the batch, it loses speed, which nothing else would say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.sharding import NamedSharding

from mpmd_trace.frontend.flatten_arguments import Leaf
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.jax_compat import tracing


class SplitRows(NamedTuple):
    """An argument whose rows are sharded over devices, and are cut into microbatches."""

    name: str
    rows: int
    microbatches: int
    devices: int
    axes: Any


def split_rows(
    closed: tracing.Closed, leaves: Sequence[Leaf], shardings: Sequence[NamedSharding | None]
) -> tuple[SplitRows, ...]:
    """Find the arguments whose rows are sharded and cut into microbatches.

    Args:
        closed: the traced program.
        leaves: its arguments.
        shardings: of each argument, as far as it is known.
    """
    jaxpr = tracing.opened(closed)
    sliced = {v for eqn in jaxpr.eqns for v in _sliced(eqn)}
    places = {v: i for i, v in enumerate(jaxpr.invars)}
    result = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "reshape" or eqn.outvars[0] not in sliced or tracing.is_literal(eqn.invars[0]):
            continue
        place = places.get(eqn.invars[0])
        sharding = None if place is None else shardings[place]
        whole, cut = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        is_cut = len(cut) == len(whole) + 1 > 1 and cut[0] * cut[1] == whole[0] > 0 and cut[2:] == whole[1:]
        if place is None or sharding is None or not is_cut:
            continue
        devices = whole[0] // sharding.shard_shape(whole)[0]
        if devices > 1:
            result.append(SplitRows(leaves[place].name, whole[0], cut[0], devices, sharding.spec[0]))
    return tuple(result)


def uneven_rows(split: Sequence[SplitRows]) -> list[str]:
    """Return what to say of microbatches whose rows the devices do not divide: one text for those that are alike.

    XLA then gathers the rows, and each of these devices computes all of them.
    """
    names: dict[tuple[int, int, int, Any], dict[str, None]] = {}
    for name, *what in split:
        rows, count, devices, axes = what
        if rows // count % devices:
            names.setdefault((rows, count, devices, axes), {})[name] = None
    return [_uneven(", ".join(arrays), *what) for what, arrays in names.items()]


def _sliced(eqn: tracing.Equation) -> Iterator[Any]:
    """Yield the variables that a loop over microbatches slices, outside of the loop; others it takes whole."""
    for scan in _scans(eqn):
        outside = dict(zip(tracing.opened(eqn.params["jaxpr"]).invars, eqn.invars, strict=True))
        for v in tracing.scan_layout(scan).split(scan.invars)[2]:
            if not tracing.is_literal(v) and v in outside and not tracing.is_literal(outside[v]):
                yield outside[v]


def _scans(eqn: tracing.Equation) -> list[tracing.Equation]:
    """Return the scans of a loop over microbatches; none for other equations."""
    tag = tag_of(eqn)
    if tag is None or tag.kind != "loop":
        return []
    return [one for one in tracing.opened(eqn.params["jaxpr"]).eqns if one.primitive.name == "scan"]


def _uneven(names: str, rows: int, count: int, devices: int, axes: Any) -> str:
    """Return what to say of arrays of so many rows, with other numbers of microbatches that come close to `count`."""
    axis = " and ".join(repr(one) for one in (axes if isinstance(axes, tuple) else (axes,)))
    text = (
        f"a microbatch of {names} has {rows // count} rows, which do not divide among the {devices} devices of {axis}, "
        "so each of them computes all rows of a microbatch"
    )
    better = [n for n in range(2, rows // devices + 1) if rows % (n * devices) == 0]
    if better:
        near = sorted(sorted(better, key=lambda n: abs(math.log(n / count)))[:3])
        return (
            f"{text}. Use another number of microbatches ({', '.join(map(str, near))} of {rows} rows), "
            "or fill up the batch with mpmd_trace.pad_rows"
        )
    return f"{text}. Use a batch whose rows divide by {devices} times the number of microbatches (mpmd_trace.pad_rows)"


def batch_rows(closed: tracing.Closed) -> list[int]:
    """Return the numbers of rows of the arrays that the microbatches of a traced program are parts of.

    They are what a loop over microbatches scans, or what calls that are numbered by hand do not share.
    """
    rows: set[int] = set()
    for one in tracing.jaxprs(closed):
        eqns = tracing.opened(one).eqns
        rows.update(_rows_of_calls(eqns))
        for scan in [scan for eqn in eqns if not tracing.transposes(eqn) for scan in _scans(eqn)]:
            shapes = [v.aval.shape for v in tracing.scan_layout(scan).split(scan.invars)[2]]
            rows.update(shape[0] * shape[1] for shape in shapes if len(shape) > 1)
    return sorted(rows)


def _rows_of_calls(eqns: tuple[tracing.Equation, ...]) -> Iterator[int]:
    """Yield the rows of the parts of a batch that calls get, one call for each microbatch."""
    calls: dict[tuple[str, int], list[tracing.Equation]] = {}
    computed: set[Any] = set()  # from the results of calls
    for eqn in eqns:
        tag = tag_of(eqn)
        is_call = tag is not None and tag.kind == "call" and not tracing.transposes(eqn)
        if is_call or any(v in computed for v in eqn.invars if not tracing.is_literal(v)):
            computed.update(eqn.outvars)
        if tag is not None and is_call:
            calls.setdefault((tag.name, len(eqn.invars)), []).append(eqn)
    for several in calls.values():
        for operands in zip(*(eqn.invars for eqn in several), strict=True):
            own = [v for v in operands if not tracing.is_literal(v) and v not in computed]
            if len(set(own)) == len(several) > 1 and own[0].aval.shape:
                yield sum(v.aval.shape[0] for v in own)
