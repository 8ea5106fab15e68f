"""How many programs of a process run or wait at a time."""

from __future__ import annotations

import dataclasses

from mpmd_trace.backend.distribution.in_flight import InFlight


@dataclasses.dataclass
class Result:
    """Of a program: the number of it, and those that were waited for."""

    number: int
    waited: list[int]

    def block_until_ready(self) -> Result:
        self.waited.append(self.number)
        if self.number == 1:
            raise RuntimeError("deleted")
        return self


def test_the_oldest_ends_before_the_seventeenth_is_launched() -> None:
    in_flight, waited = InFlight(), list[int]()
    for number in range(16):
        in_flight.launched(Result(number, waited))
    assert waited == []
    for number in range(16, 19):
        in_flight.launched(Result(number, waited))
    assert waited == [0, 1, 2]


def test_nothing_is_counted_where_each_is_waited_for() -> None:
    in_flight, waited = InFlight(), list[int]()
    with in_flight.not_counted():
        for number in range(40):
            in_flight.launched(Result(number, waited))
    in_flight.launched(Result(40, waited))
    assert waited == []
    on_one_device = InFlight(counts=False)
    for number in range(40):
        on_one_device.launched(Result(number, waited))
    with on_one_device.not_counted():
        pass
    on_one_device.launched(Result(40, waited))
    assert waited == []
