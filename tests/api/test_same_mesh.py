"""`MeshOfInput`: what replaces an argument is where that argument is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from pipelines import WIDTH, assert_same, batch, config, layer, weights

import mpmd_trace
from mpmd_trace import MeshOfInput, MpmdError, named_computation
from mpmd_trace.passes.cpp_engine import available

NAMES = {"f0": "m0", "f1": "m1", "f2": "m2"}
OPTIMISER = optax.chain(optax.clip_by_global_norm(0.01), optax.adamw(1e-2))


def tied(ws: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The weight `a` is used on the first mesh and on the last one."""

    def last(first: jax.Array, w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean((layer(w, x) @ first.T) ** 2)

    x = named_computation(layer, name="f0")(ws["a"], x)
    x = named_computation(layer, name="f1")(ws["c"], x)
    return named_computation(last, name="f2")(ws["a"], ws["b"], x)


def step(ws: Any, state: Any, x: jax.Array) -> Any:
    def microbatch(i: Any, carry: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.add, carry, jax.value_and_grad(tied)(ws, x))

    value, grads = mpmd_trace.enumerated_for(microbatch, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, ws)), x)
    updates, state = OPTIMISER.update(grads, state, ws)
    return (optax.apply_updates(ws, updates), state), value


def arguments() -> tuple[Any, Any, jax.Array]:
    ws = dict(zip("abc", weights(3), strict=True))
    return ws, OPTIMISER.init(ws), batch(2)


def placed(compiled: Any) -> tuple[list[str], list[str]]:
    """The meshes of the state as it is taken and as it is given."""
    found = compiled.function_mesh_assignment
    return jax.tree.leaves(found.inputs[0][:2]), jax.tree.leaves(found.outputs[0])


def test_a_state_stays_where_it_is() -> None:
    args = arguments()
    plain = mpmd_trace.jit(step, config(NAMES, 3, placement="reference")).lower(*args).compile()
    taken, given = placed(plain)
    assert [(t, g) for t, g in zip(taken, given, strict=True) if t != g] == [("m0", "m2")]

    same = ((MeshOfInput(0), MeshOfInput(1)), None)
    jitted = mpmd_trace.jit(step, config(NAMES, 3, output_mesh_assignment=same), donate_argnums=(0, 1))
    compiled = jitted.lower(*args).compile()
    taken, given = placed(compiled)
    assert taken == given and set(taken) == {"m0", "m1", "m2"}
    assert compiled.program.plan.transferred_bytes == plain.program.plan.transferred_bytes
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
        NAMES,
        3,
        input_mesh_assignment=("m1",),
        output_mesh_assignment=((MeshOfInput(0), MeshOfInput("state")), None),
    )
    ws, state, x = arguments()
    jitted = mpmd_trace.jit(named, cfg)
    found = jitted.lower(ws, state=state, x=x).compile().function_mesh_assignment
    assert found.outputs[0] == (dict.fromkeys("abc", "m1"), found.inputs[1]["state"])
    assert_same(jitted(ws, state=state, x=x), jax.jit(named)(ws, state=state, x=x), rtol=1e-4, atol=1e-5)


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

