"""Programs at the edge of what users write, with the values and types of plain jax.jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from mpmd_trace import MpmdError, call, enumerated_for, make_config, named_computation
from pipelines import Weights, batch, check, config, layer, topology, weights


def two(ws: Weights, x: jax.Array) -> jax.Array:
    found: jax.Array = named_computation(layer, name="f1")(ws[1], named_computation(layer, name="f0")(ws[0], x))
    return found


def there_and_back(ws: Weights, x: jax.Array) -> jax.Array:
    for i in range(4):
        x = named_computation(layer, name=f"f{i % 2}")(ws[i % 2], x)
    return x


def names_in_names_in_names(ws: Weights, x: jax.Array) -> jax.Array:
    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        return named_computation(named_computation(layer, name="inner"), name="middle")(w, x)

    for i in range(2):
        x = named_computation(block, name=f"f{i}")(ws[i], x)
    return x


def linearized(ws: Weights, x: jax.Array) -> Any:
    y, tangent = jax.linearize(lambda x: two(ws, x), x)
    return y, tangent(y)


def large_constant(ws: Weights, x: jax.Array) -> jax.Array:
    table = jnp.ones((200, 200))
    return named_computation(lambda w, x: layer(w, x) * table[:4, :4] + table.sum(), name="f1")(ws[1], two(ws, x))


def loop_of_keys(ws: Weights, x: jax.Array) -> Any:
    def body(i: Any, key: jax.Array, row: jax.Array) -> Any:
        key, used = jax.random.split(key)
        return key, jnp.sum(two(ws, row) * jax.random.uniform(used))

    return enumerated_for(body, jax.random.key(1), x[:2, None])


def calls_without_rows(ws: Weights, x: jax.Array) -> jax.Array:
    return call(two, call_counter=0)(ws, x[:0]) + call(two, call_counter=1)(ws, x[:0])


def calls_of_constants(ws: Weights, x: jax.Array) -> jax.Array:
    """What a call computes of nothing goes into another one."""
    table = call(lambda: jnp.sin(jnp.arange(4.0)), call_counter=0)()
    found: jax.Array = call(two, call_counter=0)(ws, x) + call(lambda h: two(ws, h * table), call_counter=1)(x)
    return found


PROGRAMS: dict[str, Callable[[Weights, jax.Array], Any]] = {
    "8-bit floats": lambda ws, x: (two(ws, x).astype(jnp.float8_e4m3fn), ws[0].astype(jnp.float8_e5m2)),
    "bfloat16": lambda ws, x: two([w.astype(jnp.bfloat16) for w in ws], x.astype(jnp.bfloat16)),
    "complex": lambda ws, x: jnp.abs(two([w.astype(jnp.complex64) for w in ws], 1j * x)),
    "no rows": lambda ws, x: (two(ws, x[:0]), jnp.sum(two(ws, x[:0]))),
    "no rows, in calls": calls_without_rows,
    "calls of constants": calls_of_constants,
    "constants": lambda ws, x: (1.0, jnp.int32(3), np.arange(3), True, two(ws, x)),
    "weak types": lambda ws, x: (two(ws, x) * 2.0, jnp.where(True, 1, 2), 3.0),
    "one value, several times": lambda ws, x: (two(ws, x), (two(ws, x), x), ws, None),
    "hessian": lambda ws, x: jax.hessian(lambda x: two(ws, x).sum())(x[:1]),
    "batched": lambda ws, x: jax.vmap(lambda row: two(ws, row[None]))(x),
    "scanned": lambda ws, x: two(ws, lax.scan(lambda h, w: (two([w, w], h), h.sum()), x, jnp.stack(ws))[0]),
    "names in names in names": names_in_names_in_names,
    "linearized": linearized,
    "there and back": there_and_back,
    "a large constant": large_constant,
    "a loop of keys": loop_of_keys,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    check(PROGRAMS[name], weights(), batch(), config=config())


def test_a_name_that_names_on_two_meshes_share_may_not_have_a_mesh() -> None:
    names = {"f0": "m0", "f1": "m1", "inner": "m0"}
    with pytest.raises(
        MpmdError, match=r"'inner' \(assigned to mesh 'm0'\) occurs inside .* 'f1' \(assigned to mesh 'm1'\)"
    ):
        check(names_in_names_in_names, weights(), batch(), config=make_config(topology(), names))
