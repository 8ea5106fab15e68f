"""Each mistake gives one error that says what is wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pipelines import Weights, accumulate, batch, config, layer, loss, topology, weights

import mpmd_trace
from mpmd_trace import MpmdError, call, enumerated_for, named_computation


def error_of(action: Callable[[], Any]) -> MpmdError:
    """What `action` raises; it has one diagnostic."""
    with pytest.raises(MpmdError) as found:
        action()
    assert len(found.value.diagnostics) == 1, str(found.value)
    return found.value


def here(error: MpmdError, code: str) -> bool:
    """Whether the error points to a line of this file that contains `code`."""
    match = re.match(r'"?([^":]*test_bad_input\.py)"?:(\d+)', str(error))
    assert match, str(error)
    with open(__file__, encoding="utf-8") as file:
        return code in file.read().splitlines()[int(match[2]) - 1]


def test_a_mesh_that_does_not_exist() -> None:
    error = error_of(lambda: mpmd_trace.make_config(topology(), {"f0": "n0"}))
    assert (
        "the name 'f0' is assigned to the mesh 'n0', which the topology lacks. "
        "Did you mean 'm0'"
    ) in str(error)
    assert here(error, "mpmd_trace.make_config(topology()")


def test_a_name_that_occurs_nowhere() -> None:
    cfg = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1", "f2": "m1"})
    error = error_of(lambda: mpmd_trace.jit(loss, cfg)(weights(), batch()))
    assert "'f2' is assigned to mesh 'm1' but occurs nowhere in the program. Did you mean 'f" in str(error)
    assert "Remove the assignment, or name a computation or tensor so." in str(error)
    assert here(error, "mpmd_trace.make_config(topology()")


def test_a_computation_without_a_mesh() -> None:
    def step(ws: Weights, x: jax.Array) -> jax.Array:
        return named_computation(layer, name="lost")(ws[0], x)

    error = error_of(lambda: mpmd_trace.jit(step, config({}))(weights(), batch()))
    assert "the named computation 'lost' is not assigned to a mesh" in str(error)
    assert here(error, 'name="lost"')


def test_a_value_from_another_mesh_without_transfers() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        a = named_computation(layer, name="f0")(ws[0], x)
        b = named_computation(layer, name="f1")(ws[1], x)
        return (a + b) * 2  # needs both

    with pytest.raises(MpmdError) as found:
        mpmd_trace.jit(step, config(infer=False))(weights(), batch())
    text = str(found.value)
    assert "m0" in text and "m1" in text and "mpmd_infer_transfers" in text, text
    assert "test_bad_input.py" in text


def test_a_cycle_between_stages() -> None:
    def model(ws: Weights, x: jax.Array) -> Any:
        x = named_computation(layer, name="f0")(ws[0], x)
        x = named_computation(layer, name="f1")(ws[1], x)
        return named_computation(layer, name="f2")(ws[0], x)

    names = {"f0": ("m0", 0), "f1": ("m1", 1), "f2": ("m0", 0)}
    with pytest.raises(MpmdError) as found:
        mpmd_trace.jit(lambda ws, x: call(model, 0)(ws, x), config(names))(weights(), batch())
    text = str(found.value)
    assert "stage 0" in text and "f0" in text and "f2" in text, text


def test_devices_that_do_not_exist() -> None:
    nothing = Mesh(np.array([None, None], dtype=object), ("x",))
    error = error_of(lambda: mpmd_trace.make_config({"m0": nothing}, {}))
    assert "the mesh 'm0' has None where a device belongs. Make it of devices in jax.devices()" in str(error)


def test_a_batch_that_does_not_divide_into_shards() -> None:
    split = NamedSharding(topology()["m0"], PartitionSpec("x"))
    jitted = mpmd_trace.jit(loss, config(), in_shardings=(None, split))
    error = error_of(lambda: jitted(weights(), batch(rows=3)))
    assert (
        "in_shardings of x: a dimension of size 3 (shape (3, 4)) cannot be "
        "divided into 2 parts"
    ) in str(error)
    assert "Choose a size divisible by 2, or leave the dimension whole" in str(error)


def test_microbatches_of_different_number() -> None:
    def step(ws: Weights, x: jax.Array, y: jax.Array) -> Any:
        return enumerated_for(lambda i, c, xy: c + loss(ws, xy[0]), jnp.zeros(()), (x, y))

    error = error_of(lambda: mpmd_trace.jit(step, config())(weights(), batch(2), batch(3)))
    assert "inputs whose arrays have first axes of one length, got inputs[0]: 2, inputs[1]: 3" in str(error)


def test_an_argument_on_the_wrong_mesh() -> None:
    jitted = mpmd_trace.jit(accumulate, config())
    elsewhere = jax.device_put(weights()[0], NamedSharding(topology()["m1"], PartitionSpec()))
    error = error_of(lambda: jitted([elsewhere, weights()[1]], batch(2)))
    assert (
        "argument 0 (ws[0]) is on devices 2, 3, and the program wants it on "
        "mesh 'm0' (devices 0, 1)"
    ) in str(error)
    assert "move it with compiled.place(*args)" in str(error)


def test_a_donated_buffer_used_again() -> None:
    jitted = mpmd_trace.jit(loss, config(), donate_argnums=0)
    ws = weights()
    jitted(ws, batch())
    with pytest.raises(MpmdError) as found:
        jitted(ws, batch())
    assert (
        "argument 0 (ws[0]) was donated to an earlier call, or deleted, and "
        "its buffer is gone"
    ) in str(found.value)
    assert "use what that call returned instead, or do not donate it" in str(found.value)
    both = mpmd_trace.jit(loss, config({"f0": "m0", "f1": "m0"}), donate_argnums=0)
    same = jax.device_put(weights()[0], NamedSharding(topology()["m0"], PartitionSpec()))
    error = error_of(lambda: both([same, same], batch()))
    assert "argument 1 (ws[1]) is the same array as argument 0 (ws[0])" in str(error)


def test_a_leaf_that_is_no_array() -> None:
    def step(ws: Any, x: jax.Array) -> jax.Array:
        return loss(ws["w"], x)

    error = error_of(lambda: mpmd_trace.jit(step, config())({"w": weights(), "f": jnp.tanh}, batch()))
    assert "argument ws['f'] is not an array but a " in str(error)
    assert "static_argnums" in str(error) and "mpmd_trace.equinox.filter_jit" in str(error)
    assert here(error, "def step(ws: Any")
    result = error_of(lambda: mpmd_trace.jit(lambda x: (x, "text"), config({}))(batch()))
    assert "result[1] is not an array but a str: 'text'" in str(result)


def test_other_arguments_than_compiled_for() -> None:
    compiled = mpmd_trace.jit(lambda x: x * 2, config({}, meshes=1)).lower(batch()).compile()
    assert "but is called with" in str(error_of(lambda: compiled(batch(), 1)))
    assert (
        "argument 0 (x) must be float32[4, 4], not float32[2, "
        "4]"
    ) in str(error_of(lambda: compiled(batch(rows=2))))


def test_no_config() -> None:
    error = error_of(lambda: mpmd_trace.jit(loss, {"f0": "m0"}))  # type: ignore[arg-type]
    assert "jit takes a config of mpmd_trace.make_config, not a dict" in str(error)


def test_an_unknown_schedule() -> None:
    error = error_of(lambda: mpmd_trace.jit(loss, config(pipeline_schedule="1F2B")).lower(weights(), batch()))
    assert "1F2B" in str(error) and "1f1b" in str(error).lower()
