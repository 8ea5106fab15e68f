"""A plan's instructions as they show in a profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mpmd_trace.backend.plan import Plan, Run, Transfer
from mpmd_trace.backend.steps import Call
from mpmd_trace.jax_compat.profiling import annotation


def annotated_calls(
    plan: Plan, instructions: Sequence[Run | Transfer], groups: Sequence[Sequence[int]], calls: Sequence[Call]
) -> list[Call]:
    """Return the call of each group of instructions, issued under an annotation that says what it is.

    Runs of one program are numbered from 0 on each mesh: with one program for all microbatches, that is the number of
    the microbatch in schedules that take them in order.
    """
    seen: Counter[int] = Counter()
    result = []
    for group, call in zip(groups, calls, strict=True):
        first = instructions[group[0]]
        if isinstance(first, Run):
            name = f"{plan.programs[first.program].callee} on {first.mesh}"
            details = {"run": seen[first.program], "names": first.label}
            seen[first.program] += 1
        else:
            moves = [i for i in (instructions[at] for at in group) if isinstance(i, Transfer)]
            name = "transfer " + ", ".join(dict.fromkeys(f"{i.source} to {i.target}" for i in moves))
            details = {"values": sum(len(i.outputs) for i in moves)}
        result.append(_annotated(call, name, details))
    return result


def _annotated(call: Call, name: str, details: dict[str, Any]) -> Call:
    def annotated(arrays: Sequence[Any]) -> Sequence[Any]:
        with annotation(name, **details):
            return call(arrays)

    return annotated
