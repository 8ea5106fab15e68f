"""Refs (`jax.new_ref`) as arguments of a step, which changes them in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.jax_compat.refs import array_in
from pipelines import assert_same, batch, config, layer, loss, topology, weights


def refs(count: int = 2) -> list[Any]:
    return [jax.new_ref(w) for w in weights(count)]


def train(ws: list[Any], count: Any, x: jax.Array) -> jax.Array:
    """A step that changes weights and a count in place."""
    value, gradients = mt.value_and_grad(loss, microbatches=2)([w[...] for w in ws], x)
    for w, g in zip(ws, gradients, strict=True):
        w[...] -= g
    count[...] += 1
    return value


def read(refs: Any) -> Any:
    return jax.tree.map(lambda r: np.asarray(r[...]), refs)


def test_training_in_place() -> None:
    ws, count = refs(), jax.new_ref(jnp.zeros((), jnp.int32))
    others, other_count = refs(), jax.new_ref(jnp.zeros((), jnp.int32))
    step, plain = mt.jit(train, config()), jax.jit(train)
    for _ in range(3):
        value = step(ws, count, batch(rows=8))
        assert_same(value, plain(others, other_count, batch(rows=8)))
    assert_same(read(ws), read(others))
    assert count[...] == 3
    places = topology()
    assert [set(w.sharding.device_set) for w in ws] == [set(places[m].devices.flat) for m in ("m0", "m1")]


def test_the_old_arrays_are_reused() -> None:
    """Nothing is compiled again, or copied, when the Refs come back from where they are."""
    ws, count = refs(), jax.new_ref(jnp.zeros((), jnp.int32))
    step = mt.jit(train, config())
    step(ws, count, batch(rows=8))
    before = [array_in(w) for w in ws]
    step(ws, count, batch(rows=8))
    assert all(array.is_deleted() for array in before)
    assert len(step._of_refs._compiled) == 1


def test_ahead_of_time_and_shardings() -> None:
    split = NamedSharding(topology()["m0"], PartitionSpec(None, "x"))
    ws, count = refs(), jax.new_ref(jnp.zeros((), jnp.int32))
    step = mt.jit(train, config(), in_shardings=(None, None, split), donate_argnums=2)
    compiled = step.lower(ws, count, batch(rows=8)).compile()
    x = jax.device_put(batch(rows=8), split)
    value = compiled(ws, count, x)
    assert x.is_deleted()
    others = refs()
    assert_same(value, jax.jit(train)(others, jax.new_ref(jnp.zeros((), jnp.int32)), batch(rows=8)))
    assert_same(read(ws), read(others))
    assert compiled.input_shardings[0][2] == split
    assert step.eval_shape(ws, count, batch(rows=8)).shape == ()
    assert step.trace(ws, count, batch(rows=8)).fun_name == "train"


@pytest.mark.parametrize("whole", [True, False])
def test_placing_moves_what_is_in_refs(whole: bool) -> None:
    """All arguments by the program's own `place`, or leading ones: the same Refs come back, and a call takes them."""
    ws, count, x = refs(), jax.new_ref(jnp.zeros((), jnp.int32)), batch(rows=8)
    compiled = mt.jit(train, config()).lower(ws, count, x).compile()
    if whole:
        (placed, placed_count, x), kwargs = compiled.place(ws, count, x)
        assert kwargs == {}
    else:
        placed, placed_count = mt.place(compiled, ws, count)
    assert placed_count is count and all(a is b for a, b in zip(placed, ws, strict=True))
    wanted = compiled.input_shardings[0]
    assert [array_in(w).sharding for w in ws] == wanted[0] and array_in(count).sharding == wanted[1]
    others, other_count = refs(), jax.new_ref(jnp.zeros((), jnp.int32))
    assert_same(compiled(placed, placed_count, x), jax.jit(train)(others, other_count, batch(rows=8)))
    assert_same(read(ws), read(others))
    assert count[...] == 1


def test_other_arguments_than_refs() -> None:
    ws, count, x = refs(), jax.new_ref(jnp.zeros((), jnp.int32)), batch(rows=8)
    compiled = mt.jit(train, config()).lower(ws, count, x).compile()
    with pytest.raises(mt.MpmdError) as caught:
        compiled([ws[0], jnp.ones((4, 4))], count, x)
    assert [line for line in str(caught.value).splitlines() if line.startswith("  ")] == [
        "  argument 0[1]: Ref, not an array"
    ]


def test_static_arguments_are_counted_from_either_end() -> None:
    def scaled(ws: list[Any], x: jax.Array, times: int) -> jax.Array:
        return loss([w[...] for w in ws], x) * times

    for number in (2, -1):
        result = mt.jit(scaled, config({"f0": "m0", "f1": "m1"}), static_argnums=number)(refs(), batch(), 3)
        assert_same(result, 3 * loss(weights()[:2], batch()))


def test_refs_within_named_computations() -> None:
    """And by keyword, beside arrays, with a result in the shape of a tree."""

    def step(state: dict[str, Any], x: jax.Array, *, log: Any) -> dict[str, jax.Array]:
        def first(w: jax.Array, x: jax.Array) -> jax.Array:
            inner = jax.new_ref(x)
            inner[...] = inner[...] @ w
            return inner[...]

        y = mt.named_computation(first, name="f0")(state["w"][...], x)
        y = mt.named_computation(layer, name="f1")(state["fixed"], y)
        log[0] = jnp.sum(y)
        state["w"][1] = state["w"][1] + 1.0
        return {"y": y, "first": state["w"][0]}

    def arguments() -> tuple[dict[str, Any], jax.Array, Any]:
        w, fixed = weights()
        return {"w": jax.new_ref(w), "fixed": fixed}, batch(), jax.new_ref(jnp.zeros(3))

    state, x, log = arguments()
    results = mt.jit(step, config())(state, x, log=log)
    other, x, other_log = arguments()
    assert_same(results, jax.jit(step)(other, x, log=other_log))
    assert_same(read([state["w"], log]), read([other["w"], other_log]))


def test_assignments_of_arguments_and_results() -> None:
    def step(w: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        w[...] *= 2
        return x + 1, x * w[...]

    options = {"input_mesh_assignment": (None, "m1"), "output_mesh_assignment": (mt.MeshOfInput(1), "m0")}
    made = mt.make_config(topology(), {}, **options)
    w = jax.new_ref(jnp.ones(4))
    first, second = mt.jit(step, made)(w, jnp.arange(4.0))
    assert set(first.devices()) == set(topology()["m1"].devices.flat)
    assert set(second.devices()) == set(topology()["m0"].devices.flat)
    assert_same((first, second, w[...]), (jnp.arange(4.0) + 1, 2 * jnp.arange(4.0), 2 * jnp.ones(4)))


def test_what_is_refused() -> None:
    ref = jax.new_ref(jnp.ones(4))
    with pytest.raises(mt.MpmdError, match=r"a Ref \(jax.new_ref\) that is not among its arguments.*as an argument"):
        mt.jit(lambda x: ref[...] + x, config({}))(jnp.ones(4))
    with pytest.raises(mt.MpmdError, match="one Ref is given twice"):
        mt.jit(lambda a, b: a[...] + b[...], config({}))(ref, ref)
    with pytest.raises(mt.MpmdError, match=r"\[0\]\[0\] is a Ref .* Give it to mpmd_trace\.jit"):
        mt.filter_jit(lambda a: a[...], config({}))(ref)
