"""DualPipe and DualPipeV: forward of one microbatch overlaps the backward of another.

Source: DeepSeek's DualPipe (2025). In DualPipe two chains of P stages run over the same meshes in
opposite directions, each with half of the microbatches; in DualPipeV there is one chain of 2P
stages, folded into a V. Both orders come from one recipe.
"""

from __future__ import annotations

import itertools
from collections import deque

from mpmd_trace.schedules._actions import Action, Fused, Step
from mpmd_trace.schedules._errors import ScheduleError, counted
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._schedule import Placement, Schedule, make


def dualpipe_v(meshes: int, microbatches: int) -> Schedule:
    """DualPipeV: 2P stages as a V; needs 2P microbatches or more."""
    if microbatches < 2 * meshes:
        raise _needs("dualpipe-v", f"at least {2 * meshes} microbatches, two per mesh", meshes, microbatches)
    orders = [_Rank(meshes, r, microbatches, (r, 2 * meshes - 1 - r), (0, 0)).order() for r in range(meshes)]
    return make("dualpipe-v", orders, Placement.v(meshes), microbatches)


def dualpipe(meshes: int, microbatches: int) -> Schedule:
    """DualPipe: two directions at once; each mesh holds the parameters of two stages.

    Stages 0..P-1 are the chain from mesh 0 to mesh P-1 with the first half of the microbatches,
    stages P..2P-1 the same model from mesh P-1 to mesh 0 with the second half. Needs an even
    number of meshes, and an even number of microbatches, 2P or more.
    """
    if meshes % 2:
        raise _needs("dualpipe", "an even number of meshes", meshes, microbatches)
    if microbatches % 2 or microbatches < 2 * meshes:
        raise _needs("dualpipe", f"an even number of microbatches, at least {2 * meshes}", meshes, microbatches)
    half = microbatches // 2
    orders = []
    for r in range(meshes):
        one, two = (r, 0), (2 * meshes - 1 - r, half)
        near, far = (one, two) if r < meshes // 2 else (two, one)
        inner = min(r, meshes - 1 - r)
        stages, offsets = (near[0], far[0]), (near[1], far[1])
        orders.append(_Rank(meshes // 2, inner, half, stages, offsets).order())
    return make(
        "dualpipe",
        orders,
        Placement.of((*range(meshes), *reversed(range(meshes)))),
        microbatches,
        graph=StageGraph.chains(meshes, meshes),
        only=(range(half),) * meshes + (range(half, microbatches),) * meshes,
        model_stage=(*range(meshes), *range(meshes)),
    )


def _needs(name: str, what: str, meshes: int, microbatches: int) -> ScheduleError:
    given = f"{counted(meshes, 'mesh')} and {counted(microbatches, 'microbatch')}"
    return ScheduleError.of("range", f"{name} needs {what}; got {given}")


class _Rank:
    """The recipe for one mesh: chunk 0 is the one whose forwards start the step."""

    def __init__(self, size: int, rank: int, count: int, stages: tuple[int, int], offsets: tuple[int, int]) -> None:
        self.size, self.rank, self.count, self.stages = size, rank, count, stages
        self.forwards = [itertools.count(m) for m in offsets]
        self.backwards = [itertools.count(m) for m in offsets]
        self.weights: deque[Action] = deque()

    def fwd(self, chunk: int) -> Action:
        return Action(self.stages[chunk], "F", next(self.forwards[chunk]))

    def bwd(self, chunk: int, split: bool = False) -> Action:
        stage, m = self.stages[chunk], next(self.backwards[chunk])
        if split:
            self.weights.append(Action(stage, "W", m))
        return Action(stage, "I" if split else "B", m)

    def order(self) -> list[Step]:
        size, rank = self.size, self.rank
        outer = size - rank - 1
        steps: list[Step] = [self.fwd(0) for _ in range(2 * outer)]
        for _ in range(rank + 1):
            steps += [self.fwd(0), self.fwd(1)]
        for _ in range(outer):
            steps.append(self.bwd(1, split=True))
            steps += [self.weights.popleft(), self.fwd(1)]
        for n in range(self.count - 2 * size + rank + 1):
            pair = (self.fwd(0), self.bwd(1))
            # On the mesh where the chain turns, the backward needs this very forward's successor.
            steps += pair if n == 0 and rank == size - 1 else (Fused(pair),)
            steps.append(Fused((self.fwd(1), self.bwd(0))))
        for _ in range(outer):
            steps.append(self.bwd(1))
            steps.append(Fused((self.fwd(1), self.bwd(0))))
        split = False
        for n in range(rank + 1):
            middle = n == (rank + 1) // 2
            split = split or (middle and rank % 2 == 1)
            steps.append(self.bwd(1, split))
            split = split or middle
            steps.append(self.bwd(0, split))
        for _ in range(outer):
            steps.append(self.weights.popleft())
            steps.append(self.bwd(0, split=True))
        steps += self.weights
        return steps
