"""Messages between processes: here two ends in one process, over connections of their own."""

from __future__ import annotations

import errno
import gc
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from mpmd_trace.backend.distribution import tcp as posting
from mpmd_trace.backend.distribution.buffer_pool import BufferPool
from mpmd_trace.backend.distribution.tcp import TcpTransport
from mpmd_trace.jax_compat.distributed import is_from_elsewhere
from mpmd_trace.jax_compat.runtime import from_memory

PATIENCE = 60.0
LARGE = (1024, 512)


@pytest.fixture
def ends() -> Iterator[list[TcpTransport]]:
    """The ends of processes 0 and 1."""
    made = [TcpTransport("127.0.0.1", process) for process in range(2)]
    for end in made:
        end.addresses = [one.address for one in made]
    yield made
    for end in made:
        end.break_off()


def values(number: int, dtype: Any = np.float32, shape: tuple[int, ...] = LARGE) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 2, shape).astype(dtype)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Computed:
    """Stands for an array that takes time to compute, or that is an error."""

    def __init__(self, compute: Callable[[], np.ndarray[Any, Any]]) -> None:
        self._compute = compute

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self._compute()


def in_threads(*calls: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_what_is_sent_is_there_whoever_comes_first(ends: list[TcpTransport]) -> None:
    first, second = ends
    [early] = second.expect(0, 1, 1)
    assert not early.is_ready()
    first.send(1, 1, [values(1)])
    first.send(1, 2, [values(2), values(3)])
    np.testing.assert_array_equal(early.take().view(np.float32).reshape(LARGE), values(1))
    until(lambda: second._lying == 2 * values(0).nbytes)
    for number, found in zip((2, 3), second.expect(0, 2, 2), strict=True):
        assert found.is_ready()
        np.testing.assert_array_equal(found.take().view(np.float32).reshape(LARGE), values(number))
    assert second._lying == 0 and not second._arrivals


def test_messages_are_taken_in_any_order(ends: list[TcpTransport]) -> None:
    first, second = ends
    for tag in range(20):
        first.send(1, tag, [values(tag, shape=(7,))])
    for tag in reversed(range(20)):
        [found] = second.expect(0, tag, 1)
        np.testing.assert_array_equal(found.take().view(np.float32), values(tag, shape=(7,)))


def test_what_is_sent_may_not_be_computed_yet(ends: list[TcpTransport]) -> None:
    first, second = ends
    goes_on = threading.Event()

    def later() -> np.ndarray[Any, Any]:
        goes_on.wait(PATIENCE)
        return np.ones(3, np.float32)

    first.send(1, 0, [Computed(later)])
    [found] = second.expect(0, 0, 1)
    time.sleep(0.05)
    assert not found.is_ready()
    goes_on.set()
    assert found.take().view(np.float32).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("shape", [(64, 512), (3, 5), (), (0, 3)])
@pytest.mark.parametrize(
    "dtype", [bool, np.int8, np.float16, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4]
)
def test_every_type(ends: list[TcpTransport], dtype: Any, shape: tuple[int, ...]) -> None:
    there = values(0, dtype, shape)
    spec = jax.ShapeDtypeStruct(shape, there.dtype, sharding=SingleDeviceSharding(jax.devices()[0]))
    ends[0].send(1, 0, [jax.device_put(there, jax.devices()[0])])
    [found] = ends[1].expect(0, 0, 1)
    array = from_memory(found.take().view(there.dtype).reshape(shape), spec, copied=False)
    assert array.dtype == there.dtype and array.shape == shape
    assert np.asarray(array).tobytes() == there.tobytes()


def test_memory_is_lent_again_when_nothing_refers_to_it() -> None:
    rooms = BufferPool()
    spec = jax.ShapeDtypeStruct((1 << 18,), np.float32, sharding=SingleDeviceSharding(jax.devices()[0]))
    room = rooms.acquire(1 << 20)
    place = room.ctypes.data
    room[:4] = np.frombuffer(np.float32(3).tobytes(), np.uint8)
    array = from_memory(room.view(np.float32), spec, copied=False)
    assert array.unsafe_buffer_pointer() == place, "a program reads it where it arrived"
    del room
    gc.collect()
    other = rooms.acquire(1 << 20)
    assert other.ctypes.data != place
    assert float(array[0]) == 3.0
    del array
    gc.collect()
    jnp.zeros(1).block_until_ready()  # JAX lets go of what it does not need
    again = rooms.acquire(1 << 20)
    assert again.ctypes.data == place
    assert rooms._kept == 0


def test_no_more_is_kept_than_was_lent_at_a_time() -> None:
    rooms = BufferPool()
    for size in (1 << 20, 1 << 21, 1 << 22):
        rooms.acquire(size)
        gc.collect()
    assert rooms._kept <= 1 << 22


def test_what_may_be_donated_is_a_copy() -> None:
    room = BufferPool().acquire(1 << 20)
    room[:] = 0
    spec = jax.ShapeDtypeStruct((1 << 18,), np.float32, sharding=SingleDeviceSharding(jax.devices()[0]))
    array = from_memory(room.view(np.float32), spec, copied=True)
    place = array.unsafe_buffer_pointer()
    assert place != room.ctypes.data
    made = jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert made.unsafe_buffer_pointer() == place
    assert not room.any()


def test_a_sender_is_ahead_by_so_much_until_the_receiver_waits(
    ends: list[TcpTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ends
    size = values(0).nbytes
    monkeypatch.setattr(posting, "AHEAD", 3 * size)
    for tag in range(8):
        first.send(1, tag, [values(tag)])
    until(lambda: second._lying == 3 * size)
    time.sleep(0.05)
    assert second._lying == 3 * size
    [last] = second.expect(0, 7, 1)  # what is behind all others is what this one needs first
    np.testing.assert_array_equal(last.take().view(np.float32).reshape(LARGE), values(7))
    for tag in range(7):
        [found] = second.expect(0, tag, 1)
        np.testing.assert_array_equal(found.take().view(np.float32).reshape(LARGE), values(tag))


def test_the_end_of_a_connection_in_the_middle_is_an_error(ends: list[TcpTransport]) -> None:
    def half(link: socket.socket, key: tuple[int, int], part: Any) -> None:
        link.sendall(posting.HEAD.pack(*key, part.nbytes) + bytes(part.nbytes // 2))
        raise OSError("gone")

    ends[0].send_part = half  # type: ignore[method-assign]
    ends[0].send(1, 500, [values(0)])
    [found], [other] = ends[1].expect(0, 500, 1), ends[1].expect(0, 501, 1)
    with pytest.raises(OSError, match="tag 0x1f4: the connection ended after 1048576 of 2097152 bytes") as error:
        found.block_until_ready()
    assert is_from_elsewhere(str(error.value))
    for late in (other, *ends[1].expect(0, 502, 1)):
        with pytest.raises(OSError, match=r"tag 0x1f[56]: the connection ended"):
            late.take()


def test_breaking_off_ends_all_waits(ends: list[TcpTransport]) -> None:
    stopped = threading.Event()

    def stop(link: socket.socket, key: tuple[int, int], part: Any) -> None:
        link.sendall(posting.HEAD.pack(*key, part.nbytes) + bytes(1000))
        stopped.set()
        time.sleep(0.2)

    ends[0].send_part = stop  # type: ignore[method-assign]
    ends[0].send(1, 510, [values(0)])
    arrivals = [*ends[1].expect(0, 510, 1), *ends[1].expect(0, 511, 1)]
    errors: list[str] = []

    def wait(arrival: posting.Arrival) -> None:
        with pytest.raises(OSError) as error:
            arrival.block_until_ready()
        errors.append(str(error.value))

    threads = in_threads(*(lambda one=one: wait(one) for one in arrivals))
    assert stopped.wait(PATIENCE)
    ends[1].break_off()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(errors) == 2 and all(map(is_from_elsewhere, errors))
    with pytest.raises(OSError, match="broken off"):
        ends[1].expect(0, 512, 1)[0].take()


def test_an_array_that_is_an_error_is_one_at_the_other_end(ends: list[TcpTransport]) -> None:
    def fail() -> np.ndarray[Any, Any]:
        raise ValueError("trouble")

    ends[0].send(1, 520, [Computed(fail)])
    [found] = ends[1].expect(0, 520, 1)
    with pytest.raises(OSError, match=r"with tag 0x208: .*trouble"):
        found.take()
    ends[0].send(1, 521, [values(1)])  # and others go on
    [found] = ends[1].expect(0, 521, 1)
    np.testing.assert_array_equal(found.take().view(np.float32).reshape(LARGE), values(1))


def test_strangers_can_say_nothing(ends: list[TcpTransport]) -> None:
    host, port, _ = ends[1].address.split("|")
    [found] = ends[1].expect(0, 530, 1)
    with socket.create_connection((host, int(port)), PATIENCE) as link:
        link.sendall(posting._HELLO.pack(bytes(16), 0) + posting.HEAD.pack(530, 0, 4) + bytes(4))
        with pytest.raises(ConnectionError):
            while link.recv(1):
                pass
            raise ConnectionError
    assert not found.is_ready()
    ends[0].send(1, 530, [values(0)])
    np.testing.assert_array_equal(found.take().view(np.float32).reshape(LARGE), values(0))


def test_a_thread_that_cannot_send_says_why(ends: list[TcpTransport]) -> None:
    first, _ = ends
    told: list[str] = []
    first.on_failure = told.append

    def fails(*args: Any) -> None:
        raise MemoryError

    first.send_part = fails  # type: ignore[method-assign]
    first.send(1, 1, [values(1)])
    until(lambda: told != [])
    assert told == ["cannot send to process 1: MemoryError"]


def test_a_thread_that_cannot_receive_says_why(ends: list[TcpTransport]) -> None:
    first, second = ends
    told: list[str] = []
    second.on_failure = told.append

    def fails(size: int) -> Any:
        raise MemoryError(f"no {size} bytes")

    second._rooms.acquire = fails  # type: ignore[method-assign]
    [arrival] = second.expect(0, 1, 1)
    first.send(1, 1, [values(1)])
    with pytest.raises(OSError, match="no 2097152 bytes"):
        arrival.block_until_ready()
    until(lambda: told != [])
    assert told == ["cannot receive from another process: MemoryError: no 2097152 bytes"]


@pytest.mark.parametrize("where", ["connect", "accept", "thread"])
def test_too_many_open_files_and_threads_are_told(
    ends: list[TcpTransport], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    first, second = ends
    told: list[str] = []
    first.on_failure = second.on_failure = told.append

    def fails(*args: Any, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    class Thread(threading.Thread):
        def start(self) -> None:
            if self.name == "mpmd-receive":
                raise RuntimeError("can't start new thread")
            super().start()

    if where == "connect":
        monkeypatch.setattr(posting.socket, "create_connection", fails)
    elif where == "thread":
        monkeypatch.setattr(posting.threading, "Thread", Thread)
    else:
        monkeypatch.setattr(posting, "_PATIENCE", 0.05)
        server = types.SimpleNamespace(accept=fails, getsockname=lambda: ("", 1), shutdown=print, close=print)
        monkeypatch.setattr(posting.socket, "create_server", lambda *args, **options: server)
        TcpTransport("127.0.0.1", 1).on_failure = told.append
    if where != "accept":
        first.send(1, 1, [values(1)])
    until(lambda: told != [])
    files = "OSError: [Errno 24] Too many open files"
    assert (
        told[0]
        == {
            "connect": f"cannot send to process 1: {files}",
            "accept": f"cannot accept connections of other processes: {files}",
            "thread": "cannot accept connections of other processes: RuntimeError: can't start new thread",
        }[where]
    )


def test_the_end_of_the_other_process_is_no_fault_of_this_one(ends: list[TcpTransport]) -> None:
    first, second = ends
    told: list[str] = []
    first.on_failure = second.on_failure = told.append
    first.send(1, 1, [values(1)])
    [arrival] = second.expect(0, 1, 1)
    arrival.take()
    second.break_off()
    for tag in range(2, 5):
        first.send(1, tag, [values(1)])
    first.break_off()
    time.sleep(0.1)
    assert told == []
