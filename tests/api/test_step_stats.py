"""What `step_stats` says is what was called, counted and planned."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

import mpmd_trace
from mpmd_trace import schedules
from mpmd_trace.api.step_stats import WINDOW, StepClock, counted_memory, plan_bubble
from mpmd_trace.scheduling.utilization import model_flops
from pipelines import accumulate, batch, config, weights


@pytest.fixture(scope="module")
def compiled() -> Any:
    jitted = mpmd_trace.jit(accumulate, config(pipeline_schedule="1F1B"))
    return jitted.lower(weights(), batch(4)).compile()


def test_before_and_after_calls(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_clock", StepClock())
    before = compiled.step_stats(tokens=64)
    assert (before.steps, before.seconds, before.tokens_per_second, before.mfu) == (0, None, None, None)
    arguments = compiled.place(weights(), batch(4))[0]
    for _ in range(3):
        compiled(*arguments)
    stats = compiled.step_stats(tokens=64, peak_flops=1e9)
    assert stats.steps == 3 and stats.seconds is not None and stats.seconds > 0
    assert stats.tokens_per_second == pytest.approx(64 / stats.seconds)
    flops = model_flops(compiled.lowered.compiler_ir("stablehlo"))
    assert stats.flops_per_second == pytest.approx(flops / stats.seconds)
    assert stats.mfu == pytest.approx(flops / stats.seconds / (4 * 1e9))  # two meshes of two devices
    assert stats.bytes_sent == compiled.placement_report().bytes
    assert stats.memory == {mesh: one.peak for mesh, one in compiled.memory_analysis().items()}
    assert not stats.memory_is_counted  # CPUs do not
    assert dataclasses.asdict(stats)["bubble"] == stats.bubble


def test_seconds_are_the_mean_between_the_starts_of_the_last_calls() -> None:
    clock = StepClock()
    for now in (0.0, 1.0, 5.0):
        clock.tick(now=lambda now=now: now)  # type: ignore[call-arg]
    assert clock.seconds == 2.5 and clock.steps == 3
    for number in range(WINDOW + 1):
        clock.tick(now=lambda number=number: 100.0 + 2 * number)  # type: ignore[call-arg]
    assert clock.seconds == 2.0 and clock.steps == WINDOW + 4


@pytest.mark.parametrize(("meshes", "microbatches"), [(2, 4), (2, 8)])
def test_the_bubble_of_a_plan_is_that_of_its_schedule(meshes: int, microbatches: int) -> None:
    lowered = mpmd_trace.jit(accumulate, config(pipeline_schedule="1F1B")).lower(weights(meshes), batch(microbatches))
    plan = lowered.compile().program.plan
    busy = [run for run in plan.runs if run.origins]
    # A forward is one, a backward two; what merges both is three, and all else is nothing.
    costs = [0.0] * len(plan.programs)
    for run in busy:
        costs[run.program] = float(sum(1 + transposed for _, transposed in run.origins))
    schedule = schedules.get_schedule("1f1b", meshes, microbatches)
    simulation = schedules.simulate(schedule)
    assert plan_bubble(plan, costs) == pytest.approx(simulation.bubble_rate_makespan)


def test_meshes_that_share_devices_take_turns() -> None:
    one = config().topology["m0"]
    shared = mpmd_trace.make_config({"m0": one, "m1": one}, {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B")
    compiled = mpmd_trace.jit(accumulate, shared).lower(weights(), batch(4)).compile()
    assert compiled.step_stats().bubble == pytest.approx(0.0)


def test_platforms_that_count_memory() -> None:
    def mesh(*peaks: int | None) -> Any:
        known = [None if peak is None else {"peak_bytes_in_use": peak} for peak in peaks]
        return SimpleNamespace(local_devices=[SimpleNamespace(memory_stats=lambda one=one: one) for one in known])

    meshes = {"m0": mesh(5, 7), "m1": mesh(3, 2), "partly": mesh(4, None), "elsewhere": mesh()}
    assert counted_memory(meshes) == {"m0": 7, "m1": 3}


def test_a_loaded_program_has_no_flops(compiled: Any, tmp_path: Any) -> None:
    compiled.save(tmp_path / "step.mpmd")
    loaded = mpmd_trace.load(tmp_path / "step.mpmd")
    stats = loaded.step_stats(tokens=3)
    assert stats.flops_per_second is None and stats.bytes_sent == compiled.step_stats().bytes_sent


def test_it_prints_units(compiled: Any) -> None:
    text = str(compiled.step_stats())
    lines = [line.split("  ")[0] for line in text.splitlines()]
    assert lines[:2] == ["the last steps", "figure"] and lines[3] == "steps"
    assert {"bubble, by FLOPs", "sent in a step"} <= set(lines) and " KiB" in text
    assert "<table>" in compiled.step_stats()._repr_html_()
