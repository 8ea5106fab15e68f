"""Layers into stages: the split with the smallest bottleneck, found exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from mpmd_trace.schedules._errors import ScheduleError

#: Sums that differ by less are equal.
_ROUNDING = 1 + 1e-12


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
    _check_layers("layer_costs", layer_costs, layers)
    _check_layers("layer_memory", layer_memory, layers)
    _check_layers("layer_activations", layer_activations, layers)
    _check_cuts(cuts, layers)
    limits: list[float | None] = [memory] * meshes if memory is None or isinstance(memory, (int, float)) else [*memory]
    if len(limits) != meshes:
        raise ScheduleError(f"{len(limits)} memory limits for {meshes} stages")
    flight = [float(meshes - s) for s in range(meshes)] if in_flight is None else [*in_flight]
    if len(flight) != meshes:
        raise ScheduleError(f"{len(flight)} numbers in flight for {meshes} stages")

    zeros = [0.0] * layers
    layer_sums = _LayerSums(
        _sums(layer_costs),
        _sums(layer_memory or zeros),
        _sums(layer_activations or zeros),
        [Cut(), *(cuts or [Cut()] * (layers - 1)), Cut()],
        limits,
        flight,
    )
    bottleneck = layer_sums.least_bottleneck()
    if bottleneck == math.inf:
        raise _does_not_fit(layers, limits, layer_sums.memory)
    bounds = layer_sums.most_even(bottleneck)
    pairs = list(pairwise(bounds))
    return Partition(
        tuple(bounds),
        tuple(layer_sums.cost(a, b) for a, b in pairs),
        tuple(layer_sums.memory(s, a, b) for s, (a, b) in enumerate(pairs)),
        tuple(layer_sums.cuts[a].link for a, _ in pairs) if cuts else (),
    )


def _check_layers(name: str, values: Sequence[float] | None, layers: int) -> None:
    """Raise `ScheduleError` unless an argument of `partition_layers` has a finite number, 0 or more, for each layer."""
    for n, v in enumerate(values or ()):
        if not (0 <= v < math.inf):
            raise ScheduleError(f"{name}[{n}] is {v}; it must be a number, 0 or more")
    if values is not None and len(values) != layers:
        raise ScheduleError(f"{name} has {len(values)} entries for {layers} layers")


def _check_cuts(cuts: Sequence[Cut] | None, layers: int) -> None:
    """Raise `ScheduleError` unless there is a cut of finite costs, 0 or more, between every two layers."""
    if cuts is not None and len(cuts) != layers - 1:
        raise ScheduleError(f"cuts has {len(cuts)} entries for {layers - 1} places between layers")
    for n, cut in enumerate(cuts or ()):
        if not all(0 <= v < math.inf for v in cut):
            raise ScheduleError(f"cuts[{n}] is {tuple(cut)}; it must be numbers, 0 or more")


class _LayerSums(NamedTuple):
    """Sums over the layers before each one, from which the stage of the layers a..b-1 follows in constant time.

    `cuts` are those in front of each layer, and behind the last one; there is none at the ends.
    `limits` and `in_flight` are by stage.
    """

    costs: Sequence[float]
    fixed: Sequence[float]
    activations: Sequence[float]
    cuts: Sequence[Cut]
    limits: Sequence[float | None]
    in_flight: Sequence[float]

    def cost(self, a: int, b: int) -> float:
        """Return what the layers a..b-1 cost as a stage, with the transfers that it waits for."""
        return self.costs[b] - self.costs[a] + self.cuts[a].after + self.cuts[b].before

    def memory(self, stage: int, a: int, b: int) -> float:
        """Return the memory of the stage if it has the layers a..b-1."""
        activations = self.activations[b] - self.activations[a]
        return self.fixed[b] - self.fixed[a] + self.in_flight[stage] * activations

    def _fits(self, stage: int, a: int, b: int) -> bool:
        limit = self.limits[stage]
        return limit is None or self.memory(stage, a, b) <= limit * _ROUNDING

    def _ends(self, stage: int) -> range:
        """Return where the stage may end, so that each stage before and after it has a layer."""
        return range(stage + 1, len(self.costs) - (len(self.limits) - stage - 1))

    def least_bottleneck(self) -> float:
        """Return the cost of the most expensive stage or link in the best split; infinity if none fits the memory."""
        layers = len(self.costs) - 1
        # best[b]: the smallest bottleneck of the stages so far over the first b layers.
        best = [0.0] + [math.inf] * layers
        for stage in range(len(self.limits)):
            longer = [math.inf] * (layers + 1)
            for b in self._ends(stage):
                for a in range(b - 1, stage - 1, -1):
                    # Only what grows with the layers may end the loop.
                    if self.costs[b] - self.costs[a] >= longer[b]:
                        break
                    if best[a] < math.inf and self._fits(stage, a, b):
                        longer[b] = min(longer[b], max(best[a], self.cost(a, b), self.cuts[a].link))
            best = longer
        return best[layers]

    def most_even(self, bottleneck: float) -> list[int]:
        """Return the bounds of the split of this bottleneck with the smallest sum of squared costs of stages."""
        layers = len(self.costs) - 1
        most = bottleneck * _ROUNDING
        # squares[b]: the smallest sum of the stages so far over the first b layers; starts: where each stage starts.
        squares = [0.0] + [math.inf] * layers
        starts: list[list[int]] = []
        for stage in range(len(self.limits)):
            longer = [math.inf] * (layers + 1)
            start = [-1] * (layers + 1)
            for b in self._ends(stage):
                for a in range(b - 1, stage - 1, -1):
                    if self.costs[b] - self.costs[a] > most:
                        break
                    cost = self.cost(a, b)
                    if max(cost, self.cuts[a].link) > most or squares[a] == math.inf:
                        continue
                    # `<=` prefers the earlier cut among equals.
                    if squares[a] + cost * cost <= longer[b] and self._fits(stage, a, b):
                        longer[b], start[b] = squares[a] + cost * cost, a
            squares = longer
            starts.append(start)
        bounds = [layers]
        for start in reversed(starts):
            bounds.append(start[bounds[-1]])
        return bounds[::-1]


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
