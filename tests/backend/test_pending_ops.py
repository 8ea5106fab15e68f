"""Waiting for what other processes send."""

from __future__ import annotations

import threading

from mpmd_trace.backend.distribution.pending_ops import Deadline


class Coming:
    """An array that comes when the test says so, and counts how often it was looked at."""

    def __init__(self) -> None:
        self.come, self.looked = threading.Event(), 0

    def is_ready(self) -> bool:
        self.looked += 1
        return self.come.is_set()


def test_waiting_costs_little_while_nothing_comes() -> None:
    array, patience = Coming(), Deadline()
    threading.Timer(0.5, array.come.set).start()
    patience.until(array)
    assert array.come.is_set()
    assert array.looked <= 400  # every 20 microseconds at first, then every 2 ms


def test_the_end_is_for_those_who_wait_and_for_those_who_come_later() -> None:
    array, patience = Coming(), Deadline()
    threading.Timer(0.1, patience.end).start()
    patience.until(array)
    patience.until(array)
    assert not array.come.is_set()
    array.come.set()
