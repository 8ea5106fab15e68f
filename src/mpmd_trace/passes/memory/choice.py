"""Choosing one option for each group so that memory suffices at the least cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

__all__ = ["EXACT_UP_TO", "choose"]

#: With so many combinations the choice is exact.
EXACT_UP_TO = 1024


def choose(
    costs: Sequence[Sequence[float]], excess: Callable[[tuple[int, ...]], float], exact_up_to: int = EXACT_UP_TO
) -> tuple[int, ...]:
    """Return the option of each group, by number.

    With few combinations the cheapest one without excess, or, if there is none, the one with the least excess.
    Otherwise greedy: as long as there is excess, the option is taken that has most of it go for its cost; what turns
    out not to be needed is taken back, the most expensive first.

    Args:
        costs: of each option of each group; the first option of a group is the one that changes nothing.
        excess: how much memory a choice is above the limit, over all of the step; zero where it fits.
        exact_up_to: the number of combinations of which all may be looked at.
    """
    if math.prod(map(len, costs)) <= exact_up_to:
        return _exact(costs, excess)
    return _without_waste(costs, excess, _greedy(costs, excess))


def _cost(costs: Sequence[Sequence[float]], choice: Sequence[int]) -> float:
    return sum(options[i] for options, i in zip(costs, choice, strict=True))


def _exact(costs: Sequence[Sequence[float]], excess: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    every = sorted(itertools.product(*map(range, map(len, costs))), key=lambda c: (_cost(costs, c), c))
    least = math.inf
    result = every[0]
    for choice in every:
        over = excess(choice)
        if over <= 0:
            return choice
        if over < least:
            least, result = over, choice
    return result


def _greedy(costs: Sequence[Sequence[float]], excess: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    choice = (0,) * len(costs)
    over = excess(choice)
    while over > 0:
        best: tuple[float, tuple[int, ...], float] | None = None
        for group, options in enumerate(costs):
            for option in range(len(options)):
                if option == choice[group]:
                    continue
                other = (*choice[:group], option, *choice[group + 1 :])
                left = excess(other)
                worth = (over - left) / max(options[option] - options[choice[group]], 1e-9)
                if left < over and (best is None or worth > best[0]):
                    best = worth, other, left
        if best is None:
            break
        _, choice, over = best
    return choice


def _without_waste(
    costs: Sequence[Sequence[float]], excess: Callable[[tuple[int, ...]], float], choice: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the choice with cheaper options wherever these have no more excess."""
    over = excess(choice)
    for group in sorted(range(len(costs)), key=lambda g: (-costs[g][choice[g]], g)):
        options = costs[group]
        for option in sorted(range(len(options)), key=lambda o: (options[o], o)):
            other = (*choice[:group], option, *choice[group + 1 :])
            if options[option] < options[choice[group]] and excess(other) <= over:
                choice = other
                break
    return choice
