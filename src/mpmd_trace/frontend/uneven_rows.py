"""Batches whose rows are sharded, but not those of a microbatch: a loss of speed that nothing else would say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.sharding import NamedSharding

from mpmd_trace.frontend.arguments import Leaf
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.jax_compat import tracing

__all__ = ["uneven_rows"]


def uneven_rows(
    closed: tracing.Closed, leaves: Sequence[Leaf], shardings: Sequence[NamedSharding | None]
) -> Iterator[str]:
    """Find batches cut into microbatches of so many rows that the devices along their first axis do not divide them.

    XLA then gathers the rows, and each of these devices computes all of them.

    Args:
        closed: the traced program.
        leaves: its arguments.
        shardings: of each argument, as far as it is known.

    Returns:
        What to say of each such argument.
    """
    jaxpr = tracing.opened(closed)
    looped = {
        v
        for eqn in jaxpr.eqns
        if (tag := tag_of(eqn)) is not None and tag.kind == "loop"
        for v in eqn.invars
        if not tracing.is_literal(v)
    }
    places = {v: i for i, v in enumerate(jaxpr.invars)}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "reshape" or eqn.outvars[0] not in looped:
            continue
        place = None if tracing.is_literal(eqn.invars[0]) else places.get(eqn.invars[0])
        sharding = None if place is None else shardings[place]
        whole, cut = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        if place is None or sharding is None or cut[2:] != whole[1:]:
            continue
        devices = whole[0] // sharding.shard_shape(whole)[0]
        if cut[1] % devices:
            yield _text(leaves[place].name, whole[0], cut[0], devices, sharding.spec[0])


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
