"""`MeshOfInput`: what replaces an argument is where that argument is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import mpmd_trace
from mpmd_trace import MeshOfInput, MpmdError, named_computation
from mpmd_trace.passes.cpp_engine import available
from pipelines import WIDTH, assert_same, batch, config, layer, loss, summed_values, topology, weights

NAMES = {"f0": "m0", "f1": "m1", "f2": "m2"}
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.01), optax.adamw(1e-2))


def tied(ws: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The weight `a` is used on the first mesh and on the last one."""

    def last(first: jax.Array, w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean((layer(w, x) @ first.T) ** 2)

    x = named_computation(layer, name="f0")(ws["a"], x)
    x = named_computation(layer, name="f1")(ws["c"], x)
    return named_computation(last, name="f2")(ws["a"], ws["b"], x)


def step(ws: Any, state: Any, x: jax.Array) -> Any:
    value, grads = summed_values(tied, ws, x)
    updates, state = OPTIMIZER.update(grads, state, ws)
    return (optax.apply_updates(ws, updates), state), value


def arguments() -> tuple[Any, Any, jax.Array]:
    ws = dict(zip("abc", weights(3), strict=True))
    return ws, OPTIMIZER.init(ws), batch(2)


def placed(compiled: Any) -> tuple[list[str], list[str]]:
    """The meshes of the state as it is taken and as it is given."""
    found = compiled.function_mesh_assignment
    return jax.tree.leaves(found.inputs[0][:2]), jax.tree.leaves(found.outputs[0])


def test_a_state_stays_where_it_is() -> None:
    args = arguments()
    plain = mpmd_trace.jit(step, config(NAMES, 3, placement="reference")).lower(*args).compile()
    taken, given = placed(plain)
    assert [(t, g) for t, g in zip(taken, given, strict=True) if t != g] == [("m0", "m2")]
    taken, given = placed(mpmd_trace.jit(step, config(NAMES, 3)).lower(*args).compile())
    assert taken == given, "it is where it is updated"

    same = ((MeshOfInput(0), MeshOfInput(1)), None)
    jitted = mpmd_trace.jit(step, config(NAMES, 3, output_mesh_assignment=same), donate_argnums=(0, 1))
    compiled = jitted.lower(*args).compile()
    taken, given = placed(compiled)
    assert taken == given and set(taken) == {"m1", "m2"}  # the table, and so its state, on the last of its meshes
    assert compiled.program.plan.transferred_bytes < plain.program.plan.transferred_bytes
    ours, theirs = jax.tree.map(jnp.copy, args[:2]), args[:2]
    for _ in range(3):
        ours, value = jitted(*ours, args[2])
        theirs, expected = jax.jit(step)(*theirs, args[2])
        assert_same((ours, value), (theirs, expected), rtol=1e-4, atol=1e-5)


def test_an_assigned_argument_and_keywords() -> None:
    """What is computed elsewhere is sent there in the end."""

    def named(ws: Any, *, state: Any, x: jax.Array) -> Any:
        return step(ws, state, x)

    cfg = config(
        NAMES, 3, input_mesh_assignment=("m1",), output_mesh_assignment=((MeshOfInput(0), MeshOfInput("state")), None)
    )
    ws, state, x = arguments()
    jitted = mpmd_trace.jit(named, cfg)
    found = jitted.lower(ws, state=state, x=x).compile().function_mesh_assignment
    assert found.outputs[0] == (dict.fromkeys("abc", "m1"), found.inputs[1]["state"])
    assert_same(jitted(ws, state=state, x=x), jax.jit(named)(ws, state=state, x=x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placement", ["reference", "cut"])
def test_a_result_with_a_sharding(placement: str) -> None:
    """Its mesh is that of the argument, too, wherever the argument is used."""

    def doubled(w: jax.Array) -> jax.Array:
        return 2 * named_computation(layer, name="f0")(w, w)

    there = jax.sharding.NamedSharding(topology()["m1"], jax.sharding.PartitionSpec("x"))
    where = config({"f0": "m0"}, output_mesh_assignment=MeshOfInput(0), placement=placement)
    jitted = mpmd_trace.jit(doubled, where, out_shardings=there)
    found, expected = jitted(weights()[0]), jax.jit(doubled)(weights()[0])
    assert found.sharding.device_set == there.device_set
    assert jitted.lower(weights()[0]).compile().function_mesh_assignment.inputs[0] == ("m1",)
    assert_same(jitted(found), jax.jit(doubled)(expected))


def test_a_state_that_leaves_in_another_sharding() -> None:
    """Weights that `in_shardings` wants in another way, beside a state whose sharding nobody said."""

    def step(ws: Any, state: Any, x: jax.Array) -> Any:
        grads = jax.grad(loss)(ws, x)
        state = [0.9 * s + g for s, g in zip(state, grads, strict=True)]
        return [w - s for w, s in zip(ws, state, strict=True)], state

    specs = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec(None, "x")
    rows, columns = ([jax.sharding.NamedSharding(m, spec) for m in topology().values()] for spec in specs)
    jitted = mpmd_trace.jit(step, config(), in_shardings=(rows, None, None), out_shardings=(columns, None))
    found = expected = (weights(), weights())
    for _ in range(3):
        found, expected = jitted(*found, batch()), jax.jit(step)(*expected, batch())
        assert_same(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ((MeshOfInput(7), None), r"has MeshOfInput\(7\), but there is no such dynamic argument; there are: 0, 1, 2"),
        ((MeshOfInput(0), None), r"has MeshOfInput\(0\) for 10 results, but that argument has 3 arrays"),
        (((MeshOfInput(0), None), MeshOfInput(2)), r"result\[1\] \(float32\[\]\) is not of the type of x"),
    ],
)
def test_what_does_not_fit(wanted: Any, message: str) -> None:
    jitted = mpmd_trace.jit(step, config(NAMES, 3, output_mesh_assignment=wanted))
    with pytest.raises(MpmdError, match=message):
        _ = jitted.lower(*arguments()).partitioned


def test_layers_that_become_whole() -> None:
    def fn(ws: jax.Array, x: jax.Array) -> Any:
        y, _ = mpmd_trace.scan(lambda h, w: (layer(w, h), None), x, ws, name="blocks")
        return named_computation(lambda ws, y: ws * y.sum(), name="all")(ws, y), y

    names = {"blocks": ["m0", "m1"], "all": "m0"}
    where = (MeshOfInput(0), None)
    with pytest.raises(MpmdError) as found, pytest.warns(mpmd_trace.MpmdWarning, match="needs all layers of ws"):
        mpmd_trace.jit(fn, config(names, output_mesh_assignment=where)).lower(jnp.stack(weights()), batch())
    assert "result[0] is whole, and the layers of ws, which it replaces, are on several meshes" in str(found.value)


def test_what_is_no_assignment() -> None:
    wrong: Any = MeshOfInput(None)  # type: ignore[arg-type]
    with pytest.raises(MpmdError) as found:
        config(NAMES, 3, input_mesh_assignment=(MeshOfInput(0),), output_mesh_assignment=(wrong, None))
    assert "input_mesh_assignment[0] is MeshOfInput(0), which is for output_mesh_assignment only" in str(found.value)
    assert "it takes the position of an argument, or the name of a keyword" in str(found.value)


@pytest.mark.skipif(not available(), reason="this jaxlib has no C++ partitioner")
def test_the_other_engine_cannot() -> None:
    jitted = mpmd_trace.jit(
        lambda x: named_computation(layer, name="f0")(x, x),
        config({"f0": "m1"}, output_mesh_assignment=MeshOfInput(0)),
        engine="cpp",
    )
    with pytest.raises(MpmdError, match="use engine='python'"):
        _ = jitted.lower(jnp.ones((WIDTH, WIDTH))).partitioned
