"""Large arrays between processes: here from a process to itself, over the same connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from mpmd_trace.jax_compat import wire
from mpmd_trace.jax_compat.distributed import Endpoint, is_from_elsewhere

SHAPE = (1024, 512)
PATIENCE = 60.0


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint(jax.devices()[0], "127.0.0.1")
    yield made
    made.break_off()


def values(number: int, dtype: Any = np.float32, shape: tuple[int, ...] = SHAPE) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 2, shape).astype(dtype)


def spec_of(array: np.ndarray[Any, Any]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=SingleDeviceSharding(jax.devices()[0]))


SPEC = spec_of(values(0))


def offer(endpoint: Endpoint, tag: int, *arrays: np.ndarray[Any, Any]) -> None:
    endpoint.offer(tag, [jax.device_put(x, jax.devices()[0]) for x in arrays])


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_what_is_offered_comes_in_any_order_and_nothing_waits_for_it(endpoint: Endpoint) -> None:
    tags = list(range(100, 108))
    found = {tag: endpoint.fetch(endpoint.address, tag, [SPEC])[0] for tag in tags}
    doubled = {tag: jnp.add(x, x) for tag, x in found.items() if tag == 100}
    jax.block_until_ready(_in_thread(lambda: jnp.dot(values(0), values(1).T)))  # there are threads left to compute
    for tag in reversed(tags):
        assert not found[tag].is_ready()
        offer(endpoint, tag, values(tag))
        until(found[tag].is_ready)
        np.testing.assert_array_equal(found[tag], values(tag))
    np.testing.assert_array_equal(doubled[100], 2 * values(100))


def test_programs_that_are_launched_later_do_not_wait_for_what_comes(endpoint: Endpoint) -> None:
    later = jax.jit(lambda x: x @ x)
    x = jnp.ones((512, 512))
    later(x).block_until_ready()
    [found] = endpoint.fetch(endpoint.address, 120, [SPEC])
    until(later(x).is_ready)
    offer(endpoint, 120, values(0))
    found.block_until_ready()


@pytest.mark.parametrize(
    "dtype", [bool, np.int8, np.float16, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4]
)
def test_every_type(endpoint: Endpoint, dtype: Any) -> None:
    there = [values(number, dtype, (2048, 1024)) for number in range(2)]
    small = values(2, dtype, (3, 5))
    there.insert(1, small)  # large and small ones in one message
    offer(endpoint, 200, *there)
    found = endpoint.fetch(endpoint.address, 200, [spec_of(x) for x in there])
    for a, b in zip(found, there, strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == b.tobytes()


def test_what_has_come_may_be_donated(endpoint: Endpoint) -> None:
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    given = jax.device_put(values(3), jax.devices()[0])
    endpoint.offer(300, [given])
    [found] = endpoint.fetch(endpoint.address, 300, [SPEC])
    made = add(found)
    assert found.is_deleted()
    np.testing.assert_array_equal(made, values(3) + 1)
    np.testing.assert_array_equal(given, values(3))


def test_more_than_xla_lets_wait_on_a_device(endpoint: Endpoint) -> None:
    """As a thread for each link has it, which measures; XLA holds whoever launches the 33rd program."""
    tags = list(range(400, 440))
    found: dict[int, jax.Array] = {}

    def fetch(tag: int) -> None:
        [found[tag]] = endpoint.fetch(endpoint.address, tag, [SPEC])
        found[tag].block_until_ready()

    threads = [threading.Thread(target=fetch, args=(tag,), daemon=True) for tag in tags]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    _in_thread(lambda: jnp.dot(values(0), values(1).T).block_until_ready())
    for tag in reversed(tags):
        offer(endpoint, tag, values(tag))
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(found) == tags
    assert all(np.array_equal(x, values(tag)) for tag, x in found.items())


def test_whoever_fetches_does_not_wait_for_what_is_there_either(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    send = wire.Wire._send

    def later(*arguments: Any) -> None:
        goes_on.wait(PATIENCE)
        send(*arguments)

    monkeypatch.setattr(wire.Wire, "_send", later)
    offer(endpoint, 450, values(0))
    ticket = jax.device_put(np.array([450, 0, 0, 0], np.uint32), jax.devices()[0]).block_until_ready()
    assert endpoint._wire is not None
    found = endpoint._wire.fetch(endpoint._wire.address, 450, 0, ticket, SPEC)
    assert not found.is_ready()
    goes_on.set()
    np.testing.assert_array_equal(found, values(0))


def test_the_end_of_a_connection_in_the_middle_is_an_error(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(self: wire.Wire, link: socket.socket, tag: int, number: int) -> None:
        size = SPEC.size * SPEC.dtype.itemsize
        link.sendall(wire._SIZE.pack(size) + bytes(size // 2))
        raise OSError("gone")

    monkeypatch.setattr(wire.Wire, "_send", half)
    offer(endpoint, 500, values(0))
    [found] = endpoint.fetch(endpoint.address, 500, [SPEC])
    with pytest.raises(jax.errors.JaxRuntimeError, match="ended after 1048576 of 2097152 bytes") as error:
        found.block_until_ready()
    assert is_from_elsewhere(str(error.value))
    assert "tag 0x1f4" in str(error.value)


def test_breaking_off_ends_what_waits_for_the_rest_of_an_array(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, goes_on = threading.Event(), threading.Event()

    def stop(self: wire.Wire, link: socket.socket, tag: int, number: int) -> None:
        link.sendall(wire._SIZE.pack(SPEC.size * SPEC.dtype.itemsize) + bytes(1000))
        stopped.set()
        goes_on.wait(PATIENCE)

    monkeypatch.setattr(wire.Wire, "_send", stop)
    [early], [never] = (endpoint.fetch(endpoint.address, tag, [SPEC]) for tag in (510, 511))
    offer(endpoint, 510, values(0))
    assert stopped.wait(PATIENCE)
    endpoint.break_off()
    for array in (early, never):
        with pytest.raises(jax.errors.JaxRuntimeError) as error:
            array.block_until_ready()
        assert is_from_elsewhere(str(error.value))
    goes_on.set()


def test_an_array_that_is_an_error_is_one_at_the_other_end(endpoint: Endpoint) -> None:
    ended = Endpoint(jax.devices()[0], "127.0.0.1")
    [broken] = ended.fetch(endpoint.address, 519, [SPEC])
    ended.break_off()
    until(broken.is_ready)
    endpoint.offer(520, [broken])
    [found] = endpoint.fetch(endpoint.address, 520, [SPEC])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"with tag 0x208: \w") as error:
        found.block_until_ready()
    assert is_from_elsewhere(str(error.value))


def test_strangers_get_nothing(endpoint: Endpoint) -> None:
    offer(endpoint, 530, values(0))
    host, port, secret = endpoint.address.split()[1].split("|")
    with socket.create_connection((host, int(port)), PATIENCE) as link:
        link.sendall(bytes(len(secret) // 2))
        assert link.recv(1) == b""
    [found] = endpoint.fetch(endpoint.address, 530, [SPEC])
    np.testing.assert_array_equal(found, values(0))


def _in_thread(call: Callable[[], Any]) -> Any:
    """What a call returns, which must not wait for what this thread has launched."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return found[0]
