"""Programs lowered for platforms that are not there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import mpmd_trace
from mpmd_trace.diagnostics.messages import MpmdError
from pipelines import accumulate, batch, config, loss_of, topology, weights


def eigenvalues(w: jax.Array, x: jax.Array) -> jax.Array:
    """Return what each platform computes by a custom call of its own."""
    return jnp.tanh(x @ w) + jnp.linalg.eigvalsh(w @ w.T)


loss = loss_of(eigenvalues)


def step(ws: list[jax.Array], xs: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    return accumulate(ws, xs, jax.value_and_grad(loss))


@pytest.mark.parametrize(("platform", "target"), [("cpu", "lapack_ssyevd_ffi"), ("cuda", "cusolver"), ("tpu", "Eigh")])
def test_lowers_for_the_platform(platform: str, target: str) -> None:
    traced = mpmd_trace.jit(step, config()).trace(weights(), batch(2))
    lowered = traced.lower(lowering_platforms=(platform,))
    for text in (lowered.as_text("stablehlo"), lowered.as_text("mpmd")):
        assert f"@{target}" in text
    assert str(lowered.compiler_ir()) == lowered.as_text()
    assert "transfer" in lowered.as_text("plan")


def test_default_is_the_platform_of_the_devices() -> None:
    traced = mpmd_trace.jit(step, config()).trace(weights(), batch(2))
    assert traced.lower().as_text("stablehlo") == traced.lower(lowering_platforms=("cpu",)).as_text("stablehlo")
    devices = jax.sharding.AbstractDevice("NVIDIA H100", None, "cuda")
    meshes = {f"m{i}": AbstractMesh((2,), ("x",), abstract_device=devices) for i in range(2)}
    lowered = mpmd_trace.jit(step, config(topology=meshes)).lower(weights(), batch(2))
    assert "@cusolver" in lowered.as_text("mpmd")


def test_names_to_be_assigned_are_balanced_for_the_platform() -> None:
    unassigned = mpmd_trace.make_config(topology(), "auto")
    traced = mpmd_trace.jit(step, unassigned).trace(weights(), batch(2))
    assert "@cusolver" in traced.lower(lowering_platforms=("cuda",)).as_text("mpmd")


def test_memories_of_results_are_those_of_the_platform() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        return jax.device_put(loss(ws, x), jax.memory.Space.Host)

    traced = mpmd_trace.jit(step, config()).trace(weights(), batch())
    on_gpu = traced.lower(lowering_platforms=("cuda",)).as_text("stablehlo")
    assert "annotate_device_placement" in on_gpu
    assert "annotate_device_placement" not in traced.lower().as_text("stablehlo")


def test_is_not_compiled_for_other_devices() -> None:
    traced = mpmd_trace.jit(step, config()).trace(weights(), batch(2))
    with pytest.raises(MpmdError, match=r"step was lowered for cuda, and the devices of the meshes are cpu: leave"):
        traced.lower(lowering_platforms=("cuda",)).compile()
    found = traced.lower(lowering_platforms=("cpu",)).compile()(weights(), batch(2))
    np.testing.assert_allclose(found[0], jax.jit(step)(weights(), batch(2))[0], rtol=1e-4)


@pytest.mark.parametrize("platforms", [(), ("cpu", "cuda")])
def test_one_platform_at_a_time(platforms: tuple[str, ...]) -> None:
    traced = mpmd_trace.jit(step, config()).trace(weights(), batch(2))
    with pytest.raises(MpmdError, match="has one platform for mpmd_trace"):
        traced.lower(lowering_platforms=platforms)
