"""What a process does with blocks that arrive."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mpmd_trace.backend.distribution.reshard_transfer import ReshardTransfer, sample
from mpmd_trace.backend.distribution.shard_slices import SliceOverlap


def _reshard(receives: dict[int, tuple[SliceOverlap, ...]], devices: int) -> ReshardTransfer:
    mesh = Mesh(jax.devices()[:devices], "x")
    target = NamedSharding(mesh, PartitionSpec("x"))
    spec = jax.ShapeDtypeStruct((4, 2), jnp.float32, sharding=target)
    return ReshardTransfer(spec, target, sends={}, receives=receives, own=(), arrives=True)


def test_a_block_that_is_all_of_the_array_becomes_the_array() -> None:
    reshard = _reshard({1: (SliceOverlap(((0, 4), (0, 2)), 0, (0,)),)}, 1)
    block = jnp.arange(8.0).reshape(4, 2)
    found = reshard.assembled([], {1: [block]})
    assert found.sharding == reshard.target
    assert found.unsafe_buffer_pointer() == block.unsafe_buffer_pointer()
    assert found.tolist() == block.tolist()
    assert reshard.incoming(1) is reshard.incoming(1)  # said to the transport for every step


def test_blocks_of_several_senders_are_joined() -> None:
    upper, lower = SliceOverlap(((0, 2), (0, 2)), 0, (0,)), SliceOverlap(((2, 4), (0, 2)), 0, (0,))
    found = _reshard({1: (upper,), 2: (lower,)}, 1).assembled([], {1: [jnp.zeros((2, 2))], 2: [jnp.ones((2, 2))]})
    assert found.tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]


@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3), (3, 0)])
def test_a_sample_outlives_the_array(shape: tuple[int, ...]) -> None:
    array = jnp.ones(shape)
    one = sample(array)
    array.delete()
    np.testing.assert_array_equal(np.asarray(one), np.ones([min(1, size) for size in shape]))
