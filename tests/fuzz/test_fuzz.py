"""Thirty generated programs, a thousand in `make nightly`, the same ones each time; `make fuzz` runs others, whole.

What a step computes is compared with JAX's own module of it, both op by op; so the steps share the executables of
their ops, and a program costs a tenth of a second.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from fuzz import oracles
from fuzz.programs import Layer, Program, Step, random_program, random_setup, random_step, shrink
from fuzz.source import setup_source, source, tolerance, topology_source
from util import nightly

#: `SETUPS` setups for each of `STEPS` steps.
PARTS, STEPS, SETUPS = 40, 100, 10
#: How many programs have sharded weights.
SHARDED = 3
#: What is asked for instead of all once per step: nothing, or a part.
ONCE: tuple[dict[str, Any], ...] = (
    {"hoists_nothing": True, "reduces_each": True},
    {"gather": "microbatch", "shard_optimizer": True},
    {"gather": "phase", "reduces_each": True},
    {"device_memory": 700, "shard_optimizer": True},
    {"shard_optimizer": True, "reduces_each": True},
)
#: One shape, so that ops are the same ones; an odd number of rows is not sharded.
SHAPES = ((3, 2),)


@pytest.mark.parametrize("part", [0, *map(nightly, range(1, PARTS))])
def test_partitioned_steps_compute_what_jax_does(part: int) -> None:
    checked = refused = 0
    for seed in range(part, STEPS, PARTS):
        rng = random.Random(seed)
        step = random_step(rng, SHAPES, most=3)
        subject = None
        for _ in range(SETUPS):
            setup = random_setup(rng, step)
            setup = dataclasses.replace(setup, meshes=(2,) * len(setup.meshes))  # the step was traced for these
            if subject is None:
                subject = oracles.load(source(Program(step, setup)), tolerance(step))
                subject.expected = oracles.plain_module(subject)
            else:
                subject = subject.with_setup(topology_source(setup) + setup_source(setup, step))
            checked += 1
            try:
                oracles.interpret(subject)
            except oracles.Refused:
                refused += 1
            except oracles.Finding as found:
                text = source(Program(step, setup), f"The suite's program of seed {seed}.", test=True)
                pytest.fail(f"{found}\n\n{text}", pytrace=False)
    assert refused < checked / 2, "programs that are refused test little"


def test_once_per_step_means_the_same_as_for_each_microbatch() -> None:
    """Weights and batches are sharded; with what is done once per step, without, and with something in between."""
    moved = changed = checked = 0
    for seed in range(SHARDED):
        rng = random.Random(seed)
        step = random_step(rng, ((4, 4),), most=3)
        step = dataclasses.replace(step, loop="enumerated_for", microbatches=2, work="grad", listed=False)
        step = dataclasses.replace(step, optimiser=("adam", "momentum")[seed % 2])
        setup = dataclasses.replace(random_setup(rng, step), shard_batch=True, shard_weights=True, schedule=None)
        setup = dataclasses.replace(setup, meshes=(2,) * len(setup.meshes))
        subject = oracles.load(source(Program(step, setup)), tolerance(step))
        subject.expected = oracles.plain_module(subject)
        texts = []
        try:
            for change in ({}, ONCE[0], ONCE[1 + seed % (len(ONCE) - 1)]):
                asked = dataclasses.replace(setup, **change)
                subject = subject.with_setup(topology_source(asked) + setup_source(asked, step))
                oracles.interpret(subject)
                texts.append(str(subject.lowered.partitioned.module))
        except oracles.Refused:
            continue
        checked += 1
        moved += "hoisted" in texts[0] and "hoisted" not in texts[1]
        changed += len(set(texts)) == len(texts)
    assert 2 * moved > checked > SHARDED / 2, "programs with nothing to share test little"
    assert 2 * changed > checked, "options without effect test little"


@pytest.mark.parametrize("seed", [1000, 1001, 1003])
def test_whole_programs(seed: int) -> None:
    program = random_program(seed)
    subject = oracles.load(source(program), tolerance(program.step))
    subject.expected = oracles.plain_results(subject)
    try:
        oracles.run(subject)
        oracles.text(subject)
    except oracles.Refused:
        pytest.skip("refused on purpose")


def test_what_fails_is_made_small() -> None:
    program = random_program(3)
    assert len(program.step.layers) > 2 and len(program.setup.meshes) > 2

    def fails(candidate: Program) -> bool:
        assert source(candidate)
        return any(layer.kind == "layer_norm" for layer in candidate.step.layers)

    layers = (*program.step.layers, Layer("layer_norm", tied=1), *program.step.layers)
    program = dataclasses.replace(program, step=dataclasses.replace(program.step, layers=layers))
    assert shrink(program, fails) == Program(Step(layers=(Layer("layer_norm"),)))


def test_what_is_wrong_is_found() -> None:
    program = Program(Step(layers=(Layer(),), optimiser="sgd"))
    text = source(program)
    subject = oracles.load(text, tolerance(program.step))
    subject.expected = oracles.plain_results(oracles.load(text.replace("0.1 * d", "0.2 * d"), 0.0))
    with pytest.raises(oracles.Finding, match=r"values: result\[0\]\['w0'\]"):
        oracles.run(subject)
    subject = oracles.load(text.replace("'f0': 's0'", "'f1': 's0'"), tolerance(program.step))
    with pytest.raises(oracles.Finding, match=r"refused: .*'f0'"):
        oracles.run(subject)
