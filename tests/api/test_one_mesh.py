"""One mesh with an axis for the pipeline, and names that are assigned by their work."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType

import mpmd_trace as mt
from mpmd_trace.ir.text import parse
from mpmd_trace.scheduling.balance import balanced
from pipelines import assert_same, mesh
from util import max_examples, normal

WIDTH = 8


def loss(weights, x, repeats):
    """Layer i has `repeats[i]` products."""
    for i, (w, n) in enumerate(zip(weights, repeats, strict=True)):

        def layer(w, x, n=n):
            for _ in range(n):
                x = jnp.tanh(x @ w)
            return x

        x = mt.named_computation(layer, name=f"layer{i}")(w, x)
    return jnp.mean(x**2)


def step_of(repeats):
    def step(weights, x):
        value, gradients = mt.value_and_grad(lambda w, x: loss(w, x, repeats), microbatches=2)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    return step


def arguments(repeats):
    return [0.3 * normal(i, WIDTH, WIDTH) for i in range(len(repeats))], normal(9, 8, WIDTH)


@pytest.mark.parametrize("names", ["auto", [1, 1]])
def test_a_warning_about_the_step_is_given_once(names):
    def step(w, x):
        return mt.value_and_grad(lambda w, x: jnp.mean(loss(w, x, (1, 1))) ** 2, microbatches=2)(w, x)

    config = mt.make_config(mesh(0, (2, 1), "pp", "data"), names, stage_axis="pp")
    with pytest.warns(mt.MpmdWarning, match="the loss is not linear") as told:
        mt.jit(step, config).lower(*arguments((1, 1)))
    assert len([one for one in told if "is not linear" in str(one.message)]) == 1


def test_names_are_balanced_and_the_numbers_are_those_of_jit():
    whole = mesh(0, (2, 2), "data", "pp")
    config = mt.make_config(whole, "auto", stage_axis="pp", pipeline_schedule="1F1B", placement="cut")
    assert {name: m.shape for name, m in config.topology.items()} == {"pp0": {"data": 2}, "pp1": {"data": 2}}
    assert [d.id for d in config.topology["pp1"].devices.flat] == [d.id for d in whole.devices[:, 1]]
    repeats = (4, 1, 1, 1)
    step, args = step_of(repeats), arguments(repeats)
    jitted = mt.jit(step, config)
    assert_same(jitted(*args), jax.jit(step)(*args))
    lowered = jitted.lower(*args)
    assert lowered.config.name_to_mesh_assignment == {
        "layer0": "pp0",
        "layer1": "pp1",
        "layer2": "pp1",
        "layer3": "pp1",
    }
    written = mt.make_config(
        whole, lowered.config.name_to_mesh_assignment, stage_axis="pp", pipeline_schedule="1F1B", placement="cut"
    )
    assert mt.jit(step, written).lower(*args).as_text() == lowered.as_text()


def test_another_program_is_balanced_by_itself():
    config = mt.make_config(mesh(0, (2,), "pp"), "auto", stage_axis="pp", placement="cut")
    assert [m.shape for m in config.topology.values()] == [{"pp": 1}, {"pp": 1}]
    sizes = []
    for repeats in ((1, 1, 4), (4, 1, 1)):
        jitted = mt.jit(step_of(repeats), config)
        sizes.append(list(jitted.lower(*arguments(repeats)).config.name_to_mesh_assignment.values()).count("pp0"))
    assert sizes == [2, 1]


def test_an_abstract_mesh():
    whole = AbstractMesh((3, 2), ("pp", "x"), axis_types=(AxisType.Auto, AxisType.Auto))
    config = mt.make_config(whole, stage_axis="pp")
    assert config.assigns_names, "auto is the default"
    assert list(config.topology) == ["pp0", "pp1", "pp2"] and config.is_abstract
    assert all(dict(m.shape) == {"x": 2} for m in config.topology.values())


@max_examples(4)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 3))
def test_neighbours_in_the_order_of_the_program_and_every_mesh_has_one(repeats, meshes):
    traced = mt.compiler.trace(lambda *args: loss(*args, repeats), *jax.eval_shape(lambda: arguments(repeats)))
    module = parse(traced.mlir_text())
    names = [f"m{i}" for i in range(meshes)]
    if len(repeats) < meshes:
        with pytest.raises(mt.MpmdError, match=f"has {len(repeats)} named computations"):
            balanced(module, names)
        return
    found = balanced(module, names)
    assert list(found) == [f"layer{i}" for i in range(len(repeats))]
    order = [assigned.mesh for assigned in found.values()]
    assert order == sorted(order) and set(order) == set(names)
    # No other place for one cut makes the busiest mesh less busy.
    busiest = max(sum(n for n, m in zip(repeats, order, strict=True) if m == name) for name in names)
    for at in range(1, len(repeats)):
        if meshes == 2:
            assert busiest <= max(sum(repeats[:at]), sum(repeats[at:])) * 1.2


@pytest.mark.parametrize(
    ("topology", "axis", "text"),
    [
        (lambda: mesh(0, (2,), "pp"), None, "needs stage_axis, the axis along which stages lie; its axes are 'pp'"),
        (lambda: mesh(0, (2,), "pp"), "stages", "has no axis 'stages'"),
        (lambda: {"a": mesh(0, (2,), "pp")}, "pp", "cuts one mesh into those of the pipeline"),
    ],
)
def test_mistakes_are_told(topology, axis, text):
    with pytest.raises(mt.MpmdError, match=text):
        mt.make_config(topology(), "auto", stage_axis=axis)
