"""Some generated programs over two processes; `make fuzz` runs others."""

from __future__ import annotations

import random

import pytest

from fuzz import driver
from fuzz.programs import Layer, Program, Setup, Step, over_processes, random_setup, random_step
from fuzz.source import source


@pytest.mark.nightly
def test_several_processes_compute_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    job = driver.Job(2)
    try:
        for seed in (2, 3, 4):
            rng = random.Random(seed)
            step = random_step(rng, ((2, 3),), most=2)
            program = Program(step, over_processes(random_setup(rng, step), rng, 2))
            assert job.check(program, []).kind == "same", seed

        def other_rate(program: Program) -> str:
            return source(program).replace("0.1 * d", "0.2 * d" if program.setup.processes else "0.1 * d")

        monkeypatch.setattr(driver, "source", other_rate)
        step = Step(layers=(Layer(),), optimiser="sgd")
        wrong = job.check(Program(step, Setup(processes=(0, 1))), [])
        assert wrong.kind == "finding" and "bits: result[0][0]['w0']" in wrong.text
    finally:
        job.close()
