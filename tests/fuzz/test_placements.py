"""Generated steps under both placements: equal numbers, and ours never sends more than the reference's."""

from __future__ import annotations

import dataclasses
import random

import pytest

from fuzz import oracles
from fuzz.programs import Program, random_setup, random_step
from fuzz.source import setup_source, source, tolerance, topology_source
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.passes.placement.hypergraph import TRANSFER_BYTES
from mpmd_trace.passes.placement.rematerializable import byte_size
from util import nightly

STEPS, SETUPS = 3, 3


def cost(subject: oracles.Subject) -> int:
    """What the cut makes small: the bytes that a step sends from mesh to mesh, and something for each transfer."""
    plan = make_plan(oracles.attempt(lambda: subject.lowered.partitioned.module))
    sent = [slot for one in plan.transfers if one.source != one.target for slot in one.outputs]
    return sum(byte_size(plan.slots[slot].type.tensor) + TRANSFER_BYTES for slot in sent)


@pytest.mark.parametrize("first", [5000, nightly(5000 + STEPS)])
def test_ours_computes_the_same_and_sends_no_more(first: int) -> None:
    compared = 0
    for seed in range(first, first + STEPS):
        rng = random.Random(seed)
        step = random_step(rng, ((3, 2),), most=3)
        subject = None
        for _ in range(SETUPS):
            setup = random_setup(rng, step)
            setup = dataclasses.replace(setup, meshes=(1,) * len(setup.meshes))
            if subject is None:
                subject = oracles.load(source(Program(step, setup)), tolerance(step))
                subject.expected = oracles.plain_module(subject)
            costs = {}
            try:
                for placement in ("cut", "reference"):
                    chosen = dataclasses.replace(setup, placement=placement)
                    one = subject.with_setup(topology_source(chosen) + setup_source(chosen, step))
                    oracles.interpret(one)
                    costs[placement] = cost(one)
            except oracles.Refused:
                continue
            compared += 1
            assert costs["cut"] <= costs["reference"], source(Program(step, setup), f"Seed {seed}.", test=True)
    assert compared > STEPS * SETUPS // 2
