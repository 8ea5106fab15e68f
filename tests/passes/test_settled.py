"""Asking whether the greedy driver would change something changes nothing, and the answer "no" is right."""

from __future__ import annotations

import random

import pytest
import random_bodies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_plain_bodies import bodies_of, uses

from mpmd_trace.ir.bodies import fingerprint
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.greedy import Choices, Rewriter, apply_greedily
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.settled import Settled
from mpmd_trace.passes.stablehlo_optimize import StablehloOptimize

PASS = "stablehlo-target-independent-optimization"
SETTLED = """
!s = !mpmd.mesh_tensor<"m", tensor<4xf32>>
func.func public @main(%a: !s, %b: !s) -> (!s, !s) attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
  %f = mpmd.fragment<mesh="m", origin=["f"]> (%a, %b) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %0 = stablehlo.multiply %x, %c : tensor<4xf32>
    %1 = stablehlo.add %0, %y : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s, !s) -> !s
  %g = mpmd.transfer %b : (!s) -> !s
  return %f, %g : !s, !s
}
"""
OTHER_TYPE = '(!s) -> !mpmd.mesh_tensor<"m", tensor<4xf32>, memory_kind="pinned_host">'


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**9), folds=st.booleans())
def test_random_bodies(seed: int, folds: bool) -> None:
    rng = random.Random(seed)
    module = parse(random_bodies.module([random_bodies.body(rng) for _ in range(4)]))
    run_passes(module, f"{PASS}{{fold-op-element-limit=0}}" if rng.random() < 0.5 else "mpmd-canonicalize")
    patterns = Choices(StablehloOptimize(65536 if folds else 0).patterns)
    settled = Settled(patterns, unique_constants=True)
    for body in bodies_of(module):
        before = fingerprint(body), uses(body)
        answer = settled(body)
        assert (fingerprint(body.clone()), uses(body)) == before, "asking changed the body"
        copy = body.clone()
        changed = apply_greedily(copy, patterns, unique_constants=True, top_down=True, max_rounds=100).changed
        if answer:
            assert not changed


@pytest.mark.parametrize("name", [PASS, "mpmd-simplify-program"])
def test_what_is_settled_is_neither_copied_nor_put_on_a_work_list(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse(SETTLED)
    monkeypatch.setattr(Region, "clone", lambda *args: pytest.fail("a body was copied"))
    monkeypatch.setattr(Rewriter, "push", lambda *args: pytest.fail("a work list was filled"))
    run_passes(module, name)
    assert str(module) == str(parse(SETTLED))


def test_canonicalisation_of_what_is_settled_fills_no_work_list(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        SETTLED.replace("%b : (!s) -> !s", f"%b : {OTHER_TYPE}")
        .replace("-> (!s, !s) attr", f"-> (!s, {OTHER_TYPE[8:]}) attr")
        .replace(": !s, !s\n}", f": !s, {OTHER_TYPE[8:]}\n}}")
    )
    module = parse(text)
    monkeypatch.setattr(Rewriter, "push", lambda *args: pytest.fail("a work list was filled"))
    run_passes(module, "mpmd-canonicalize")
    assert str(module) == str(parse(text))
