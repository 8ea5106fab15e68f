"""`mpmd-merge-followers`: a function says which neighbours become one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.passes.optimize.pipeline_programs import pipeline

from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace.passes.fragment_info import call_counter
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES
from mpmd_trace.passes.programs.merge_followers import MergeFollowers
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import max_examples


def labels(module: Module, mesh: str) -> list[str]:
    """Origins, stage and microbatch of each fragment of the mesh."""
    return [
        f"{'+'.join(o.short for o in op.origin)}/{op.stage}#{call_counter(op)}"
        for op in module.main.body
        if isinstance(op, FragmentOp) and op.mesh == mesh
    ]


def scheduled(schedule: str = "1F1B", **size: int) -> Module:
    module = parse(pipeline(2, 3, **size))
    run_passes(module, [PipelineScheduler(schedule=SCHEDULES[schedule])])
    return module


def test_a_forward_and_its_backward() -> None:
    module = scheduled()
    run_passes(module, [MergeFollowers(lambda a, b: call_counter(a) == call_counter(b))])
    assert labels(module, "m1") == [f'"f1"+"f1"(1)/None#{i}' for i in range(3)]
    assert labels(module, "m0") == [
        *('"f0"/None#0', '"f0"/None#1', '"f0"(1)/None#0', '"f0"/None#2', '"f0"(1)/None#1', '"f0"(1)/None#2')
    ]


def test_stages_and_microbatches_stay_where_they_are_the_same() -> None:
    module = scheduled("GPipe", stages_per_mesh=2)
    assert any("/0#0" in one for one in labels(module, "m0"))
    run_passes(module, [MergeFollowers(lambda a, b: a.stage == b.stage)])
    found = labels(module, "m0")
    assert all("/None#None" in one for one in found if "+" in one or one.count("f") > 1)
    assert_same_meaning(scheduled("GPipe", stages_per_mesh=2), module)


def test_nothing_without_a_function() -> None:
    module = scheduled()
    before = module.to_generic()
    run_passes(module, [MergeFollowers()])
    assert module.to_generic() == before


@given(seed=st.integers(0, 999), chance=st.sampled_from([0.3, 0.7, 1.0]), schedule=st.sampled_from(["1F1B", "GPipe"]))
@max_examples(30)
def test_any_choice_keeps_the_meaning(seed: int, chance: float, schedule: str) -> None:
    dice = random.Random(seed)
    module = scheduled(schedule)
    count = sum(len(labels(module, m)) for m in ("m0", "m1"))
    run_passes(module, [MergeFollowers(lambda a, b: dice.random() < chance)])
    assert verify(module) == []
    assert_same_meaning(scheduled(schedule), module)
    if chance == 1.0:
        assert sum(len(labels(module, m)) for m in ("m0", "m1")) < count


@pytest.mark.parametrize("schedule", ["none", "1F1B"])
def test_merging_all_of_a_mesh(schedule: str) -> None:
    """With one mesh nothing lies between."""
    module = parse(pipeline(1, 3))
    run_passes(module, [PipelineScheduler(schedule=SCHEDULES[schedule]), MergeFollowers(lambda a, b: True)])
    assert len(labels(module, "m0")) == 1
