"""Arrays of NumPy on CPUs: what `jax.device_put` makes of them, read within the call."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from mpmd_trace.jax_compat.layouts import Format, Layout, layout_of, put
from pipelines import mesh

SHARDINGS = {
    "one": NamedSharding(mesh(0, (1,), "x"), PartitionSpec()),
    "one, by an axis": NamedSharding(mesh(1, (1,), "x"), PartitionSpec("x")),
    "rows": NamedSharding(mesh(0, (4,), "x"), PartitionSpec("x")),
    "columns": NamedSharding(mesh(0, (4,), "x"), PartitionSpec(None, "x")),
    "both": NamedSharding(mesh(0, (2, 2), "x", "y"), PartitionSpec("y", "x")),
    "rows, twice": NamedSharding(mesh(0, (2, 2), "x", "y"), PartitionSpec("y")),
    "all": NamedSharding(mesh(0, (4,), "x"), PartitionSpec()),
}


def numbers(dtype: Any, shape: tuple[int, ...] = (8, 4)) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape, dtype=int)) % 7).reshape(shape).astype(dtype)


def placed(x: np.ndarray[Any, Any], sharding: NamedSharding) -> jax.Array:
    return put(x, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), may_alias=False)


@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int64, bool, np.complex64, ml_dtypes.bfloat16, ml_dtypes.int4]
)
def test_the_same_array(name: str, dtype: Any) -> None:
    for kind in (None, "pinned_host"):
        sharding = SHARDINGS[name] if kind is None else SHARDINGS[name].with_memory_kind(kind)
        for x in (numbers(dtype), numbers(dtype).T, numbers(dtype, (16, 4))[::2], numbers(dtype, (0, 4))):
            with jax.enable_x64(True):
                wanted = jax.device_put(x, sharding)
                found = placed(x, sharding)
            assert found.aval == wanted.aval and repr(found.aval) == repr(wanted.aval)
            assert found.weak_type == wanted.weak_type and found.committed == wanted.committed
            assert found.sharding is wanted.sharding is sharding
            assert found.sharding.memory_kind == wanted.sharding.memory_kind
            assert layout_of(found) == layout_of(wanted)
            assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes() == x.tobytes()
            for one, other in zip(found.addressable_shards, wanted.addressable_shards, strict=True):
                assert (one.device, one.index) == (other.device, other.index)


@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("size", [4, 64, 1024])
def test_the_caller_may_change_it_at_once(name: str, order: Any, size: int) -> None:
    x = np.empty((size, size), np.float32, order=order)
    arrays = []
    for i in range(8):
        x[:] = i
        arrays.append(placed(x, SHARDINGS[name]))
    x[:] = -1
    for i, array in enumerate(arrays):
        assert (np.asarray(array) == i).all()


def test_a_layout_that_is_asked_for() -> None:
    place = Format(Layout((1, 0)), SHARDINGS["one"])
    found = put(numbers(np.float32), jax.ShapeDtypeStruct((8, 4), np.float32, sharding=place), may_alias=False)
    assert found.format.layout.major_to_minor == (1, 0)
    np.testing.assert_array_equal(found, numbers(np.float32))


def test_it_is_an_explicit_transfer() -> None:
    with jax.transfer_guard("disallow"):
        placed(numbers(np.float32), SHARDINGS["rows"])


def test_a_transformation_around_it_traces_it() -> None:
    found: list[Any] = []
    jax.jit(lambda: found.append(placed(numbers(np.float32), SHARDINGS["one"])))()
    assert isinstance(found[0], jax.core.Tracer)
