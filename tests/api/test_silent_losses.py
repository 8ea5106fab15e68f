"""What costs time without need is said once, with the way out, or is avoided."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace import MpmdError, MpmdWarning
from mpmd_trace.backend import arguments
from pipelines import accumulate, batch, config, loss, topology, weights
from util import normal, only_new_objects

Puts = list[tuple[int, ...]]


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> Puts:
    """The shapes of the arrays that calls copy to their meshes."""
    copied: Puts = []

    def put(x: Any, spec: Any, **options: Any) -> Any:
        copied.append(x.shape)
        return arguments_put(x, spec, **options)

    arguments_put = arguments.put
    monkeypatch.setattr(arguments, "put", put)
    return copied


def predict(ws: Any, x: Any) -> Any:
    for i, w in enumerate(ws):
        x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"f{i}")(w, x)
    return x


def parameters() -> list[jax.Array]:
    return list(normal(0, 2, 8, 8))


def test_an_array_that_comes_again_is_copied_to_its_mesh_only_twice(puts: Puts) -> None:
    ws, x = parameters(), jnp.ones((4, 8))
    compiled = mpmd_trace.jit(predict, config()).lower(ws, x).compile()
    expected = predict(ws, x)
    counts = []
    for _ in range(4):
        np.testing.assert_allclose(compiled(ws, x), expected, rtol=1e-5, atol=1e-6)
        counts.append(len(puts))
    assert counts[1] > counts[0] > 0 and counts[3] == counts[2] == counts[1]


def test_another_array_is_not_taken_for_the_one_before(puts: Puts) -> None:
    ws, x = parameters(), jnp.ones((4, 8))
    compiled = mpmd_trace.jit(predict, config()).lower(ws, x).compile()
    for _ in range(3):
        compiled(ws, x)
    others = [2 * w for w in ws]
    np.testing.assert_allclose(compiled(others, x), predict(others, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compiled(ws, x), predict(ws, x), rtol=1e-5, atol=1e-6)


def test_a_copy_goes_with_its_array() -> None:
    compiled = mpmd_trace.jit(predict, config()).lower(parameters(), jnp.ones((4, 8))).compile()
    with only_new_objects():
        ws, x = parameters(), jnp.ones((4, 8))
        for _ in range(3):
            compiled(ws, x)
        copies = [weakref.ref(copy) for _, copy, _ in compiled.program._checker._kept.values() if copy is not None]
        assert copies
        del ws, x
        gc.collect()
    assert all(copy() is None for copy in copies)


def test_a_deleted_array_is_an_error_although_its_copy_is_there() -> None:
    ws, x = parameters(), jnp.ones((4, 8))
    compiled = mpmd_trace.jit(predict, config()).lower(ws, x).compile()
    for _ in range(3):
        compiled(ws, x)
    ws[0].delete()
    with pytest.raises(MpmdError, match="was donated to an earlier call, or deleted"):
        compiled(ws, x)


def test_donated_arrays_are_not_kept() -> None:
    compiled = mpmd_trace.jit(accumulate, config(), donate_argnums=0).lower(weights(), batch()).compile()
    for _ in range(3):
        ws = jax.tree.map(jnp.asarray, weights())
        compiled(ws, batch())
    assert all(index not in compiled.program.plan.donated for index in compiled.program._checker._kept)


Called = tuple[mpmd_trace.stages.Compiled, list[Any], Any]


@pytest.fixture
def called_twice() -> Called:
    """A program, and the large arrays of the host with which it was called twice."""
    ws = [np.ones((512, 512), np.float32) for _ in range(2)]
    x = np.ones((4, 512), np.float32)
    compiled = mpmd_trace.jit(predict, config()).lower(ws, x).compile()
    compiled(ws, x)
    compiled(ws, x)
    return compiled, ws, x


def test_an_array_may_go_while_host_arrays_are_counted(called_twice: Called) -> None:
    compiled, ws, x = called_twice
    kept, last = compiled.program._checker._kept, [np.ones(3)]

    def looked_at() -> Any:
        last.clear()  # as the garbage collector or another thread may
        return ws[1]

    kept[1] = looked_at, *kept[1][1:]  # type: ignore[assignment]
    kept[7] = weakref.ref(last[0], lambda _: kept.pop(7)), None, 9
    with pytest.warns(MpmdWarning, match="2,.* bytes of host arrays come again"):
        compiled(ws, x)
    assert 7 not in kept


def test_large_host_arrays_that_come_again_are_warned_of_once(called_twice: Called) -> None:
    compiled, ws, x = called_twice
    with pytest.warns(MpmdWarning, match=r"2,\d+,\d+ bytes of host arrays come again .*compiled.place") as said:
        compiled(ws, x)
    assert len(said) == 1 and "test_silent_losses.py" in said[0].filename
    compiled(ws, x)  # warnings are errors here
    placed, _ = compiled.place(ws, x)
    for _ in range(4):
        compiled(*placed)


def test_small_host_arrays_and_fresh_ones_are_not_warned_of() -> None:
    ws = [np.ones((512, 512), np.float32) for _ in range(2)]
    compiled = mpmd_trace.jit(predict, config()).lower(ws, np.ones((4, 512), np.float32)).compile()
    (ws,) = mpmd_trace.place(compiled, ws)
    small = np.ones((4, 512), np.float32)
    for _ in range(5):
        compiled(ws, small)
        compiled([w.copy() for w in ws], small)


def test_a_mesh_without_anything_to_do(caplog: pytest.LogCaptureFixture) -> None:
    meshes = {**topology(), "spare": Mesh(np.array(jax.devices()[6:8]), ("x",))}
    cfg = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"})
    lowered = mpmd_trace.jit(predict, cfg).lower(parameters(), jnp.ones((4, 8)))
    for _ in range(2):
        lowered.compile()
    [said] = [record.getMessage() for record in caplog.records if "nothing to do" in record.getMessage()]
    assert (
        said.startswith("the mesh 'spare' has nothing to do in predict, since no name") and "silent_losses.py" in said
    )
    caplog.clear()
    used = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"}, output_mesh_assignment="spare")
    mpmd_trace.jit(predict, used).lower(parameters(), jnp.ones((4, 8))).compile()
    assert not [record for record in caplog.records if "nothing to do" in record.getMessage()]


@pytest.mark.parametrize("way", ["in_shardings", "placed"])
@pytest.mark.parametrize("microbatches", [2, 4])
def test_rows_that_the_devices_of_an_axis_do_not_divide(way: str, microbatches: int) -> None:
    def step(ws: Any, x: Any) -> Any:
        return mpmd_trace.value_and_grad(loss, microbatches=microbatches)(ws, x)

    meshes = topology(axis="data")
    x: Any = np.ones((12, *batch().shape[1:]), np.float32)
    rows = NamedSharding(meshes["m0"], P("data"))
    given = {"in_shardings": (None, rows)} if way == "in_shardings" else {}
    x = jax.device_put(x, rows) if way == "placed" else x
    jitted = mpmd_trace.jit(step, config(topology=meshes), **given)
    if microbatches == 2:
        jitted.lower(weights(), x)  # warnings are errors here
        return
    with pytest.warns(MpmdWarning, match="x has 3 rows, which do not divide among the 2 devices of") as said:
        jitted.lower(weights(), x)
    assert len(said) == 1 and said[0].filename == __file__
    assert "another number of microbatches (2, 3, 6 of 12 rows)" in str(said[0].message)


@pytest.mark.parametrize(
    ("shape", "reshaped"),
    [((1,), ()), ((), (1,)), ((12, 4), (4, 3, 4)), ((0, 4), (0, 3, 4))],  # a batch is none of these
)
def test_arguments_that_are_reshaped_for_all_microbatches(shape: tuple[int, ...], reshaped: tuple[int, ...]) -> None:
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    cfg = mpmd_trace.make_config({"m0": mesh}, {"f0": "m0"})

    def step(w: Any, c: Any, x: Any) -> Any:
        heads = jnp.reshape(c, reshaped)

        def mean(w: Any, x: Any) -> Any:
            return mpmd_trace.named_computation(lambda w, x, h: jnp.mean(w * x) + jnp.sum(h), name="f0")(w, x, heads)

        return mpmd_trace.value_and_grad(mean, microbatches=2)(w, x)

    c = jax.device_put(jnp.ones(shape), NamedSharding(mesh, P("data") if len(shape) > 1 else P()))
    args = jnp.ones(4), c, jnp.ones((8, 4))
    value, _ = mpmd_trace.jit(step, cfg)(*args)  # without a warning
    np.testing.assert_allclose(jax.device_get(value), jax.jit(step)(*args)[0], rtol=1e-6)


def test_arrays_of_a_batch_are_named_in_one_warning() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))

    def step(w: Any, batch: Any) -> Any:
        def mean(w: Any, batch: Any) -> Any:
            return mpmd_trace.named_computation(lambda w, a, b: jnp.mean(w * a * b[:, None]), name="f0")(w, **batch)

        return mpmd_trace.value_and_grad(mean, microbatches=4)(w, batch)

    rows = NamedSharding(mesh, P("data"))
    batch = jax.device_put({"a": jnp.ones((8, 4)), "b": jnp.ones(8)}, rows)
    text = r"^a microbatch of batch\['a'\], batch\['b'\] has 2 rows, which do not divide among the 4 devices"
    with pytest.warns(MpmdWarning, match=text) as said:
        mpmd_trace.jit(step, mpmd_trace.make_config({"m0": mesh}, {"f0": "m0"})).lower(jnp.ones(4), batch)
    assert len(said) == 1


def test_a_launched_script_without_initialize(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPMD_TRACE_LAUNCHED", "1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    with pytest.raises(MpmdError, match=r"4 processes of this script were started, .*initialize\(\) at the start"):
        mpmd_trace.jit(predict, config())(parameters(), jnp.ones((4, 8)))
    monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
    mpmd_trace.jit(predict, config())(parameters(), jnp.ones((4, 8)))


@pytest.mark.parametrize("placement", ["cut", "reference"])
def test_what_is_computed_from_equal_gradients_is_computed_once(placement: str) -> None:
    def loss(weights: Any, x: Any) -> Any:
        return mpmd_trace.named_computation(lambda weights, x: jnp.mean(x**2), name="layer0")(weights, x)

    def step(weights: Any, xs: Any) -> Any:
        parts = [mpmd_trace.call(jax.value_and_grad(loss), call_counter=i)(weights, x) for i, x in enumerate(xs)]
        value, gradients = jax.tree.map(jnp.add, *parts)
        return [jnp.sin(g) for g in gradients], value  # both are zero, so one fragment gets the same sum twice

    given = [jnp.ones((3, 3))] * 2, [jnp.ones((4, 3))] * 2
    one_mesh = config({"layer0": "m0"}, meshes=1, placement=placement)
    lowered = mpmd_trace.jit(step, one_mesh).lower(*given)
    assert lowered.as_text("mpmd").count("stablehlo.sine") == 1
