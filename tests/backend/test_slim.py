"""Executables that are read back for other devices leave out what only compiling them needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mpmd_trace.jax_compat import runtime
from mpmd_trace.jax_compat.slim import slim

X = np.linspace(-2, 3, 24 * 16, dtype=np.float32).reshape(24, 16)


def attention(x: jax.Array) -> jax.Array:
    scores = jax.nn.softmax(x @ x.T / 4)
    return jax.nn.gelu(scores @ x) * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def adam(x: jax.Array) -> list[jax.Array]:
    sums = [jnp.sum(x * x), jnp.max(x, axis=0), jnp.argmin(jnp.cos(x))]
    return [jnp.where(x > 0, x - 0.1 * x / (jnp.sqrt(x * x) + s), x.T.reshape(x.shape)) for s in sums[:2]] + sums


def in_place(x: jax.Array) -> list[jax.Array]:
    taken = jax.lax.dynamic_update_slice(x * 2, x[:2] + 1, (3, 0))
    added = jnp.tanh(x).at[jnp.array([1, 5, 1])].add(x[:3] * 3)
    return [taken, added, jnp.sort(x, axis=0), jnp.cumsum(x, axis=1)]


def loops(x: jax.Array) -> list[jax.Array]:
    rows = jax.lax.scan(lambda c, r: (c + jnp.sin(r), c * r), x[0], x)
    times = jax.lax.fori_loop(0, 5, lambda i, c: c.at[i].set(c[i - 1] + c[i] * 0.5), x)
    either = jax.lax.cond(x[0, 0] > 0, lambda v: v + 1, lambda v: jnp.exp(v) - v, x)
    return [*rows, times, either, jax.random.uniform(jax.random.key(3), (4, 4)) + x[:4, :4]]


def types(x: jax.Array) -> list[jax.Array]:
    return [
        (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)).astype(jnp.float32),
        jnp.linalg.cholesky(x.T @ x + 10 * jnp.eye(16)),
        jnp.abs(jnp.fft.fft(x)),
        jax.lax.conv_general_dilated(x[None, None], x[None, None, :3, :3], (1, 1), "SAME"),
    ]


def _spec(mesh: Mesh, x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec()))


def _both(f: Callable[..., Any], donate: bool = False) -> tuple[runtime.Built, runtime.Rebound, Mesh]:
    """The function for one device, and the same executable for another one, with the mesh of that."""
    meshes = [Mesh(np.array(jax.devices()[i : i + 1]), ("x",)) for i in (0, 1)]
    results = jax.tree.leaves(jax.eval_shape(f, X))
    specs = [[_spec(mesh, result) for result in results] for mesh in meshes]
    text = jax.jit(f).lower(X).as_text()
    built = runtime.compile_lowered(
        runtime.lower_function(text, [_spec(meshes[0], X)], specs[0], donate={0: 0} if donate else {})
    )
    bound = runtime.rebound(built, list(meshes[1].devices.flat), specs[1])
    assert bound is not None
    return built, bound, meshes[1]


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("f", [attention, adam, in_place, loops, types])
def test_the_same_values(f: Callable[..., Any], donate: bool) -> None:
    built, bound, mesh = _both(f, donate and jax.tree.leaves(jax.eval_shape(f, X))[0].shape == X.shape)
    assert built.serialized is not None and built.slim is not None
    assert len(built.slim) < len(built.serialized)
    one, other = (jax.device_put(X, d) for d in (jax.devices()[0], NamedSharding(mesh, PartitionSpec())))
    one = jax.device_put(one, built._compiled.input_shardings[0][0])
    for wanted, got in zip(built.direct_call()([one]), bound.direct_call()([other]), strict=True):
        assert got.devices() == {mesh.devices.flat[0]}
        np.testing.assert_array_equal(got, wanted)


def test_what_is_left_out_is_still_known() -> None:
    built, bound, _ = _both(adam)
    assert "fused_computation" in bound.as_text() and bound.as_text() == built.as_text()
    assert bound.cost_analysis() == built.cost_analysis()
    assert "fused_computation" not in "".join(m.to_string() for m in bound.runtime_executable().hlo_modules())
    assert bound.serialized == built.serialized
    again = runtime.rebound(bound, jax.devices()[2:3], [])
    assert again is not None and again.as_text() == built.as_text()


def test_bytes_of_another_form_stay() -> None:
    built, _, _ = _both(adam)
    assert built.serialized is not None
    for other in (b"", b"\x00", b"ELF" * 100, bytes(range(256)) * 9, built.serialized[:-1], built.serialized[3:]):
        assert slim(other) == other


def test_results_that_are_alike_are_made_by_one_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    one, other = _spec(mesh, X), _spec(mesh, X)
    made: list[Any] = []
    monkeypatch.setattr(runtime.pxla, "global_aval_to_result_handler", lambda *given: made.append(given) or len(made))
    bound = runtime.Rebound(None, [one, other, one], b"")
    assert bound._handlers == [1, 2, 1]
