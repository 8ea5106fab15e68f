"""V-Half and V-Min: a building block of six slots, repeated for every microbatch.

Source: controllable memory (arXiv 2405.15362). Chunk 0 of mesh r is stage r, chunk 1 is stage
2P-1-r. In one block each mesh has one slot for F, I and W of both chunks, and the block returns
every six slots; from mesh to mesh a slot moves by a fixed step, so that activations live equally
long on every mesh. How long decides the memory: with L chunks per mesh, the two activations of a
microbatch live 6L-8 slots together, which leaves no choice but that of the step.

Before the block has filled up, and when it runs dry, most of its slots are empty. Forwards and
backwards that are ready move up into those, as far as the memory of the block allows; the
weight-gradients fill what is left. The bubble is then 6P-1-3L chunk times for L up to about 3P/2
(23, 17 and 11 for 8, 10 and 12 chunks on 8 meshes) and little more above.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence

from mpmd_trace.schedules._actions import Action, Step
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._memory import MemoryLimit, per_mesh
from mpmd_trace.schedules._schedule import Placement, Schedule, make
from mpmd_trace.schedules._v_building_block import SLOTS, WEIGHT, Block, play, timed
from mpmd_trace.schedules._zero_bubble import zb_v

PAIRS_PER_TRY = 8000
"""Small pipelines try several blocks; one more for every so many forwards that they save."""


def v_min(meshes: int, microbatches: int) -> Schedule:
    """Return the least memory that a repeated block can have: about 2P/3 chunks, a third of 1F1B's."""
    orders = _orders(meshes, microbatches, _least(meshes))
    return make("v-min", orders, Placement.v(meshes), microbatches)


def v_half(meshes: int, microbatches: int, memory_limit: MemoryLimit | None = None) -> Schedule:
    """Return the best block within P chunks, half of 1F1B's memory, or within `memory_limit`.

    `memory_limit` is in microbatches (two chunks), of several numbers the smallest. Less than V-Min needs is an error.
    """
    least = _least(meshes)
    limit = max(meshes, least)
    if memory_limit is not None:
        limit = int(2 * min(*per_mesh(meshes, memory_limit), microbatches) + 1e-9)
    if limit < min(least, 2 * microbatches):
        raise ScheduleError.of(
            "memory",
            f"no building block for {meshes} meshes keeps to {limit / 2:g} microbatches; "
            f"the least is {min(least / 2, microbatches):g}",
        )
    orders = _orders(meshes, microbatches, limit)
    return make("v-half", orders, Placement.v(meshes), microbatches)


def _least(meshes: int) -> int:
    """Return the chunks that the tightest block holds: the step is 1 and no slot is wasted at the turn."""
    return 2 * -(-(meshes + 2) // 3)


def _orders(meshes: int, microbatches: int, limit: int) -> Sequence[Sequence[Step]]:
    """Return the orders of the best block within `limit` chunks, by makespan, then span."""
    if limit >= 2 * microbatches:
        # Everything fits at once, so that memory is no matter.
        limit = max(limit, 2 * meshes)
    if limit >= 2 * meshes and microbatches >= 2 * meshes - 1:
        # ZB-V keeps to 2P chunks and has no bubble in the span: nothing is better.
        return zb_v(meshes, microbatches).orders
    work = SLOTS * microbatches
    good = work + max(6 * meshes - 1 - 3 * limit, meshes - 1)
    best: tuple[tuple[int, int], list[bytearray]] | None = None
    left = 1 + PAIRS_PER_TRY // (meshes * microbatches)
    for block, squeeze in _candidates(meshes, limit):
        if squeeze:
            rows = play(block, meshes, microbatches, limit)
        else:
            rows = [block.order(meshes, r, microbatches) for r in range(meshes)]
        left -= 1
        if best is None and not left:
            return _actions(rows, meshes)
        score = timed(rows, meshes)
        if best is None or score < best[0]:
            best = score, rows
        if not left or score[0] <= good:
            break
    assert best is not None, "the block with the least memory always fits"
    return _actions(best[1], meshes)


def _candidates(meshes: int, limit: int) -> Iterator[tuple[Block, bool]]:
    """(block, whether its actions move up into empty slots), the likely best first.

    Large steps suit large limits. A block without a free slot at the turn is as full as it can
    be: what moves up there gets in the way of a weight-gradient that has to make room.
    """
    most = max(min(limit, 2 * meshes), _least(meshes))
    for memory in range(most - most % 2, max(most - 6, _least(meshes) - 1), -2):
        for step in (3, 2, 1):
            wait = 3 * memory - 5 - 2 * step * (meshes - 1)
            if wait >= 1:
                block = Block(step, wait)
                yield block, wait > 1
                yield block, wait == 1


def _actions(rows: Sequence[bytearray], meshes: int) -> list[list[Action]]:
    """Codes as actions; the microbatches of each stage and kind count up."""
    orders: list[list[Action]] = []
    for mesh, codes in enumerate(rows):
        down, up = mesh, 2 * meshes - 1 - mesh
        stages = down, up, up, down
        microbatches = [itertools.count() for _ in stages]
        split: deque[Action] = deque()
        order: list[Action] = []
        for code in codes:
            if code == WEIGHT:
                order.append(split.popleft())
                continue
            stage, m = stages[code], next(microbatches[code])
            order.append(Action(stage, "F" if code < 2 else "I", m))
            if code >= 2:
                split.append(Action(stage, "W", m))
        orders.append(order)
    return orders
