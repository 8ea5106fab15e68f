"""`value_and_grad` over microbatches as a pipeline: the schedule's order, and the numbers of one device."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from mpmd_trace.equinox import filter_value_and_grad, name_layers
from pipelines import assert_same, topology
from util import filled, normal

WIDTH, ROWS, MICROBATCHES = 8, 16, 4


def config(schedule, names):
    half = len(names) // 2
    where = {name: f"m{i // half}" for i, name in enumerate(names)}
    return mt.make_config(topology(size=1), where, pipeline_schedule=schedule)


@pytest.mark.parametrize("schedule", ["1F1B", "ZeroBubbleH1"])
def test_token_weights_keys_and_state_in_the_order_of_the_schedule(schedule):
    """A schedule that cannot be followed is a warning, and warnings are errors here."""

    def loss(weights, state, x, y, tokens, key):
        for i, w in enumerate(weights):
            x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
        errors = jnp.sum((x - y) ** 2, axis=-1) * jax.random.uniform(key, x.shape[:1])
        return (jnp.sum(errors * tokens), jnp.sum(tokens)), state + 1

    def step(weights, state, x, y, tokens, key):
        of_batch = mt.value_and_grad(loss, microbatches=MICROBATCHES, reduce="weighted", state_argnum=1, key_argnum=5)
        (value, state), gradients = of_batch(weights, state, x, y, tokens, key)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), state, value

    weights = [0.3 * normal(i, WIDTH, WIDTH) for i in range(4)]
    x, y = normal(4, 2, ROWS, WIDTH)
    args = (weights, jnp.int32(0), x, y, jnp.arange(ROWS) % 3, jax.random.key(2))
    jitted = mt.jit(step, config(schedule, [f"layer{i}" for i in range(4)]))
    assert_same(jitted(*args), jax.jit(step)(*args))
    at_home = jitted.lower(*args).compile().function_mesh_assignment
    assert str(at_home).count("m1") >= 2


def test_a_module_with_floats_flags_and_a_flag_that_is_no_batch():
    class Model(eqx.Module):
        layers: list[eqx.nn.Linear]
        scale: float

        def __call__(self, x):
            for layer in self.layers:
                x = jnp.tanh(layer(x))
            return self.scale * x

    model = Model([filled(lambda: eqx.nn.Linear(WIDTH, WIDTH, key=jax.random.key(0))) for _ in range(2)], 0.5)
    model = name_layers(model, lambda m: m.layers, name=["layer0", "layer1"])

    def loss(model, x, *, doubled):
        return jnp.mean(jax.vmap(model)(2 * x if doubled else x) ** 2)

    def step(model, x):
        value, gradients = filter_value_and_grad(loss, microbatches=MICROBATCHES)(model, x, doubled=True)
        return value, eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradients))

    x = normal(0, ROWS, WIDTH)
    value, after = mt.filter_jit(step, config("1F1B", ["layer0", "layer1"]))(model, x)
    want, gradients = eqx.filter_value_and_grad(loss)(model, x, doubled=True)
    assert_same(value, want)
    wanted = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradients))
    assert_same(eqx.filter(after, eqx.is_array), eqx.filter(wanted, eqx.is_array))
    with pytest.raises(mt.MpmdError, match=r"5 microbatches of equally many rows: x is \[16, 8\]"):
        filter_value_and_grad(loss, microbatches=5)(model, x, doubled=True)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("dualpipe-v", "dualpipe-v needs at least 4 microbatches, two per mesh; got 2 meshes and 2 microbatches"),
        (mt.schedules.get_schedule("1f1b", 2, 5), "'1f1b' is for 5 microbatches, but the program has 2"),
    ],
)
def test_too_few_microbatches_for_the_schedule_are_refused_before_the_loss_is_traced(schedule, text):
    def loss(w, x):
        raise AssertionError("is traced")

    with pytest.raises(mt.MpmdError, match=text) as raised:
        mt.jit(mt.value_and_grad(loss, microbatches=2), config(schedule, ["a", "b"]))(
            jnp.ones((4, 4)), jnp.ones((4, 4))
        )
    assert __file__ in str(raised.value)
