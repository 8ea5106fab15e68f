"""How many activations each mesh holds, over its own order of actions.

The unit is the activations of one microbatch on one mesh; a chunk of V holds 1/V of it. A
forward takes its share when it starts. A full backward gives it back when it ends. Of a split
backward, the weight-gradient keeps the fraction w of it: 1-w is given back when the
input-gradient ends, w when the weight-gradient ends. w = 1 is the pessimistic count, w = 0 the
optimistic one; a transformer layer has M_B = sb(34h+5as) and M_W = 32sbh (arXiv 2401.10241).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from mpmd_trace.schedules._actions import Step
from mpmd_trace.schedules._errors import ScheduleError

MemoryLimit: TypeAlias = float | Sequence[float]
"""Microbatches of activations, for each mesh the same or one by one."""


def changes(
    order: Iterable[Step], share: Sequence[float], weight_fraction: float, keep: bool = True
) -> Iterator[tuple[float, float]]:
    """For each step of a mesh, (taken at its start, given back at its end).

    Without `keep` no backward follows, and a forward gives back what it took.
    """
    for step in order:
        taken = given = 0.0
        for part in step.parts:
            kind = part.kind
            if kind == "F":
                taken += share[part.stage]
                if not keep:
                    given += share[part.stage]
            elif kind == "B":
                given += share[part.stage]
            elif kind == "I":
                given += share[part.stage] * (1.0 - weight_fraction)
            elif kind == "W":
                given += share[part.stage] * weight_fraction
        yield taken, given


def peak(order: Iterable[Step], share: Sequence[float], weight_fraction: float, keep: bool = True) -> float:
    """Return the most a mesh holds at once. Time plays no part: a mesh does one thing after the other."""
    held = highest = 0.0
    for taken, given in changes(order, share, weight_fraction, keep):
        held += taken
        if held > highest:
            highest = held
        held -= given
    return round(highest, 9)


def per_mesh(meshes: int, memory_limit: MemoryLimit) -> list[float]:
    """Return the limit of each mesh; anything else than numbers of microbatches is a `ScheduleError`."""
    is_list = isinstance(memory_limit, Sequence) and not isinstance(memory_limit, str)
    limits: Sequence[Any] = memory_limit if is_list else [memory_limit] * meshes  # type: ignore[assignment]
    if not all(isinstance(limit, (int, float)) and limit == limit for limit in limits):
        raise ScheduleError(
            f"the memory limit is {memory_limit!r}; it must be a number of microbatches, or one for each mesh"
        )
    if len(limits) != meshes:
        raise ScheduleError(f"{len(limits)} memory limits for {meshes} meshes")
    return [float(limit) for limit in limits]


def limits_of(meshes: int, memory_limit: MemoryLimit | None, default: float) -> list[float]:
    """Return the limit of each mesh; each must hold one microbatch."""
    limits = per_mesh(meshes, default if memory_limit is None else memory_limit)
    for mesh, limit in enumerate(limits):
        if not limit >= 1.0:
            message = f"the memory limit of mesh {mesh} is {limit:g} microbatches; nothing runs with less than 1"
            raise ScheduleError.of("memory", message, row=mesh)
    return limits


def meshes_over(peaks: Sequence[float], memory_limit: MemoryLimit | None) -> list[int]:
    """Return the meshes that hold more than their limit."""
    limits = per_mesh(len(peaks), math.inf if memory_limit is None else memory_limit)
    return [mesh for mesh, (peak, limit) in enumerate(zip(peaks, limits, strict=True)) if peak > limit + 1e-9]
