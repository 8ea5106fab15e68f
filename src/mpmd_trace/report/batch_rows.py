"""How many rows a program cuts into microbatches, which is what other numbers of microbatches must divide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.jax_compat import tracing


def batch_rows(closed: tracing.Closed) -> list[int]:
    """Return the numbers of rows of the arrays that the microbatches of a traced program are parts of.

    They are what a loop over microbatches scans, or what calls that are numbered by hand do not share.
    """
    rows: set[int] = set()
    for one in tracing.jaxprs(closed):
        eqns = tracing.opened(one).eqns
        rows.update(_of_calls(eqns))
        for eqn in eqns:
            tag = tag_of(eqn)
            if tag is not None and tag.kind == "loop" and not tracing.transposes(eqn):
                rows.update(_of_loop(eqn))
    return sorted(rows)


def _of_loop(loop: tracing.Equation) -> Iterator[int]:
    for body in tracing.subjaxprs(loop):
        for eqn in tracing.opened(body).eqns:
            if eqn.primitive.name == "scan":
                layout = tracing.scan_layout(eqn)
                shapes = [v.aval.shape for v in layout.split(eqn.invars)[2]]
                yield from (shape[0] * shape[1] for shape in shapes if len(shape) > 1)


def _of_calls(eqns: tuple[tracing.Equation, ...]) -> Iterator[int]:
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
