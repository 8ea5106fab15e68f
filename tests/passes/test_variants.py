"""Passes of the reference as `mpmd_trace.jit` runs them: text names each, so that it can be run again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import mpmd_trace as mt
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.manager import PassRun, run_passes
from mpmd_trace.passes.parse_pipeline import parse_pipeline
from mpmd_trace.passes.pass_table import OLD_OPTIONS, VARIANTS
from mpmd_trace.passes.registry import build, pass_class


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_has_a_name_of_its_own(name: str) -> None:
    (made,) = build(name)
    assert made.spec == made.name == name
    (base,) = type(made).__bases__
    assert issubclass(base, Pass) and base.name != name
    assert made.summary.startswith(base.name) and pass_class(base.name) is base


def _step(weights: Any, x: jax.Array) -> Any:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for name, w in weights.items():
            x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=name)(w, x)
        return jnp.mean(x**2)

    value, gradients = mt.value_and_grad(loss, microbatches=4)(weights, x)
    return jax.tree.map(lambda w, g: w - g, weights, gradients), value


@pytest.mark.filterwarnings("ignore:.*belongs to no named computation")
@pytest.mark.parametrize(("placement", "schedule"), [("cut", None), ("cut", "ZeroBubbleH1"), ("reference", "1f1b")])
def test_what_a_step_ran_can_be_run_again_from_its_text(placement: str, schedule: str | None) -> None:
    mesh = AbstractMesh((2,), ("data",))
    config = mt.make_config(
        {"m0": mesh, "m1": mesh}, {"a": "m0", "b": "m1"}, pipeline_schedule=schedule, placement=placement
    )
    runs: list[tuple[str, str, str]] = []
    before: list[Module] = []

    def hook(run: PassRun, module: Module) -> None:
        if before:
            again = run_passes(before.pop(), run.spec)
            runs.append((run.spec, str(again), str(module)))
        before.append(module.clone())

    types = (
        {name: jax.ShapeDtypeStruct((8, 8), jnp.float32) for name in "ab"},
        jax.ShapeDtypeStruct((8, 8), jnp.float32),
    )
    mt.jit(_step, config).lower(*types, hooks=[hook])
    assert {parse_pipeline(spec)[0][0] for spec, _, _ in runs} & VARIANTS.keys()
    wrong = [spec for spec, again, first in runs if again != first]
    # Sets of meshes are in the order of uses, which a module that was cloned or read has another one of.
    assert set(wrong) <= {"mpmd-infer-mesh-populate-use-set"}


@pytest.mark.parametrize(("name", "option"), OLD_OPTIONS)
def test_options_of_before_are_passes_now(name: str, option: str) -> None:
    instead = OLD_OPTIONS[name, option]
    with pytest.warns(DeprecationWarning, match=f"{{{option}}} is the pass {instead}"):
        (made,) = build(f"{name}{{{option}=true}}")
    assert made.spec == instead
    with pytest.warns(DeprecationWarning, match=instead):
        assert build(f"{name}{{{option}=false}}")[0].spec == name
    with pytest.warns(DeprecationWarning, match=instead), pytest.raises(MpmdError, match="no option 'nothing'"):
        build(f"{name}{{{option} nothing=1}}")


def test_other_options_stay_with_those_of_before() -> None:
    with pytest.warns(DeprecationWarning, match="keep-memories"):
        (made,) = build("mpmd-infer-mesh-finalize{infer-transfers=true keep-memories=true}")
    assert made.spec == "mpmd-finalize-keeping-memories{infer-transfers=true}"


def test_rules_of_a_schedule_are_text() -> None:
    infos = [f'FragmentInfo(origins=["{name}"],stage=0,call_counter=0,mesh_name="m")' for name in "fg"]
    rule = f"FragmentScheduleRule(ordered_fragments=[{'->'.join(infos)}])"
    (made,) = build(f"mpmd-follow-schedule{{rules={rule}}}")
    assert made.spec == f"mpmd-follow-schedule{{rules={rule}}}"
