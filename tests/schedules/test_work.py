"""How much work schedules take: counted, not timed, but for one promise of the simulator."""

from __future__ import annotations

import pytest

from mpmd_trace.schedules import Costs, search, zb_auto
from mpmd_trace.schedules import _dispatch as dispatching
from mpmd_trace.schedules._lower_bounds import Chain


def test_zb_auto_places_as_many_actions_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no schedule meets the bound; a thousand attempts would take half a minute at this size."""
    attempts = counted_attempts(monkeypatch)
    costs = Costs(forward=(10.0, 11.0, 12.0, 10.0), input_grad=10.2, weight_grad=(7.0, 10.0, 7.0, 10.0), latency=0.4)
    for effort in (None, 5_000):
        attempts.clear()
        zb_auto(4, 16, costs, 4, **({} if effort is None else {"effort": effort}))
        assert 0 < len(attempts) * 3 * 4 * 16 <= (effort or 200_000)


def test_search_of_a_small_pipeline_ends_when_nothing_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its effort would be enough for hundreds of thousands of attempts."""
    attempts = counted_attempts(monkeypatch)
    found = search(Costs(collectives={"F": 1.0, "I": 1.0, "W": 0.0}), 2, meshes=2, microbatches=3)
    assert found.gap > 0.1 and 0 < len(attempts) < 5_000


def counted_attempts(monkeypatch: pytest.MonkeyPatch) -> list[dispatching.Settings]:
    """Return a list to which each attempt adds its settings."""
    attempts: list[dispatching.Settings] = []
    dispatched = dispatching._dispatched

    def counted(chain: Chain, settings: dispatching.Settings) -> dispatching.Dispatched:
        attempts.append(settings)
        return dispatched(chain, settings)

    monkeypatch.setattr(dispatching, "_dispatched", counted)
    return attempts


def test_search_of_a_large_pipeline_does_not_try_to_solve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the solver ran")

    monkeypatch.setattr("scipy.optimize.milp", never)
    found = search(meshes=6, microbatches=12, chunks=(1, 2))
    assert found.exact is None and found.best.result.makespan == 38.5 == found.lower_bound
