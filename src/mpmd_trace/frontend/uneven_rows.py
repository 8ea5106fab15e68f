"""Batches whose rows are sharded, but not those of a microbatch: a loss of speed that nothing else would say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.sharding import NamedSharding

from mpmd_trace.frontend.arguments import Leaf
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
    return [_text(", ".join(arrays), *what) for what, arrays in names.items()]


def _sliced(eqn: tracing.Equation) -> Iterator[Any]:
    """Find what a loop over microbatches takes a slice of for each: not what all of them get whole."""
    tag = tag_of(eqn)
    if tag is None or tag.kind != "loop":
        return
    inside = tracing.opened(eqn.params["jaxpr"])
    outside = dict(zip(inside.invars, eqn.invars, strict=True))
    for scan in inside.eqns:
        if scan.primitive.name == "scan":
            loop = tracing.scan_layout(scan)
            for v in scan.invars[loop.constants + loop.carries :]:
                if not tracing.is_literal(v) and v in outside and not tracing.is_literal(outside[v]):
                    yield outside[v]


def _text(name: str, rows: int, count: int, devices: int, axes: Any) -> str:
    axis = " and ".join(repr(one) for one in (axes if isinstance(axes, tuple) else (axes,)))
    text = (
        f"a microbatch of {name} has {rows // count} rows, which do not divide among the {devices} devices of {axis}, "
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
