"""The repeated block of V-Half and V-Min, and the order in which its actions really run.

Actions of a mesh are codes here: F of chunk 0, F of chunk 1, I of chunk 1, I of chunk 0, W. A W
belongs to the oldest I without one, and microbatches count up, so a row of codes says it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SLOTS = 6
"""A block returns after so many slots: one for F, I and W of both chunks."""

WEIGHT = 4
"""The code of a weight-gradient; those of F0, F1, I1, I0 are 0 to 3."""

NEVER = 1 << 60


@dataclass(frozen=True)
class Block:
    """A building block.

    F of chunk 0 and I of chunk 1 start `step` slots later from mesh to mesh downwards, F of chunk
    1 and I of chunk 0 upwards; `wait` slots lie between the last forward and the first backward.
    """

    step: int
    wait: int

    def starts(self, meshes: int, mesh: int) -> tuple[int, int, int, int]:
        """Slots of F0, F1, I1, I0 of microbatch 0 on a mesh."""
        length = self.step * (meshes - 1)
        down, up = self.step * mesh, length - self.step * mesh
        turn = 2 * length + 1 + self.wait
        return down, length + 1 + up, turn + down, turn + length + 1 + up

    def order(self, meshes: int, mesh: int, microbatches: int) -> bytearray:
        """Return all actions of a mesh in the order of their slots, each W in the next free one."""
        starts = self.starts(meshes, mesh)
        used = {v % SLOTS for v in starts}
        free = [v for v in range(SLOTS) if v not in used]
        # The W of an I go to the two free slots so that they wait least, both ways tried.
        first, second = ([i + 1 + (v - i - 1) % SLOTS for v in free] for i in starts[2:])
        straight, crossed = (first[0], second[1]), (first[1], second[0])
        places = *starts, *(straight if sum(straight) <= sum(crossed) else crossed)
        # Once all six run, nothing changes: a few blocks tell what many look like.
        few = min(microbatches, (max(places) - min(places)) // SLOTS + 2)
        slots = sorted((start + SLOTS * m, min(code, WEIGHT)) for code, start in enumerate(places) for m in range(few))
        row = bytearray(code for _, code in slots)
        if few < microbatches:
            full = sum(slot < max(places) for slot, _ in slots)
            row[full:full] = row[full : full + SLOTS] * (microbatches - few)
        return row


class _Pipeline:
    """The inputs that are on each mesh, slot by slot."""

    def __init__(self, meshes: int, microbatches: int) -> None:
        self.last = meshes - 1
        self.done = [[0] * 4 for _ in range(meshes)]
        self.ready = [[0] * 4 for _ in range(meshes)]
        self.ready[0][0] = microbatches
        self._sent: list[tuple[int, int]] = []

    def run(self, mesh: int, code: int) -> None:
        """Run a forward or input-gradient; its result is there in the next slot."""
        self.done[mesh][code] += 1
        down = code == 0 or code == 2
        if mesh != (self.last if down else 0):
            self._sent.append((mesh + (1 if down else -1), code))
        elif code < 3:
            # At the turns a result stays on its mesh.
            self._sent.append((mesh, code + 1))

    def deliver(self) -> None:
        """End the slot."""
        for mesh, code in self._sent:
            self.ready[mesh][code] += 1
        self._sent.clear()

    def skip(self, microbatches: int) -> None:
        """As if so many more microbatches had gone through in the same manner."""
        for mesh, (done, ready) in enumerate(zip(self.done, self.ready, strict=True)):
            for code in (0, 1, 2, 3):
                done[code] += microbatches
                if (mesh, code) != (0, 0):
                    ready[code] += microbatches


def play(block: Block, meshes: int, microbatches: int, limit: int) -> list[bytearray]:
    """Return the rows when actions may move up; no mesh ever holds more than `limit` chunks.

    In each slot a mesh runs, of the actions whose inputs are there, the one that comes first in
    the block, provided that all forwards before it still fit in their turn. Weight-gradients
    run when memory is full, and when nothing else can. The block itself keeps to the limit, so
    what comes first of all in the order of the slots can always run: there is no deadlock.
    """
    pipeline = _Pipeline(meshes, microbatches)
    starts = [block.starts(meshes, r) for r in range(meshes)]
    rows = [bytearray() for _ in range(meshes)]
    held, split = [0] * meshes, [0] * meshes
    open_meshes = list(range(meshes))
    slot_number, before = 0, _counts(pipeline, rows)
    while open_meshes:
        finished = False
        slot_number += 1
        for mesh in open_meshes:
            done, ready, row = pipeline.done[mesh], pipeline.ready[mesh], rows[mesh]
            code = _next_of_block(starts[mesh], done, ready, microbatches, limit)
            if code < 0 or (code < 2 and held[mesh] >= limit):
                if split[mesh]:
                    code = WEIGHT
                elif code >= 0:
                    code = _backward(starts[mesh], done, ready)
            if code < 0:
                continue
            row.append(code)
            if code == WEIGHT:
                split[mesh] -= 1
                held[mesh] -= 1
                finished |= len(row) == SLOTS * microbatches
            else:
                pipeline.run(mesh, code)
                if code < 2:
                    held[mesh] += 1
                else:
                    split[mesh] += 1
        pipeline.deliver()
        if finished:
            open_meshes = [m for m in open_meshes if len(rows[m]) < SLOTS * microbatches]
        elif slot_number % SLOTS == 0:
            now = _counts(pipeline, rows)
            # What is left then is far enough from the last microbatch not to feel it.
            spare = microbatches - pipeline.done[0][0] - meshes
            if spare > 0 and all(b == a + step for a, b, step in zip(before, now, _ONE_BLOCK * meshes, strict=True)):
                # Everything is where it was a block ago, so the same follows, again and again.
                pipeline.skip(spare)
                for row in rows:
                    row += row[-SLOTS:] * spare
                now = _counts(pipeline, rows)
            before = now
    return rows


_ONE_BLOCK = (1, 1, 1, 1, SLOTS)


def _counts(pipeline: _Pipeline, rows: Sequence[bytearray]) -> list[int]:
    """Return how often each mesh has run each code, and how long its row is."""
    return [n for done, row in zip(pipeline.done, rows, strict=True) for n in (*done, len(row))]


def _next_of_block(
    start: Sequence[int], done: Sequence[int], ready: Sequence[int], microbatches: int, limit: int
) -> int:
    """Return the action, other than a W, that a mesh runs next if its memory has room for it; or -1."""
    code, earliest, head = -1, NEVER, NEVER
    for k in (0, 1, 2, 3):
        n = done[k]
        if n < microbatches:
            slot = start[k] + SLOTS * n
            if slot < head:
                head = slot
            if n < ready[k] and slot < earliest:
                code, earliest = k, slot
    # A forward that overtakes what the block has before it must leave memory for that.
    return _first_that_fits(start, done, ready, microbatches, limit) if code in (0, 1) and earliest > head else code


def _first_that_fits(
    start: Sequence[int], done: Sequence[int], ready: Sequence[int], microbatches: int, limit: int
) -> int:
    """Of the actions that could run, the first in the block that takes no later one's memory; or -1.

    A backward takes none.
    """
    slots = sorted((start[k] + SLOTS * done[k], k) for k in range(4) if done[k] < ready[k])
    for slot, k in slots:
        if k > 1 or _fits(start, done, k, slot, microbatches, limit):
            return k
    return -1


def _fits(start: Sequence[int], done: Sequence[int], code: int, until: int, microbatches: int, limit: int) -> bool:
    """Return whether every forward in the slots before `until` still fits when `code` runs now.

    The block says what has run by each of those slots; what has run already counts where it is
    more. Every W can have run, as its slots come right after those of the I.
    """
    have = list(done)
    have[code] += 1
    for k in (0, 1):
        for n in range(done[k], microbatches):
            slot = start[k] + SLOTS * n
            if slot > until:
                break
            held = 0
            for other in (0, 1, 2, 3):
                by_then = min(max((slot - start[other]) // SLOTS + 1, have[other]), microbatches)
                held += by_then if other < 2 else -by_then
            if held > limit:
                return False
    return True


def _backward(start: Sequence[int], done: Sequence[int], ready: Sequence[int]) -> int:
    """Return the first backward in the block whose input is there, or -1."""
    slots = [(start[k] + SLOTS * done[k], k) for k in (2, 3) if done[k] < ready[k]]
    return min(slots)[1] if slots else -1


def timed(rows: Sequence[bytearray], meshes: int) -> tuple[int, int]:
    """Return (makespan, span) of rows in slots, each action as early as its row and inputs allow.

    It scores blocks in a fraction of the time that making and simulating a schedule takes.
    """
    pipeline = _Pipeline(meshes, len(rows[0]) // SLOTS)
    position, first, end = [0] * meshes, [-1] * meshes, [0] * meshes
    open_meshes = list(range(meshes))
    slot = 0
    while open_meshes:
        slot += 1
        finished = False
        for mesh in open_meshes:
            code = rows[mesh][position[mesh]]
            if code != WEIGHT:
                if pipeline.done[mesh][code] >= pipeline.ready[mesh][code]:
                    continue
                pipeline.run(mesh, code)
            if first[mesh] < 0:
                first[mesh] = slot - 1
            end[mesh] = slot
            position[mesh] += 1
            finished |= position[mesh] == len(rows[mesh])
        pipeline.deliver()
        if finished:
            open_meshes = [m for m in open_meshes if position[m] < len(rows[m])]
    return max(end), max(e - f for e, f in zip(end, first, strict=True))
