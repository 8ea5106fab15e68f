"""Every pass that rewrites keeps what a program computes; random programs with loops, calls and effects."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import Shape, random_program

from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from oracle import assert_same_meaning

MESHED = Shape(fragments=4, body_ops=5, calls=1, loops=1, bundles=0.3)
LOCAL = Shape(fragments=2, body_ops=3, calls=2, loops=1, local=True, sinkable=0.5)
BUNDLES = Shape(fragments=3, body_ops=3, bundles=0.9, scalars=1.0, shardings=False)
PASSES = {
    "mpmd-call-inline": MESHED,
    "mpmd-copy-constants": MESHED,
    "mpmd-erase-unused-callee-block-arguments": LOCAL,
    "mpmd-fragment-dce": MESHED,
    "mpmd-fragment-dedup": MESHED,
    "mpmd-merge-transfers": BUNDLES,
    "mpmd-move-transfers-to-producer": MESHED,
    "mpmd-remove-transfer-cycles": MESHED,
    "mpmd-sink-negligible-ops-into-call-op": LOCAL,
    "mpmd-split-and-prioritize-transfer-independent-computations": MESHED,
    "mpmd-split-bwd-fragments": MESHED,
    "mpmd-split-bwd-fragments{split-first-stage=true}": MESHED,
    "mpmd-uniquify-function-inputs-outputs": MESHED,
    "mpmd-uniquify-function-inputs-outputs{use-transfer-instead-of-fragment=true}": MESHED,
    "mpmd-unroll-for-loops": LOCAL,
    "mpmd-unroll-for-loops,mpmd-from-unroll-to-call-counter,mpmd-call-inline": MESHED,
}


@pytest.mark.parametrize("pipeline", PASSES)
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6))
def test_the_program_means_the_same(pipeline: str, seed: int) -> None:
    before = parse(random_program(seed, PASSES[pipeline]))
    after = before.clone()
    run_passes(after, pipeline)
    parse(after.to_generic())  # the dialect's verifier agrees
    assert_same_meaning(before, after)
