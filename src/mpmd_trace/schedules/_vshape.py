"""V-Half and V-Min: a building block of six slots, repeated for every microbatch.

Source: controllable memory (arXiv 2405.15362). Chunk 0 of mesh r is stage r, chunk 1 is stage
2P-1-r. In one block each mesh has one slot for F, I and W of both chunks; from mesh to mesh a
slot moves by a fixed offset, so activations live equally long on every mesh, and the offsets set
the memory. A block repeats every six slots, so two actions of a mesh must never meet modulo six.

Offsets are searched by brute force under a memory limit. The order of F and I is then kept, and
the weight-gradients go where they do no harm: into gaps, or where memory runs out.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mpmd_trace.schedules._actions import Action, Step
from mpmd_trace.schedules._errors import Problem, ScheduleError
from mpmd_trace.schedules._schedule import Placement, Schedule, make
from mpmd_trace.schedules._zero_bubble import zb_v

SLOTS = 6
TRIED = 2
"""Blocks that are played at full size; the ranking before it uses `_MODEL_MESHES`."""
_MODEL_MESHES = 8
"""Blocks for more meshes are ranked on this many; offsets modulo six repeat after six meshes."""


@dataclass(frozen=True)
class Block:
    """A building block.

    `offsets` are the slots from one mesh to the next for F of chunk 0 (downwards), F of chunk 1
    (upwards), I of chunk 1 (downwards) and I of chunk 0 (upwards), `turns` the slots from each of
    these to the one after it on the mesh where the direction changes.
    """

    offsets: tuple[int, int, int, int]
    turns: tuple[int, int, int]

    def starts(self, meshes: int, mesh: int) -> tuple[int, int, int, int] | None:
        """Slots of F0, F1, I1, I0 of microbatch 0 on a mesh; None when two of them meet."""
        a, b, c, d = self.offsets
        s, t, u = self.turns
        last = meshes - 1
        f0 = a * mesh
        f1 = a * last + s + b * (last - mesh)
        i1 = a * last + s + b * last + t + c * mesh
        i0 = a * last + s + b * last + t + c * last + u + d * (last - mesh)
        found = (f0, f1, i1, i0)
        return found if len({v % SLOTS for v in found}) == 4 else None

    def weights(self, i1: int, i0: int, used: set[int]) -> tuple[int, int]:
        """Slots of W1 and W0: the two free ones, shared out for the least waiting."""
        free = [v for v in range(SLOTS) if v not in used]
        one = [i1 + 1 + (v - i1 - 1) % SLOTS for v in free]
        two = [i0 + 1 + (v - i0 - 1) % SLOTS for v in free]
        straight, crossed = one[0] + two[1], one[1] + two[0]
        return (one[0], two[1]) if straight <= crossed else (one[1], two[0])

    def fits(self, meshes: int) -> bool:
        """Whether no two slots meet on any mesh."""
        return all(self.starts(meshes, r) is not None for r in range(min(meshes, SLOTS)))

    def memory(self, meshes: int) -> int:
        """Activations a mesh holds in the steady state, in chunks, on the fullest mesh."""
        most = 0
        for r in range(meshes):
            starts = self.starts(meshes, r)
            assert starts is not None
            f0, f1, i1, i0 = starts
            w1, w0 = self.weights(i1, i0, {v % SLOTS for v in starts})
            for time in range(i0, i0 + SLOTS):
                held = (time - f0) // SLOTS - (time - w0 - 1) // SLOTS
                held += (time - f1) // SLOTS - (time - w1 - 1) // SLOTS
                most = max(most, held)
        return most

    def order(self, meshes: int, mesh: int, microbatches: int) -> list[Action]:
        """All actions of a mesh in the order of their slots."""
        starts = self.starts(meshes, mesh)
        assert starts is not None
        f0, f1, i1, i0 = starts
        w1, w0 = self.weights(i1, i0, {v % SLOTS for v in starts})
        low, high = mesh, 2 * meshes - 1 - mesh
        slots = ((f0, low, "F"), (f1, high, "F"), (i1, high, "I"), (i0, low, "I"),
                 (w1, high, "W"), (w0, low, "W"))
        events = [
            (start + SLOTS * m, Action(stage, kind, m))  # type: ignore[arg-type]
            for start, stage, kind in slots
            for m in range(microbatches)
        ]
        return [action for _, action in sorted(events, key=lambda e: e[0])]


@lru_cache(maxsize=64)
def _blocks(meshes: int) -> tuple[tuple[int, Block], ...]:
    """(memory, block) of every block that works on that many meshes."""
    out = []
    steps, waits = range(1, 5), range(1, SLOTS + 1)
    for offsets in itertools.product(steps, steps, steps, steps):
        if meshes >= SLOTS and not _can_miss(offsets):
            continue
        for turns in itertools.product(waits, waits, waits):
            block = Block(offsets, turns)
            # Fewer than four meshes would let nearly everything through, to no gain.
            if block.fits(max(meshes, 4)) and block.fits(meshes):
                out.append((block.memory(meshes), block))
    return tuple(sorted(out, key=lambda e: (e[0], e[1].offsets, e[1].turns)))


def _can_miss(offsets: tuple[int, int, int, int]) -> bool:
    """Whether turns can exist that keep slots apart on six meshes or more.

    The distance of two slots changes by a fixed amount from mesh to mesh; when that has no factor
    in common with six, it takes every value modulo six, zero too.
    """
    a, b, c, d = offsets
    return all(math.gcd(v, SLOTS) > 1 for v in (a + b, a - c, a + d, b + c, b - d, c + d))


def v_min(meshes: int, microbatches: int) -> Schedule:
    """The least memory that a repeated block can have: about 2P/3 chunks, a third of 1F1B's."""
    limit = min(_blocks(meshes), key=lambda e: e[0])[0]
    orders = _search(meshes, microbatches, limit)
    return make("v-min", orders, Placement.v(meshes), microbatches)


