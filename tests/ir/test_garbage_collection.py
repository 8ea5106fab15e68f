"""What is made while the garbage collector is paused."""

from __future__ import annotations

import gc

import pytest

from mpmd_trace.ir import garbage_collection
from mpmd_trace.ir.garbage_collection import paused_collector


def test_what_was_made_meanwhile_is_not_scanned_when_the_collector_is_on_again() -> None:
    with paused_collector():
        made = [[i] for i in range(20_000)]
    assert gc.isenabled() and made
    assert len(gc.get_objects(generation=0)) < 2_000
    found = sum(1 for one in gc.get_objects(generation=2) if isinstance(one, list) and len(one) == 1)
    assert found >= len(made)


def test_objects_that_are_frozen_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "_others_freeze", False)
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with paused_collector():
            made = [[i] for i in range(2_000)]
        assert garbage_collection._others_freeze  # so that they need not be counted again
        assert made and 0.9 * count < gc.get_freeze_count() <= count  # some have ended
    finally:
        gc.unfreeze()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collector(), paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
