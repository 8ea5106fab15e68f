"""Large arrays between processes on CPUs: over TCP connections of our own, straight into the results of programs.

`jax.experimental.transfer` copies on both sides what it sends, into memory that is new every time.  So it moves a
*ticket* only, once the array can be had.  A program of one custom call waits for the ticket, as programs wait for their
arguments, and so keeps no thread waiting; it asks the sender for the array, and reads it into its result.  Whatever is
ready can be had, in any order.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import math
import mmap
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core
from jaxlib import _jax

from mpmd_trace.jax_compat import foreign
from mpmd_trace.jax_compat.runtime import compile_lowered, direct_call

__all__ = ["LARGE", "Wire", "is_large"]

#: Bytes from which on an array does not go with `jax.experimental.transfer`, which takes less time for smaller ones.
LARGE = 1 << 21
#: How many programs may wait for tickets: half of those that XLA lets wait on a device, so that others can run.
_MOST = 16
#: Seconds for a connection to be made, and for a stranger to say who it is.
_PATIENCE = 10.0
_TICKET = struct.Struct("=QLL")  # tag, number of the array, nothing
_WORDS = core.ShapedArray((_TICKET.size // 4,), np.dtype(np.uint32))  # the type of a ticket
_SIZE = struct.Struct("=q")  # bytes that follow; if less than 0, of a text that says why there is no array
#: XLA runs what has fewer operations in the thread that launches it, if its arguments are there.
_CHEAP = 1000
_NAME = "mpmd_trace_receive"
#: Bytes that wait for the receiver, on each side, where both are on one host.
_ON_THE_WAY = 1 << 18
#: Bytes of a large page.
_PAGE = 1 << 21
_C_LIBRARY = ctypes.CDLL(None)


def is_large(array: jax.Array | jax.ShapeDtypeStruct) -> bool:
    """Whether an array, or one of this type, goes over the wire."""
    whole_bytes = array.dtype.kind != "V" or np.dtype(array.dtype).name.startswith(("bfloat", "float8"))
    return whole_bytes and _bytes(array) >= LARGE


def _bytes(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    size: int = math.prod(array.shape) * array.dtype.itemsize
    return size


@dataclasses.dataclass(frozen=True, slots=True)
class _Awaited:
    """An array that a program waits for: from where, its bytes, and the stream of XLA's that the program is on."""

    wire: Wire
    address: str
    bytes: int
    stream: int


#: By tag and number, as the tickets say.
_AWAITED: dict[tuple[int, int], _Awaited] = {}


