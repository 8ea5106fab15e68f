"""Times of several processes on one clock."""

from __future__ import annotations

import itertools
import random

import pytest

from mpmd_trace.backend.distribution.clock import merged, offset_of


@pytest.mark.parametrize("seed", range(20))
def test_the_offset_is_as_good_as_it_says(seed: int) -> None:
    """A clock that is `true` seconds ahead, over a connection of which both ways take any time."""
    rng = random.Random(seed)
    true, here = rng.uniform(-1e6, 1e6), [0.0]

    def ask() -> float:
        here[0] += rng.expovariate(1 / 3e-4)
        answer = here[0] + true
        here[0] += rng.expovariate(1 / 3e-4)
        return answer

    found = offset_of(ask, now=lambda: here[0])
    assert abs(found.seconds - true) <= found.error + 1e-9
    assert found.error < 2e-4, "the quickest of twenty rounds"


def test_the_quickest_round_counts() -> None:
    times = itertools.chain.from_iterable((t, t + (8 if t != 20 else 2)) for t in itertools.count(0, 10))
    found = offset_of(lambda: 121.0, rounds=5, now=lambda: float(next(times)))
    assert (found.seconds, found.error) == (100.0, 1.0)


def test_what_processes_do_together_is_there_once() -> None:
    spans, seconds = merged([[(0, 5.0, 6.0), (2, 6.0, 9.0)], [(1, 5.5, 5.75), (2, 7.0, 8.5)], []])
    assert spans == [(0, 0.0, 1.0), (1, 0.5, 0.75), (2, 2.0, 4.0)]
    assert seconds == 4.0
    assert merged([]) == ([], 0.0)
