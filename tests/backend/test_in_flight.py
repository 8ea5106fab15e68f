"""How many programs of a process run or wait at a time."""

from __future__ import annotations

import dataclasses

import pytest

from mpmd_trace.backend.distribution.in_flight import InFlight


@dataclasses.dataclass
class Result:
    number: int
    waited: list[int]

    def block_until_ready(self) -> None:
        self.waited.append(self.number)
        if self.number == 1:
            raise RuntimeError("deleted")


@pytest.mark.parametrize(("counts", "expected"), [(True, [0, 1, 2]), (False, [])])
def test_the_oldest_ends_before_the_seventeenth_is_launched(counts: bool, expected: list[int]) -> None:
    in_flight, waited = InFlight(counts), list[int]()
    for number in range(16):
        in_flight.launched(Result(number, waited))
    assert waited == []
    for number in range(16, 19):
        in_flight.launched(Result(number, waited))
    assert waited == expected