class Wire:
    """This process's end: offers arrays at an address of its own, and fetches those of others.

    Who connects says a secret that is in the address.
    """

    def __init__(self, host: str) -> None:
        _register()
        self._secret = secrets.token_bytes(16)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family)
        self.address = f"{host}|{self._server.getsockname()[1]}|{self._secret.hex()}"
        self._offered: dict[tuple[int, int], jax.Array] = {}
        self._programs: dict[Any, Callable[[Sequence[jax.Array]], list[jax.Array]]] = {}
        self._streams, self._free = itertools.count(1 << 20), list[int]()
        self._idle: dict[str, list[socket.socket]] = {}
        self._links: set[socket.socket] = set()
        self._broken = False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="mpmd-wire", daemon=True).start()

    def offer(self, tag: int, number: int, array: jax.Array) -> jax.Array:
        """The ticket for an array that is there, or is an error; whoever shows it gets the array once."""
        self._offered[tag, number] = array
        words = np.frombuffer(_TICKET.pack(tag, number, 0), np.uint32)
        made: jax.Array = _jax.batched_device_put(_WORDS, array.sharding, [words], list(array.devices()))
        return made

    def ticket(self, spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """The type of the ticket of an array."""
        return jax.ShapeDtypeStruct(_WORDS.shape, _WORDS.dtype, sharding=spec.sharding)

    def fetch(
        self, address: str, tag: int, number: int, ticket: jax.Array, spec: jax.ShapeDtypeStruct
    ) -> jax.Array:
        """The array that is offered at an address.

        Returns at once, and the array comes when its ticket has come; where many are awaited, returns then.
        """
        program = self._program(spec)
        if len(_AWAITED) >= _MOST:
            with contextlib.suppress(Exception):  # then the array is that error
                ticket.block_until_ready()
        with self._lock:
            stream = self._free.pop() if self._free else next(self._streams)
        _AWAITED[tag, number] = _Awaited(self, address, _bytes(spec), stream)
        # Programs of one stream run one after the other, and those of this thread need not wait for what comes.
        before = _jax.get_execution_stream_id()
        _jax.set_execution_stream_id(stream)
        try:
            return program([ticket])[0]
        finally:
            _jax.set_execution_stream_id(before)

    def break_off(self) -> None:
        """What has not arrived becomes an error, here and at the other ends."""
        with self._lock:
            self._broken = True
            for link in (self._server, *self._links):  # closed by who waits for them
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            for link in itertools.chain(*self._idle.values()):
                link.close()

    def _program(self, spec: jax.ShapeDtypeStruct) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
        key = spec.shape, spec.dtype, spec.sharding
        found = self._programs.get(key)
        if found is None:
            with jax.enable_x64(True), jax.disable_jit(False):
                jitted = jax.jit(functools.partial(_receive, spec.shape, spec.dtype), out_shardings=spec.sharding)
                found = direct_call(compile_lowered(jitted.lower(self.ticket(spec))))
            self._programs[key] = found
        return found

    # The side that sends.

    def _accept(self) -> None:
        while not self._broken:
            try:
                link, _ = self._server.accept()
            except OSError:  # there are too many open files, say: whoever wants to connect waits, and then says so
                time.sleep(0.1)
                continue
            threading.Thread(target=self._serve, args=(link,), name="mpmd-wire", daemon=True).start()
        self._server.close()

    def _serve(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError), link, self._known(link):
            _tune(link)
            link.settimeout(_PATIENCE)
            if not secrets.compare_digest(_read(link, len(self._secret)), self._secret):
                return
            link.settimeout(None)
            while True:
                tag, number, _ = _TICKET.unpack(_read(link, _TICKET.size))
                self._send(link, tag, number)

    def _send(self, link: socket.socket, tag: int, number: int) -> None:
        try:
            # NumPy's array is a view that keeps the buffer.
            data = np.asarray(self._offered.pop((tag, number))).reshape(-1).view(np.uint8)
        except Exception as error:
            text = str(error).strip().partition("\n")[0].encode() or b"?"
            link.sendall(_SIZE.pack(-len(text)) + text)
            return
        link.sendall(_SIZE.pack(data.nbytes))
        link.sendall(data.data)

    # The side that receives.

    def receive(self, tag: int, number: int, awaited: _Awaited, result: int) -> None:
        """Read an array into the memory at `result`; runs in a thread of XLA."""
        try:
            self._receive(tag, number, awaited, result)
        except OSError as error:
            raise OSError(f"Error while transferring the array with tag {tag:#x}: {error}") from error
        finally:
            with self._lock:
                self._free.append(awaited.stream)

    def _receive(self, tag: int, number: int, awaited: _Awaited, result: int) -> None:
        link = self._connected(awaited.address)
        try:
            link.sendall(_TICKET.pack(tag, number, 0))
            (size,) = _SIZE.unpack(_read(link, _SIZE.size))
            if size < 0:
                raise OSError(_read(link, -size).decode())
            if size != awaited.bytes:
                raise OSError(f"{size} bytes come, not {awaited.bytes}")
            _with_large_pages(result, size)
            _read_into(link, memoryview((ctypes.c_char * size).from_address(result)).cast("B"))
        except OSError:
            self._forget(link)
            raise
        with self._lock:
            self._idle.setdefault(awaited.address, []).append(link)

    def _connected(self, address: str) -> socket.socket:
        with self._lock:
            idle = self._idle.get(address)
            if idle:
                return idle.pop()
        host, port, secret = address.split("|")
        link = socket.create_connection((host, int(port)), _PATIENCE)
        link.settimeout(None)
        _tune(link)
        self._remember(link)
        link.sendall(bytes.fromhex(secret))
        return link

    # Both.

    def _remember(self, link: socket.socket) -> None:
        with self._lock:
            if self._broken:
                link.close()
                raise OSError("connections with other processes have been broken off")
            self._links.add(link)

    def _forget(self, link: socket.socket) -> None:
        with self._lock:
            self._links.discard(link)
        link.close()

    @contextlib.contextmanager
    def _known(self, link: socket.socket) -> Iterator[None]:
        self._remember(link)
        try:
            yield
        finally:
            self._forget(link)


def _tune(link: socket.socket) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if link.getsockname()[0] == link.getpeername()[0]:  # what is on the way stays in the cache of the processor
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ON_THE_WAY)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ON_THE_WAY)


def _with_large_pages(address: int, size: int) -> None:
    """Let new memory come in large pages where there are any: page by page it takes longer than what is written."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    start, end = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
    if advice is not None and start < end:
        _C_LIBRARY.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def _read(link: socket.socket, size: int) -> bytes:
    found = bytearray(size)
    _read_into(link, memoryview(found))
    return bytes(found)


def _read_into(link: socket.socket, room: memoryview) -> None:
    at = 0
    while at < len(room):
        count = link.recv_into(room[at:], 0, socket.MSG_WAITALL)
        if not count:
            raise OSError(f"the connection ended after {at} of {len(room)} bytes")
        at += count


def _receive(shape: tuple[int, ...], dtype: Any, ticket: Any) -> Any:
    """The program that waits for a ticket."""
    # Whoever launches this must not wait for the array, nor get its error.
    work = jax.numpy.sum(jax.lax.iota(np.uint32, 4 * _CHEAP) ^ ticket[0])
    return jax.ffi.ffi_call(_NAME, jax.ShapeDtypeStruct(shape, dtype))(ticket, work)


def _arrive(ticket: int, result: int) -> None:
    tag, number, _ = _TICKET.unpack(ctypes.string_at(ticket, _TICKET.size))
    awaited = _AWAITED.pop((tag, number))
    awaited.wire.receive(tag, number, awaited, result)


@functools.cache
def _register() -> None:
    foreign.register(_NAME, _arrive)
