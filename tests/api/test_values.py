"""Ordinary training code: its arguments, results and state, with the values of plain jax.jit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import mpmd_trace
from mpmd_trace import MpmdError, call, named_computation, named_tensor
from pipelines import (
    WIDTH,
    Weights,
    accumulate,
    assert_same,
    batch,
    check,
    config,
    layer,
    loss,
    meshes_of,
    topology,
    weights,
)
from util import nightly, normal

OPTIMIZERS = {
    "sgd": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-2),
    "adamw-schedule": optax.adamw(optax.cosine_decay_schedule(1e-2, 10)),
    "lion": optax.lion(1e-3),
    "clip-adamw": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2)),
    # State beside the moments: a counter with a condition, hyperparameters, a typed key, a mask, factors.
    "every-other-step": optax.MultiSteps(optax.adam(1e-2), 2),
    "hyperparameters": optax.inject_hyperparams(optax.adam)(
        learning_rate=optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    ),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1)),
    "masked": optax.masked(optax.adamw(1e-2), [True, False]),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "muon": optax.contrib.muon(1e-2),
    # The new state is on another mesh than the one where the old state is wanted (or is not used at all).
    "novograd": optax.novograd(1e-2),
    "zero-nans": optax.chain(optax.zero_nans(), optax.sgd(0.1)),
}


#: Made of the same parts as others.
LIKE_OTHERS = ("sgd", "adam", "lion", "clip-adamw")


@pytest.mark.parametrize("name", [nightly(name) if name in LIKE_OTHERS else name for name in OPTIMIZERS])
def test_optimizers(name: str, partitioned: list[str]) -> None:
    optimizer = OPTIMIZERS[name]

    def step(ws: Weights, state: Any, x: jax.Array) -> Any:
        value, grads = accumulate(ws, x)
        updates, state = optimizer.update(grads, state, ws)
        return optax.apply_updates(ws, updates), state, value

    ws, x = weights(), batch(2)
    plain, state = jax.jit(step), optimizer.init(ws)
    expected = plain(*plain(ws, state, x)[:2], x)
    jitted = mpmd_trace.jit(step, config())
    # What a step returns is where the next one wants it: nothing is compiled again.
    found = jitted(*jitted(ws, state, x)[:2], x)
    assert_same(found, expected, rtol=1e-4, atol=1e-5)
    assert len(partitioned) == 1


def test_unused_and_passed_through_arguments() -> None:
    def step(ws: Weights, x: jax.Array, unused: Any, same: jax.Array) -> Any:
        return loss(ws, x), same, {"constant": jnp.arange(3), "same again": same}

    check(step, weights(), batch(), {"a": jnp.ones(3), "b": [np.zeros(2)]}, jnp.arange(4.0))


def test_a_key_that_is_only_handed_through_stays_on_its_mesh() -> None:
    """As that of a dropout layer of the last mesh in a program that evaluates."""

    def evaluate(ws: Weights, x: jax.Array, key: jax.Array) -> Any:
        return loss(ws, x), key

    device, meshes = jax.devices()[1], topology(size=1)
    for place in (NamedSharding(meshes["m1"], PartitionSpec()), SingleDeviceSharding(device)):
        key = jax.device_put(jax.random.key(3), place)
        found = mpmd_trace.jit(evaluate, config(topology=meshes))(weights(), batch(), key)[1]
        assert found.devices() == {device}
        assert jax.random.key_data(found).tolist() == jax.random.key_data(key).tolist()


@pytest.mark.parametrize("loop", [False, True], ids=["", "loop"])
@pytest.mark.parametrize("kind", ["unread", "returned", "read"])
def test_a_key_that_a_named_layer_hands_through_stays_on_its_mesh(kind: str, loop: bool) -> None:
    """As that of a dropout layer that is given to its layer in a program that evaluates, where nothing is dropped."""

    def layer(w: jax.Array, x: jax.Array, key: jax.Array) -> Any:
        if kind == "read":
            x += jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.tanh(x @ w), key if kind == "returned" else None

    def evaluate(ws: Weights, x: jax.Array, keys: list[jax.Array]) -> Any:
        found = []
        for i, (w, key) in enumerate(zip(ws, keys, strict=True)):
            x, same = jax.jit(named_computation(layer, name=f"f{i}"))(w, x, key)
            found.append(key if same is None else same)
        return x, found

    def evaluate_all(ws: Weights, x: jax.Array, keys: list[jax.Array]) -> Any:
        def one(i: Any, keys: list[jax.Array], x: jax.Array) -> Any:
            return evaluate(ws, x, keys)[::-1]

        keys, x = mpmd_trace.enumerated_for(one, keys, jnp.stack([x, 2 * x]))
        return x, keys

    meshes = topology(size=1)
    keys = [jax.device_put(jax.random.key(i), NamedSharding(m, PartitionSpec())) for i, m in enumerate(meshes.values())]
    step = evaluate_all if loop else evaluate
    found = mpmd_trace.jit(step, config(topology=meshes))(weights(), batch(), keys)
    assert [key.devices() for key in found[1]] == [{d} for d in jax.devices()[:2]]
    assert_same(found, jax.jit(step)(weights(), batch(), [jax.random.key(i) for i in range(2)]))


def test_unused_parameter_has_a_zero_gradient() -> None:
    def model(p: Any, x: jax.Array) -> jax.Array:
        return loss(p["used"], x)

    check(jax.value_and_grad(model), {"used": weights(), "unused": jnp.ones(3)}, batch())


def test_tied_parameters_of_several_stages() -> None:
    def model(p: Any, x: jax.Array) -> jax.Array:
        h = named_computation(lambda e, x: x @ e, name="f0")(p["tied"], x)
        h = named_computation(layer, name="f1")(p["w"], h)
        return named_computation(lambda e, h: jnp.mean((h @ e.T) ** 2), name="f2")(p["tied"], h)

    p = {"tied": weights()[0], "w": weights()[1]}
    names = {"f0": "m0", "f1": "m1", "f2": "m2"}
    check(
        lambda p, x: accumulate(p, x, jax.value_and_grad(model)),
        p,
        batch(2),
        config=config(names, meshes=3, pipeline_schedule="1F1B"),
    )


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "raw"])
def test_prng_keys(typed: bool) -> None:
    def dropped(w: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
        return layer(w, x) * jax.random.bernoulli(key, 0.5, x.shape)

    def step(ws: Weights, x: jax.Array, key: jax.Array) -> Any:
        key, first, second = jax.random.split(key, 3)

        def model(ws: Weights, x: jax.Array) -> jax.Array:
            h = named_computation(dropped, name="f0")(ws[0], x, first)
            return jnp.sum(named_computation(dropped, name="f1")(ws[1], h, second) ** 2)

        value, grads = call(jax.value_and_grad(model), 0)(ws, x)
        return value, grads, key

    key = jax.random.key(3) if typed else jax.random.PRNGKey(3)
    jitted = check(step, weights(), batch(), key)
    again = jitted(weights(), batch(), jitted(weights(), batch(), key)[2])[2]
    assert again.dtype == key.dtype


def test_integer_and_bf16_leaves() -> None:
    def step(p: Any, tokens: jax.Array, mask: jax.Array) -> Any:
        def model(w: Any) -> jax.Array:
            x = named_computation(lambda e, t: e[t], name="f0")(w["e"], tokens)
            y = named_computation(lambda w, x, m: jnp.where(m[:, None], x @ w, 0), name="f1")(w["w"], x, mask)
            return jnp.mean(y.astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(model)({"e": p["e"], "w": p["w"]})
        return value, grads, {"count": p["count"] + 1, "small": p["small"]}

    half = jnp.bfloat16
    p = {
        "e": jnp.linspace(-1, 1, 12, dtype=half).reshape(3, 4),
        "w": weights()[0].astype(half),
        "count": jnp.int32(7),
        "small": jnp.arange(4, dtype=jnp.uint8),
    }
    check(step, p, jnp.array([0, 2, 1, 1]), jnp.array([True, False, True, True]), rtol=2e-2, atol=1e-2)


def test_zero_size_arrays() -> None:
    def step(ws: Weights, x: jax.Array, empty: jax.Array) -> Any:
        h = named_computation(lambda w, x, e: layer(w, x) + e.sum(), name="f0")(ws[0], x, empty)
        return named_computation(lambda w, h: (h @ w, h[:0]), name="f1")(ws[1], h), empty * 2

    check(step, weights(), batch(), jnp.zeros((0, 3)))


def test_auxiliary_outputs() -> None:
    def model(ws: Weights, x: jax.Array) -> Any:
        h = named_computation(layer, name="f0")(ws[0], x)
        y = named_computation(layer, name="f1")(ws[1], h)
        return jnp.mean(y**2), {"hidden": h, "stats": (h.mean(), y.max()), "none": None}

    check(jax.value_and_grad(model, has_aux=True), weights(), batch())


def test_python_numbers_and_weak_types(partitioned: list[str]) -> None:
    def step(ws: Weights, x: jax.Array, scale: Any, count: Any) -> Any:
        return loss(ws, x) * scale, count + 1, scale * 2

    jitted = check(step, weights(), batch(), 0.5, 3)
    _, count, scale = jitted(weights(), batch(), 0.5, 3)
    jitted(weights(), np.asarray(batch()), scale, count)
    assert len(partitioned) == 1, "a weak result is what a Python number was"
    jitted(weights(), batch(), jnp.float32(1), 3)
    assert len(partitioned) == 2


def test_computation_outside_of_names_on_both_meshes() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        value, grads = accumulate(ws, (x - x.mean()) / x.std())
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))
        clipped = [g / jnp.maximum(norm, 1.0) for g in grads]
        return value, norm, clipped, jnp.stack([jnp.sum(g) for g in clipped])

    check(step, weights(), batch(2), config=config(pipeline_schedule="GPipe"))


def test_reduce_and_broadcast() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        x = mpmd_trace.broadcast(x)
        a = named_computation(layer, name="f0")(ws[0], x)
        b = named_computation(layer, name="f1")(ws[1], x)
        total = mpmd_trace.reduce(a, b, kind="add")
        largest = mpmd_trace.reduce({"x": a.max()}, {"x": b.max()}, kind="max")
        return total, largest, mpmd_trace.reduce(a + b)

    check(step, weights(), batch())


def test_named_tensor_decides_the_mesh() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        x = named_tensor(x, "input")
        h = named_computation(layer, name="f0")(ws[0], x)
        return jnp.mean(h**2), named_tensor({"h": h * 2}, "kept")

    names = {"f0": "m0", "input": "m1", "kept": "m1"}
    jitted = check(step, weights(), batch(), config=config(names))
    outputs = jitted.lower(weights(), batch()).compile().function_mesh_assignment.outputs
    assert outputs[1] == {"h": "m1"}


def test_input_and_output_mesh_assignment() -> None:
    cfg = config(input_mesh_assignment=(["m1", None], "m1"), output_mesh_assignment=("m0", ["m1", "m0"]))
    jitted = check(jax.value_and_grad(loss), weights(), batch(), config=cfg)
    value, grads = jitted(weights(), batch())
    assert meshes_of((value, grads), cfg.topology) == ("m0", ["m1", "m0"])
    found = jitted.lower(weights(), batch()).compile().function_mesh_assignment
    assert found.inputs == ((["m1", "m1"], "m1"), {})
    assert found.outputs == ("m0", ["m1", "m0"])


def test_shardings_of_arguments_and_results() -> None:
    meshes = topology()
    split = NamedSharding(meshes["m0"], PartitionSpec("x"))

    def step(ws: Weights, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(ws, x)
        return value, grads, x * 2

    axes = NamedSharding(meshes["m0"].abstract_mesh, PartitionSpec("x"))
    jitted = check(step, weights(), batch(), in_shardings=(None, split), out_shardings=(None, axes, None))
    value, grads, _ = jitted(weights(), batch())
    assert [g.sharding.spec for g in grads] == [PartitionSpec("x")] * 2
    assert [g.sharding.mesh for g in grads] == [meshes["m0"], meshes["m1"]], "an abstract mesh says axes alone"
    assert value.sharding.is_equivalent_to(NamedSharding(meshes["m1"], PartitionSpec()), 0)
    found = jitted.lower(weights(), batch()).compile().function_named_shardings
    assert found.inputs[0][1].is_equivalent_to(split, 2)


def test_a_sharding_over_a_mesh_puts_arguments_and_results_there() -> None:
    meshes = topology()
    there = NamedSharding(meshes["m1"], PartitionSpec("x"))
    cfg = config(topology=meshes)

    def step(ws: Weights, x: jax.Array) -> Any:
        return loss(ws, x), x + 1

    jitted = check(step, weights(), batch(), config=cfg, in_shardings=(there, None), out_shardings=(None, there))
    assert meshes_of(jitted(weights(), batch()), meshes) == ("m1", "m1")
    found = jitted.lower(weights(), batch()).compile().function_mesh_assignment
    assert found.inputs == ((["m1", "m1"], "m0"), {})


def test_donation() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        _, grads = jax.value_and_grad(loss)(ws, x)
        return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)]

    jitted = check(step, weights(), batch(), donate_argnums=0)
    given = weights()
    first = jitted(given, batch())
    assert all(w.is_deleted() for w in given), "also what had to be moved to its mesh first"
    second = jitted(first, batch())
    assert all(w.is_deleted() for w in first) and not any(w.is_deleted() for w in second)
    with pytest.raises(MpmdError, match=r"2 arrays were donated to an earlier call.*: argument ws\[0\], arg"):
        jitted(first, batch())


def test_donated_and_returned() -> None:
    check(lambda ws, x: (loss(ws, x), ws), weights(), batch(), donate_argnums=(0,))


def test_keyword_arguments() -> None:
    def step(ws: Weights, *, x: jax.Array, scale: Any = 1.0) -> Any:
        return loss(ws, x) * scale

    jitted = check(step, weights(), kwargs={"x": batch(), "scale": jnp.float32(2)})
    check(step, weights(), kwargs={"x": batch()})
    scale = jnp.float32(2)
    compiled = jitted.lower(weights(), x=batch(), scale=scale).compile()
    assert_same(compiled(weights(), scale=scale, x=batch()), jitted(weights(), x=batch(), scale=scale))


def test_host_memory() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        return loss(ws, x), named_tensor(x * 2, "kept")

    cfg = config({"f0": "m0", "f1": "m1", "kept": "m0"}, output_mesh_assignment=(None, "m0#pinned_host"))
    jitted = check(step, weights(), batch(), config=cfg)
    assert jitted(weights(), batch())[1].sharding.memory_kind == "pinned_host"


def test_large_closed_over_arrays_become_arguments() -> None:
    big = normal(5, 64, WIDTH)

    def step(ws: Weights, x: jax.Array) -> Any:
        h = named_computation(lambda w, x: layer(w, x) + big.sum(0), name="f0")(ws[0], x)
        return named_computation(layer, name="f1")(ws[1], h)

    check(step, weights(), batch())


def test_results_may_be_passed_back_from_another_mesh() -> None:
    """Also what was computed from them, to a program for other shapes, and given away."""

    def step(ws: Weights, x: jax.Array) -> Any:
        grads = jax.grad(loss)(ws, x)
        return [w - 0.1 * g for w, g in zip(ws, reversed(grads), strict=True)]

    # JAX gives to `w + 1` the sharding object that it met first, perhaps that of another test.
    increased = jax.jit(lambda w: w + 1)
    cfg = config(input_mesh_assignment=(["m0", "m1"], None), output_mesh_assignment=["m1", "m0"])
    jitted, plain = mpmd_trace.jit(step, cfg, donate_argnums=0), jax.jit(step)
    found, expected = jitted(weights(), batch()), plain(weights(), batch())
    for rows in (4, 3, 4):
        given = [increased(w) for w in found]
        found = jitted(given, batch(rows=rows))
        expected = plain([w + 1 for w in expected], batch(rows=rows))
        assert all(w.is_deleted() for w in given)
        assert meshes_of(found, cfg.topology) == ["m1", "m0"]
        assert_same(found, expected)
    with pytest.raises(MpmdError, match=r"argument ws\[0\] is on devices 2, 3"):
        own = NamedSharding(Mesh(cfg.topology["m1"].devices, ("own",)), PartitionSpec("own"))
        jitted([jax.device_put(w, own) for w in weights()], batch())


@pytest.mark.parametrize("ahead", [False, True])
def test_other_programs_take_results_from_where_they_are(ahead: bool, recwarn: pytest.WarningsRecorder) -> None:
    """An evaluation in the middle of training, whose parameters are elsewhere; also what `place` returned."""
    swapped = mpmd_trace.jit(loss, config({"f0": "m1", "f1": "m0"}))
    train = mpmd_trace.jit(lambda ws, x: [w + 1 for w in ws] + [accumulate(ws, x)], config())
    compiled = train.lower(weights(), batch()).compile()
    *ws, _ = compiled(weights(), batch()) if ahead else train(weights(), batch())
    evaluate = swapped.lower(weights(), batch(rows=4)).compile() if ahead else swapped
    plain = [np.asarray(w) for w in ws]
    assert_same(evaluate(ws, batch(rows=4)), loss(plain, batch(rows=4)))
    of_results = [w.at[0].set(1.0) for w in ws]  # equal shardings, other objects
    assert not any(w.sharding is x.sharding for w, x in zip(ws, of_results, strict=True))
    assert_same(
        evaluate(of_results, batch(rows=4)), loss([w.at[0].set(1.0) for w in map(jnp.asarray, plain)], batch(rows=4))
    )
    placed = mpmd_trace.place(compiled, weights())[0]
    assert_same(evaluate(placed, batch(rows=4)), loss(weights(), batch(rows=4)))
    assert not recwarn.list


def test_large_arrays_of_other_programs_are_warned_of_once() -> None:
    def double(w: jax.Array) -> jax.Array:
        return named_computation(lambda w: w * 2, name="f0")(w)

    first, second = (mpmd_trace.jit(double, config({"f0": mesh})) for mesh in ("m0", "m1"))
    large = first(jnp.ones((1024, 256)))
    with pytest.warns(mpmd_trace.MpmdWarning, match=r"1,048,576 bytes of arguments are on other meshes than"):
        assert_same(second(large), 4 * np.ones((1024, 256), np.float32))
    second(first(jnp.ones((1024, 256))))  # warnings are errors here
    (placed,) = mpmd_trace.place(second.lower(large).compile(), large)
    assert_same(second(placed), 4 * np.ones((1024, 256), np.float32))
    host = np.ones((1024, 256), np.float32)
    with pytest.warns(mpmd_trace.MpmdWarning, match="1,048,576 bytes of host arrays come again"):
        for _ in range(3):  # of which there is a warning of its own
            second(host)


def test_tangents_of_integers() -> None:
    """They have no values (`float0`), as results and as arguments."""

    def grads(n: jax.Array, ws: Weights, x: jax.Array) -> Any:
        def total(n: jax.Array, ws: Weights) -> jax.Array:
            return jnp.sum(loss(ws, x) * n)

        return jax.grad(total, argnums=(0, 1), allow_int=True)(n, ws)

    counts = jnp.arange(3)
    check(grads, counts, weights(), batch())
    empty = np.zeros(3, jax.dtypes.float0)

    def tangents(n: jax.Array, t: Any, x: jax.Array) -> Any:
        return jax.jvp(lambda n, x: (loss(weights(), x) * n, n), (n, x), (t, x))

    jitted = check(tangents, counts, empty, batch())
    compiled = jitted.lower(counts, empty, batch()).compile()
    args, _ = compiled.place(counts, empty, batch())
    assert args[1].dtype == jax.dtypes.float0
    assert_same(compiled(*args), jax.jit(tangents)(counts, empty, batch()))
    with pytest.raises(MpmdError, match=r"argument t must be an array float0\[3\]"):
        compiled(counts, counts, batch())


def test_an_array_of_numpy_is_read_within_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX copies it when it comes to it, and the caller may have filled it with the next batch by then."""
    shared = []
    device_put = jax.device_put

    def put(x: Any, *args: Any, **options: Any) -> Any:
        shared.append(np.shares_memory(x, mine))
        return device_put(x, *args, **options)

    mine = np.array(batch())
    monkeypatch.setattr(jax, "device_put", put)
    found = mpmd_trace.jit(loss, config())(weights(), mine)
    assert shared and not any(shared)
    assert_same(found, jax.jit(loss)(weights(), batch()))


@pytest.mark.parametrize("placement", ["cut", "reference"])
def test_a_named_update_that_changes_only_the_sharding(placement: str) -> None:
    """The gradient is zero, so that nothing is left of the update but where its result is to be."""
    rows, columns = (NamedSharding(topology()["m1"], PartitionSpec(*axes)) for axes in (("x",), (None, "x")))

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = mpmd_trace.named_computation(lambda x: x * 2, name="f")(x)
        return mpmd_trace.named_computation(lambda w, g: w - 0.1 * g, name="update")(w, jnp.zeros_like(w)), y

    where = config({"f": "m0", "update": "m1"}, placement=placement)
    jitted = mpmd_trace.jit(step, where, in_shardings=(rows, None), out_shardings=(columns, None))
    w = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    found, _ = jitted(w, w)
    assert found.sharding == columns
    np.testing.assert_array_equal(found, w)
