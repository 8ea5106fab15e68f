"""The choice of what happens to activations is the cheapest that fits."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.passes.memory.fit_memory import choose

Problem = tuple[list[list[float]], list[list[np.ndarray]], np.ndarray, int]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Costs and bytes by time of the options of each group, bytes that are there anyhow, and the limit."""
    times = draw(st.integers(1, 4))
    bytes_by_time = st.lists(st.integers(0, 9), min_size=times, max_size=times).map(np.array)
    costs, sizes = [], []
    for _ in range(draw(st.integers(1, 4))):
        # Options that leave less and less.
        steps = draw(st.lists(bytes_by_time, min_size=1, max_size=4))
        sizes.append([sum(steps[i:], np.zeros(times)) for i in range(len(steps))])
        costs.append([0.0, *(float(draw(st.integers(0, 9))) for _ in steps[1:])])
    return costs, sizes, draw(bytes_by_time), draw(st.integers(0, 40))


@given(problems())
def test_it_is_the_cheapest_that_fits(problem: Problem) -> None:
    costs, sizes, base, limit = problem

    def excess(choice: tuple[int, ...]) -> float:
        used = sum((sizes[g][o] for g, o in enumerate(choice)), base)
        return float(np.maximum(used - limit, 0).sum())

    def cost(choice: tuple[int, ...]) -> float:
        return sum(costs[g][o] for g, o in enumerate(choice))

    every = list(itertools.product(*(range(len(options)) for options in costs)))
    fitting = [choice for choice in every if excess(choice) == 0]
    exact, greedy = choose(costs, excess), choose(costs, excess, exact_up_to=0)
    if fitting:
        assert excess(exact) == excess(greedy) == 0
        assert cost(exact) == min(map(cost, fitting)) <= cost(greedy)
    else:
        assert excess(exact) == min(map(excess, every))
        assert excess(greedy) <= excess((0,) * len(costs))


def test_greedy_takes_back_what_another_option_made_needless() -> None:
    """The first step has the best ratio, the second one suffices alone."""
    left = {(0, 0): 10.0, (1, 0): 4.0, (0, 1): 0.0, (1, 1): 0.0}
    costs = [[0.0, 1.0], [0.0, 5.0]]
    assert choose(costs, left.__getitem__, exact_up_to=0) == (0, 1) == choose(costs, left.__getitem__)
