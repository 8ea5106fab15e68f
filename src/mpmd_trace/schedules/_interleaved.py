"""Schedules with several chunks of the model on each mesh, placed in a loop.

Stage c*P + r is chunk c of mesh r. Sources: interleaved 1F1B (Megatron-LM, arXiv 2104.04473),
looped BFS (arXiv 2211.05953), the circular orders of Shardy MPMD, the zero-bubble variant of
torch's pipelining package, the KimiK2 variant of JaxPP.
"""

from __future__ import annotations

import math

from mpmd_trace.schedules._actions import Action
from mpmd_trace.schedules._engine import stuck_heads
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._gpipe_1f1b import alternate
from mpmd_trace.schedules._program import build
from mpmd_trace.schedules._schedule import Placement, Schedule, make
from mpmd_trace.schedules._zero_bubble import split_backwards


def group_size_for(meshes: int, microbatches: int, group_size: int | None) -> int:
    """Microbatches per round: the given number, or as many rounds of at least P as fit."""
    if group_size is None:
        return math.ceil(microbatches / max(1, microbatches // meshes))
    if group_size < min(meshes, microbatches):
        message = (
            f"group size {group_size} is smaller than the {meshes} meshes, so a chunk would wait "
            "for its own output to come round"
        )
        raise ScheduleError.of("range", message, hint=f"use a group size of at least {min(meshes, microbatches)}")
    return min(group_size, microbatches)


#: (chunk, microbatch) of what each mesh does.
_Table = list[tuple[int, int]]


def depth_first(microbatches: int, chunks: int, group: int) -> _Table:
    """Return a group of forwards through all chunks, then the next group.

    The last group holds what is left over.
    """
    return [
        (chunk, m)
        for start in range(0, microbatches, group)
        for chunk in range(chunks)
        for m in range(start, min(start + group, microbatches))
    ]


def interleaved_1f1b(meshes: int, microbatches: int, chunks: int = 2, group_size: int | None = None) -> Schedule:
    """1F1B over V chunks per mesh, depth first; the last group may be ragged."""
    return _interleaved("interleaved-1f1b", meshes, microbatches, chunks, group_size, extra=0)


def kimi_k2(meshes: int, microbatches: int, chunks: int = 2, group_size: int | None = None) -> Schedule:
    """Interleaved 1F1B with one more warm-up forward, which leaves room to overlap transfers."""
    return _interleaved("kimi-k2", meshes, microbatches, chunks, group_size, extra=1)


def _interleaved(
    name: str, meshes: int, microbatches: int, chunks: int, group_size: int | None, extra: int
) -> Schedule:
    group = group_size_for(meshes, microbatches, group_size)
    schedule = _depth_first(name, meshes, microbatches, chunks, group, extra)
    rest = microbatches % group
    if 0 < rest < meshes and stuck_heads(build(schedule)):
        # A last group smaller than the pipeline can wait for its own output. Filling it up and
        # leaving the surplus out again cannot: whole microbatches do not wait for each other.
        full = _depth_first(name, meshes, microbatches - rest + group, chunks, group, extra)
        orders = [[step for step in order if step.parts[0].microbatch < microbatches] for order in full.orders]
        schedule = make(name, orders, schedule.placement, microbatches)
    return schedule


def _depth_first(name: str, meshes: int, microbatches: int, chunks: int, group: int, extra: int) -> Schedule:
    table = depth_first(microbatches, chunks, group)
    orders = []
    for r in range(meshes):
        fwd = [Action(c * meshes + r, "F", m) for c, m in table]
        bwd = [[Action((chunks - 1 - c) * meshes + r, "B", m)] for c, m in table]
        orders.append(alternate(fwd, (chunks - 1) * group + 2 * (meshes - 1 - r) + extra + 1, bwd))
    return make(name, orders, Placement.loop(meshes, chunks), microbatches)


def interleaved_zero_bubble(meshes: int, microbatches: int, chunks: int = 2, group_size: int | None = None) -> Schedule:
    """Interleaved 1F1B with split backwards and half the warm-up.

    Mesh r holds back r weight-gradients, which fill its gaps at the end.
    """
    group = group_size_for(meshes, microbatches, group_size)
    table = depth_first(microbatches, chunks, group)
    orders = []
    for r in range(meshes):
        fwd = [Action(c * meshes + r, "F", m) for c, m in table]
        bwd = split_backwards([((chunks - 1 - c) * meshes + r, m) for c, m in table], r)
        orders.append(alternate(fwd, (chunks - 1) * group + meshes - r, bwd))
    return make("interleaved-zero-bubble", orders, Placement.loop(meshes, chunks), microbatches)


def looped_bfs(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Breadth first: every microbatch through one chunk, then the next chunk.

    The backward takes chunks and microbatches in descending order.
    """
    table = depth_first(microbatches, chunks, microbatches)
    return _in_two_phases("looped-bfs", meshes, microbatches, chunks, table, table[::-1])


def circular(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Return a schedule of groups of P microbatches through all chunks, then of their backwards, in order."""
    table = depth_first(microbatches, chunks, meshes)
    back = [(chunks - 1 - c, m) for c, m in table]
    return _in_two_phases("circular", meshes, microbatches, chunks, table, back)


def circular_with_reversed_backward(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Circular, with the backwards in exactly the reverse order of the forwards."""
    table = depth_first(microbatches, chunks, meshes)
    return _in_two_phases("circular-with-reversed-backward", meshes, microbatches, chunks, table, table[::-1])


def _in_two_phases(
    name: str, meshes: int, microbatches: int, chunks: int, forwards: _Table, backwards: _Table
) -> Schedule:
    """Return all forwards, then all backwards."""
    orders: list[list[Action]] = []
    for r in range(meshes):
        orders.append([Action(c * meshes + r, "F", m) for c, m in forwards])
        orders[-1] += [Action(c * meshes + r, "B", m) for c, m in backwards]
    return make(name, orders, Placement.loop(meshes, chunks), microbatches)
