"""Layers into stages: the split with the smallest bottleneck, found exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from mpmd_trace.schedules._errors import Problem, ScheduleError


@dataclass(frozen=True)
class Partition:
    """Contiguous layers per stage: stage s has layers `bounds[s]` to `bounds[s+1] - 1`."""

    bounds: tuple[int, ...]
    costs: tuple[float, ...]
    memory: tuple[float, ...]

    @property
    def stages(self) -> tuple[range, ...]:
        """The layers of each stage."""
        return tuple(range(a, b) for a, b in pairwise(self.bounds))

    @property
    def bottleneck(self) -> float:
        """The cost of the most expensive stage, in the unit of the layer costs."""
        return max(self.costs)

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
) -> Partition:
    """The contiguous split into `meshes` stages whose most expensive stage is cheapest.

    Among those, the one with the smallest sum of squared costs, then the earliest cuts. Every
    stage has a layer. With `memory` (a limit, or one per stage), stage s must fit: the sum of its
    `layer_memory` plus `in_flight[s]` times the sum of its `layer_activations`; 1F1B keeps P-s
    microbatches in flight, the default. Exact, by dynamic programming in O(layers^2 stages).
    """
    layers = len(layer_costs)
    if meshes < 1:
        raise ScheduleError(f"the number of stages is {meshes}; it must be 1 or more")
    if layers < meshes:
        message = f"{layers} layers cannot fill {meshes} stages; every stage needs a layer"
        raise ScheduleError(message, [Problem("range", message)])
    for what, values in (("layer_costs", layer_costs), ("layer_memory", layer_memory),
                         ("layer_activations", layer_activations)):
        for n, v in enumerate(values or ()):
            if not (0 <= v < math.inf):
                raise ScheduleError(f"{what}[{n}] is {v}; it must be a number, 0 or more")
        if values is not None and len(values) != layers:
            raise ScheduleError(f"{what} has {len(values)} entries for {layers} layers")
    limits: list[float | None] = (
        [memory] * meshes if memory is None or isinstance(memory, (int, float)) else [*memory]
    )
    if len(limits) != meshes:
        raise ScheduleError(f"{len(limits)} memory limits for {meshes} stages")
    flight = [float(meshes - s) for s in range(meshes)] if in_flight is None else [*in_flight]
    if len(flight) != meshes:
        raise ScheduleError(f"{len(flight)} numbers in flight for {meshes} stages")

    cost = _sums(layer_costs)
    fixed = _sums(layer_memory or [0.0] * layers)
    moving = _sums(layer_activations or [0.0] * layers)

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
                here = cost[b] - cost[a]
                if here >= after[b]:
                    break
                if best[a] < math.inf and fits(s, a, b):
                    after[b] = min(after[b], max(best[a], here))
        best = after
    bottleneck = best[layers]
    if bottleneck == math.inf:
        raise _does_not_fit(layers, limits, held)

    slack = bottleneck * (1 + 1e-12)
    squares = [0.0] + [math.inf] * layers
    cuts: list[list[int]] = []
    for s in range(meshes):
        after = [math.inf] * (layers + 1)
        cut = [-1] * (layers + 1)
        for b in range(s + 1, layers - (meshes - s - 1) + 1):
            for a in range(b - 1, s - 1, -1):
                here = cost[b] - cost[a]
                if here > slack:
                    break
                # `<=` prefers the earlier cut among equals.
                if (fits(s, a, b) and squares[a] + here * here <= after[b] < math.inf) or (
                    after[b] == math.inf and squares[a] < math.inf and fits(s, a, b)
                ):
                    after[b], cut[b] = squares[a] + here * here, a
        squares = after
        cuts.append(cut)
    bounds = [layers]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]])
    bounds.reverse()
    pairs = list(pairwise(bounds))
    return Partition(
        tuple(bounds),
        tuple(cost[b] - cost[a] for a, b in pairs),
        tuple(held(s, a, b) for s, (a, b) in enumerate(pairs)),
    )


def _sums(values: Sequence[float]) -> list[float]:
    return [0.0, *accumulate(float(v) for v in values)]


def _does_not_fit(
    layers: int, limits: list[float | None], held: Callable[[int, int, int], float]
) -> ScheduleError:
    total = held(len(limits) - 1, 0, layers)
    room = sum(v for v in limits if v is not None)
    message = (
        f"no split of {layers} layers into {len(limits)} stages fits the memory: the layers need "
        f"at least {total:g} in all, the limits add up to {room:g}"
    )
    hint = "use more stages, a higher limit, or fewer microbatches in flight"
    return ScheduleError(f"{message}; {hint}", [Problem("memory", message, hint=hint)])
