"""Executables that are read back for other devices compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mpmd_trace.jax_compat import runtime

X = np.linspace(-2, 3, 24 * 16, dtype=np.float32).reshape(24, 16)


def in_place(x: jax.Array) -> list[jax.Array]:
    taken = jax.lax.dynamic_update_slice(x * 2, x[:2] + 1, (3, 0))
    added = jnp.tanh(x).at[jnp.array([1, 5, 1])].add(x[:3] * 3)
    return [taken, added, jnp.sort(x, axis=0), jnp.cumsum(x, axis=1)]


def types(x: jax.Array) -> list[jax.Array]:
    return [
        (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)).astype(jnp.float32),
        jnp.linalg.cholesky(x.T @ x + 10 * jnp.eye(16)),
        jnp.abs(jnp.fft.fft(x)),
        jax.lax.conv_general_dilated(x[None, None], x[None, None, :3, :3], (1, 1), "SAME"),
    ]


def _spec(mesh: Mesh, x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec()))


def _both(f: Callable[..., Any], donate: bool = False) -> tuple[runtime.Compiled, runtime.Compiled, Mesh]:
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
@pytest.mark.parametrize("f", [in_place, types])
def test_the_same_values(f: Callable[..., Any], donate: bool) -> None:
    built, bound, mesh = _both(f, donate and jax.tree.leaves(jax.eval_shape(f, X))[0].shape == X.shape)
    one, other = (jax.device_put(X, d) for d in (jax.devices()[0], NamedSharding(mesh, PartitionSpec())))
    one = jax.device_put(one, NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec()))
    for wanted, got in zip(built.call([one]), bound.call([other]), strict=True):
        assert got.devices() == {mesh.devices.flat[0]}
        np.testing.assert_array_equal(got, wanted)


def test_what_was_compiled_is_still_known() -> None:
    built, bound, _ = _both(lambda x: [x * jnp.tanh(x).sum()])
    assert "tanh" in bound.as_text()
    assert bound.serialized == built.serialized
    again = runtime.rebound(bound, jax.devices()[2:3], [])
    assert again is not None and again.cost_analysis() == bound.cost_analysis()


def test_results_that_are_alike_are_made_by_one_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    one, other = _spec(mesh, X), _spec(mesh, X)
    made: list[Any] = []
    monkeypatch.setattr(runtime.pxla, "global_aval_to_result_handler", lambda *given: made.append(given) or len(made))
    assert runtime.result_handlers([one, other, one]) == [1, 2, 1]