def v_half(meshes: int, microbatches: int, memory_limit: float | None = None) -> Schedule:
    """The best block within P chunks (P+2 from 16 meshes on), or within `memory_limit`.

    P chunks are half of 1F1B's memory.
    `memory_limit` is in microbatches (two chunks). Less than V-Min needs is an error.
    """
    lowest = min(_blocks(meshes), key=lambda e: e[0])[0]
    # A block's memory has a part that does not grow with P; half of 1F1B means P chunks and that.
    usual = meshes if meshes < 16 else meshes + 2
    limit = max(usual, lowest) if memory_limit is None else int(2 * memory_limit + 1e-9)
    if limit < lowest and limit < 2 * microbatches:
        message = (
            f"no building block for {meshes} meshes keeps to {limit / 2:g} microbatches; "
            f"the least is {lowest / 2:g}"
        )
        raise ScheduleError(message, [Problem("memory", message)])
    orders = _search(meshes, microbatches, limit)
    return make("v-half", orders, Placement.v(meshes), microbatches)


def _search(meshes: int, microbatches: int, limit: int) -> list[list[Step]]:
    """The orders of the best block within `limit` chunks, by makespan, then span."""
    if limit >= 2 * meshes and microbatches >= 2 * meshes - 1:
        # ZB-V keeps to 2P chunks and has no bubble in the span: nothing is better.
        return [list(order) for order in zb_v(meshes, microbatches).orders]
    model = min(meshes, _MODEL_MESHES)
    model_limit = max(limit * model // meshes, min(b[0] for b in _blocks(model)))
    if meshes > model:
        # Part of a block's memory does not grow with the meshes; what is too much is dropped below.
        model_limit += 3
    model_count = microbatches if model == meshes and microbatches <= 4 * model else 3 * model
    ranked: list[tuple[tuple[int, int], int, Block, bool]] = []
    for n, (memory, block) in enumerate(_blocks(model)):
        if memory > model_limit + 4:
            break
        for refill in (False, True):
            result = _play(block, model, model_count, model_limit, refill)
            if result is not None:
                ranked.append((result[0], n, block, refill))
    ranked.sort(key=lambda e: (e[0], e[1], e[3]))
    best: tuple[tuple[int, int], list[list[Step]]] | None = None
    tried = 0
    for _, _, block, refill in ranked:
        if not block.fits(meshes) or block.memory(meshes) > limit + (4 if refill else 0):
            continue
        result = _play(block, meshes, microbatches, limit, refill)
        if result is not None:
            if best is None or result[0] < best[0]:
                best = result
            tried += 1
            if tried == TRIED:
                break
    if best is None:
        # The ranking on fewer meshes was too optimistic about memory: take what surely fits.
        for _, block in _blocks(meshes):
            result = _play(block, meshes, microbatches, limit, False)
            if result is not None:
                best = result
                break
    assert best is not None, "the block with the least memory keeps to the limit"
    return best[1]


def _play(
    block: Block, meshes: int, microbatches: int, limit: int, refill: bool
) -> tuple[tuple[int, int], list[list[Step]]] | None:
    """((makespan, span), orders) at unit times; None when the limit does not hold."""
    rows = [block.order(meshes, r, microbatches) for r in range(meshes)]
    if refill:
        return _refill(meshes, rows, limit)
    if any(_peak(row) > limit for row in rows):
        return None
    orders: list[list[Step]] = [list(row) for row in rows]
    return _time(meshes, tuple(tuple(o) for o in orders)), orders


def _peak(row: list[Action]) -> int:
    held = most = 0
    for action in row:
        if action.kind == "F":
            held += 1
            most = max(most, held)
        elif action.kind == "W":
            held -= 1
    return most


def _time(meshes: int, orders: tuple[tuple[Step, ...], ...]) -> tuple[int, int]:
    """(makespan, span) at one unit of time per chunk and action; no memory, no refilling."""
    rows = [[part for step in order for part in step.parts] for order in orders]
    result = _refill(meshes, rows, None)
    assert result is not None
    return result[0]


def _refill(
    meshes: int, rows: list[list[Action]], limit: int | None
) -> tuple[tuple[int, int], list[list[Step]]] | None:
    """Plays the orders at unit times; with a limit, weight-gradients are placed anew.

    They fill gaps, make room when the limit is reached, and come last otherwise. A forward that
    does not fit lets a backward pass first. None when the meshes then wait for each other.
    """
    last = 2 * meshes - 1
    todo = [[a for a in row if limit is None or a.kind != "W"] for row in rows]
    ends: dict[tuple[str, int, int], int] = {}
    clock, position, held = [0] * meshes, [0] * meshes, [0] * meshes
    first: list[int | None] = [None] * meshes
    pending: list[deque[Action]] = [deque() for _ in range(meshes)]
    out: list[list[Step]] = [[] for _ in range(meshes)]
    waiting: dict[tuple[str, int, int], list[int]] = {}
    queue = deque(range(meshes))

    def weight(mesh: int) -> None:
        out[mesh].append(pending[mesh].popleft())
        clock[mesh] += 1
        held[mesh] -= 1

    while queue:
        mesh = queue.popleft()
        row = todo[mesh]
        while position[mesh] < len(row):
            action = row[position[mesh]]
            if limit is not None and action.kind == "F":
                while held[mesh] >= limit and pending[mesh]:
                    weight(mesh)
                if held[mesh] >= limit:
                    # Only a backward makes room, so the next one goes first.
                    later = _next_backward(row, position[mesh])
                    if later < 0:
                        return None
                    action = row.pop(later)
                    row.insert(position[mesh], action)
            needs = list(_needs(action, last))
            missing = next((n for n in needs if n not in ends), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(mesh)
                break
            arrival = max((ends[n] for n in needs), default=0)
            if limit is not None:
                while pending[mesh] and clock[mesh] + 1 <= arrival:
                    weight(mesh)
                if action.kind == "F":
                    held[mesh] += 1
                else:
                    pending[mesh].append(Action(action.stage, "W", action.microbatch))
            start = max(clock[mesh], arrival)
            if first[mesh] is None:
                first[mesh] = start
            key = (action.kind, action.stage, action.microbatch)
            ends[key] = clock[mesh] = start + 1
            out[mesh].append(action)
            position[mesh] += 1
            queue.extend(waiting.pop(key, ()))
    if any(position[r] < len(todo[r]) for r in range(meshes)):
        return None
    for mesh in range(meshes):
        while pending[mesh]:
            weight(mesh)
    spans = [clock[r] - (first[r] or 0) for r in range(meshes)]
    return (max(clock), max(spans)), out


def _next_backward(row: list[Action], position: int) -> int:
    for n in range(position, len(row)):
        if row[n].kind == "I":
            return n
    return -1


def _needs(action: Action, last: int) -> Iterator[tuple[str, int, int]]:
    stage, m = action.stage, action.microbatch
    if action.kind == "F":
        if stage:
            yield ("F", stage - 1, m)
    elif action.kind == "I":
        yield ("F", stage, m)
        if stage < last:
            yield ("I", stage + 1, m)
    else:
        yield ("I", stage, m)
