"""FFTs over sharded arrays: what XLA compiles for `jax.jit` runs, and what it does not is told with the way out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import MpmdError, named_computation

SPECS = [PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec(None, None, "x")]


def spectrum(x: jax.Array) -> jax.Array:
    return jnp.fft.fft(x).real


@pytest.mark.parametrize("given", SPECS, ids=str)
@pytest.mark.parametrize("wanted", SPECS, ids=str)
def test_shardings_of_operand_and_result(given: PartitionSpec, wanted: PartitionSpec) -> None:
    """XLA's CPU kernel rejects layouts that its own partitioner makes, of the same programs under `jax.jit`."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    first, last = NamedSharding(mesh, given), NamedSharding(mesh, wanted)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4, 4)), jnp.float32)
    config = mpmd_trace.make_config({"m0": mesh}, {"f0": "m0"})
    step = mpmd_trace.jit(
        lambda x: named_computation(spectrum, name="f0")(x), config, in_shardings=(first,), out_shardings=last
    )
    try:
        jax.jit(spectrum, in_shardings=first, out_shardings=last).lower(x).compile()
    except jax.errors.JaxRuntimeError:
        with pytest.raises(MpmdError, match=r"give its operand and its result one sharding"):
            step(x)
    else:
        found = step(x)
        assert found.sharding.is_equivalent_to(last, 3)
        np.testing.assert_allclose(found, spectrum(x), rtol=1e-4, atol=1e-4)
