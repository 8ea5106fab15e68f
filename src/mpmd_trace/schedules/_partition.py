"""Layers into stages: the split with the smallest bottleneck, found exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from mpmd_trace.schedules._errors import ScheduleError


class Cut(NamedTuple):
    """The cost of a cut between two layers, for the forward and the backward of a microbatch.

    `before` and `after` are times that the stages on the two sides spend on transfers; `link` is how
    long the busier direction of the link is in use while they compute.
    """

    before: float = 0.0
    after: float = 0.0
    link: float = 0.0


@dataclass(frozen=True)
class Partition:
    """Contiguous layers per stage: stage s has layers `bounds[s]` to `bounds[s+1] - 1`.

    `costs` are those of the stages: layers, and transfers that they wait for. `links` are how long the
    link in front of each stage is in use.
    """

    bounds: tuple[int, ...]
    costs: tuple[float, ...]
    memory: tuple[float, ...]
    links: tuple[float, ...] = ()

    @property
    def stages(self) -> tuple[range, ...]:
        """The layers of each stage."""
        return tuple(range(a, b) for a, b in pairwise(self.bounds))

    @property
    def bottleneck(self) -> float:
        """The cost of the most expensive stage or link, in the unit of the layer costs."""
        return max(*self.costs, *self.links) if self.links else max(self.costs)

    @property
    def balance(self) -> float:
        """Average over bottleneck: 1 when all stages cost the same."""
        return sum(self.costs) / len(self.costs) / self.bottleneck if self.bottleneck else 1.0


def partition_layers(
    layer_costs: Sequence[float],
    meshes: int,
    memory: float | Sequence[float] | None = None,
    *,
    layer_memory: Sequence[float] | None = None,
    layer_activations: Sequence[float] | None = None,
    in_flight: Sequence[float] | None = None,
    cuts: Sequence[Cut] | None = None,
) -> Partition:
    """Return the contiguous split into `meshes` stages whose most expensive stage is cheapest.

    If there are several, return the one with the smallest sum of squared costs, then the one with the earliest cuts.
    Every stage has at least one layer. With `memory` (a limit, or one per stage), stage s must fit: the sum of its
    `layer_memory` plus `in_flight[s]` times the sum of its `layer_activations`; 1F1B keeps P-s microbatches in flight,
    the default. With `cuts`, `cuts[i]` says what a cut behind layer i costs: stages pay for the transfers they wait
    for, and a link can be the bottleneck. Exact, by dynamic programming in O(layers^2 stages).
    """
    layers = len(layer_costs)
    if meshes < 1:
        raise ScheduleError(f"the number of stages is {meshes}; it must be 1 or more")
    if layers < meshes:
        raise ScheduleError.of("range", f"{layers} layers cannot fill {meshes} stages; every stage needs a layer")
    for what, values in (
        ("layer_costs", layer_costs),
        ("layer_memory", layer_memory),
        ("layer_activations", layer_activations),
    ):
        for n, v in enumerate(values or ()):
            if not (0 <= v < math.inf):
                raise ScheduleError(f"{what}[{n}] is {v}; it must be a number, 0 or more")
        if values is not None and len(values) != layers:
            raise ScheduleError(f"{what} has {len(values)} entries for {layers} layers")
    if cuts is not None:
        if len(cuts) != layers - 1:
            raise ScheduleError(f"cuts has {len(cuts)} entries for {layers - 1} places between layers")
        for n, one in enumerate(cuts):
            if not all(0 <= v < math.inf for v in one):
                raise ScheduleError(f"cuts[{n}] is {tuple(one)}; it must be numbers, 0 or more")
    limits: list[float | None] = [memory] * meshes if memory is None or isinstance(memory, (int, float)) else [*memory]
    if len(limits) != meshes:
        raise ScheduleError(f"{len(limits)} memory limits for {meshes} stages")
    flight = [float(meshes - s) for s in range(meshes)] if in_flight is None else [*in_flight]
    if len(flight) != meshes:
        raise ScheduleError(f"{len(flight)} numbers in flight for {meshes} stages")

    cost = _sums(layer_costs)
    fixed = _sums(layer_memory or [0.0] * layers)
    moving = _sums(layer_activations or [0.0] * layers)

    # The cut in front of each layer; there is none at the ends.
    ends = [Cut(), *(cuts or [Cut()] * (layers - 1)), Cut()]

    def spent(a: int, b: int) -> float:
        return cost[b] - cost[a] + ends[a].after + ends[b].before

    def held(stage: int, a: int, b: int) -> float:
        return fixed[b] - fixed[a] + flight[stage] * (moving[b] - moving[a])

    def fits(stage: int, a: int, b: int) -> bool:
        limit = limits[stage]
        return limit is None or held(stage, a, b) <= limit * (1 + 1e-12)

    # best[b]: the smallest bottleneck of the first stages over the first b layers.
    best = [0.0] + [math.inf] * layers
    for s in range(meshes):
        after = [math.inf] * (layers + 1)
        for b in range(s + 1, layers - (meshes - s - 1) + 1):
            for a in range(b - 1, s - 1, -1):
                # Only what grows with the layers may end the loop.
                if cost[b] - cost[a] >= after[b]:
                    break
                here = max(spent(a, b), ends[a].link)
                if best[a] < math.inf and fits(s, a, b):
                    after[b] = min(after[b], max(best[a], here))
        best = after
    bottleneck = best[layers]
    if bottleneck == math.inf:
        raise _does_not_fit(layers, limits, held)

    slack = bottleneck * (1 + 1e-12)
    squares = [0.0] + [math.inf] * layers
    chosen: list[list[int]] = []
    for s in range(meshes):
        after = [math.inf] * (layers + 1)
        cut = [-1] * (layers + 1)
        for b in range(s + 1, layers - (meshes - s - 1) + 1):
            for a in range(b - 1, s - 1, -1):
                if cost[b] - cost[a] > slack:
                    break
                here = spent(a, b)
                if max(here, ends[a].link) > slack:
                    continue
                # `<=` prefers the earlier cut among equals.
                if (fits(s, a, b) and squares[a] + here * here <= after[b] < math.inf) or (
                    after[b] == math.inf and squares[a] < math.inf and fits(s, a, b)
                ):
                    after[b], cut[b] = squares[a] + here * here, a
        squares = after
        chosen.append(cut)
    bounds = [layers]
    for row in reversed(chosen):
        bounds.append(row[bounds[-1]])
    bounds.reverse()
    pairs = list(pairwise(bounds))
    return Partition(
        tuple(bounds),
        tuple(spent(a, b) for a, b in pairs),
        tuple(held(s, a, b) for s, (a, b) in enumerate(pairs)),
        tuple(ends[a].link for a, _ in pairs) if cuts else (),
    )


def _sums(values: Sequence[float]) -> list[float]:
    return [0.0, *accumulate(float(v) for v in values)]


def _does_not_fit(layers: int, limits: list[float | None], held: Callable[[int, int, int], float]) -> ScheduleError:
    total = held(len(limits) - 1, 0, layers)
    room = sum(v for v in limits if v is not None)
    message = (
        f"no split of {layers} layers into {len(limits)} stages fits the memory: the layers need "
        f"at least {total:g} in all, the limits add up to {room:g}"
    )
    hint = "use more stages, a higher limit, or fewer microbatches in flight"
    return ScheduleError.of("memory", message, hint=hint)
