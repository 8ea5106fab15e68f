"""How fast arrays go from one process to another, beside a plain socket.

    python benchmarks/transfer.py [--sizes 4K 1M 16M 64M] [--rounds 5] [--json] [--check]

Two processes send an array there and back, taking turns with the same bytes over a TCP connection of their own, through
the same interface.  Latency is half of a round trip, throughput the bytes by that time; the share is that of the
socket's throughput.  Medians over the rounds.  `--check`: exit 1 where the share is below 0.2 at 16 MiB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from workers import WORKER, found_by_first

import mpmd_trace
from mpmd_trace.backend.distribution.job import Job, current
from mpmd_trace.backend.distribution.reshard_transfer import ReshardTransfer, parts_of
from mpmd_trace.backend.distribution.transport import Log, here, tag_of

TARGET, AT = 0.2, 16 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20}


def main() -> int:
    """Starts two processes, and prints what process 0 found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["4K", "1M", "16M", "64M"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when the target is missed")
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    found = found_by_first(__file__, processes=2, devices=1)
    if options.json:
        print(json.dumps({"benchmark": "transfer", "target": TARGET, "sizes": found}))
    else:
        print("    size   latency ms   socket ms    MiB/s   share of the socket")
        for size, row in found.items():
            print(f"{size:>8} {row['ms']:12.3f} {row['socket ms']:11.3f} {row['MiB/s']:8.0f} {row['share']:21.2f}")
    wanted = next((row["share"] for size, row in found.items() if _bytes(size) == AT), TARGET)
    return int(options.check and wanted < TARGET)


def _bytes(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def work(options: argparse.Namespace) -> int:
    """Both processes: send there and back, as the runtime does it and over a socket, in turns."""
    mpmd_trace.initialize()
    job = current()
    assert job is not None
    link = _connected(job)
    found = {}
    numbers = itertools.count()
    for size in options.sizes:
        there, back = _over_transport(job, _bytes(size), numbers), _over_socket(job, link, _bytes(size))
        ways: list[Callable[[], None]] = [there, back]
        times: list[list[float]] = [[], []]
        repeat = max(1, min(50, (32 << 20) // _bytes(size)))
        for number in range(options.rounds + 1):
            for way, call in enumerate(ways):
                job.peers.allgather_bytes("round", b"")
                started = time.perf_counter()
                for _ in range(repeat):
                    call()
                if number:  # the first one connects
                    times[way].append((time.perf_counter() - started) / repeat / 2)
        ours, theirs = map(statistics.median, times)
        found[size] = {
            "ms": 1000 * ours,
            "socket ms": 1000 * theirs,
            "MiB/s": _bytes(size) / ours / (1 << 20),
            "share": theirs / ours,
        }
    if job.process == 0:
        print(json.dumps(found), flush=True)
    link.close()
    return 0


def _over_transport(job: Job, size: int, numbers: Iterator[int]) -> Callable[[], None]:
    """An array from process 0 to process 1 and back, as the runtime does it."""
    ends = [NamedSharding(Mesh(np.array([d]), ("x",)), PartitionSpec()) for d in jax.devices()]
    first = jax.device_put(np.arange(size // 4, dtype=np.float32), ends[0]) if job.process == 0 else None

    def send(array: jax.Array | None, way: int) -> jax.Array | None:
        source, target = ends[way], ends[1 - way]
        spec = jax.ShapeDtypeStruct((size // 4,), np.float32, sharding=target)
        pieces = parts_of(spec.shape, source, target)[way, 1 - way]
        sends = job.process == way
        parcel = ReshardTransfer(
            spec,
            source,
            sends={1 - way: pieces} if sends else {},
            receives={} if sends else {way: pieces},
            own=(),
            arrives=not sends,
        )
        tag = tag_of(0, next(numbers), 0)
        log = Log(lambda way, process: "receive an array of a benchmark", (0,))
        tags = {("to", 1 - way): tag, ("from", way): tag}
        return here(job.transport.transfer(tags, array, parcel, log, lent=False, given=False))

    def there_and_back() -> None:
        found = send(send(first, 0), 1)
        jax.block_until_ready(found)
        job.peers.wait()

    return there_and_back


def _connected(job: Job) -> socket.socket:
    """A connection between the two processes."""
    if job.process == 0:
        with socket.create_server((job.host, 0)) as server:
            job.peers.allgather_bytes("port", str(server.getsockname()[1]).encode())
            link, _ = server.accept()
    else:
        port = int(job.peers.allgather_bytes("port", b"")[0])
        link = socket.create_connection((job.host, port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _over_socket(job: Job, link: socket.socket, size: int) -> Callable[[], None]:
    """As many bytes from process 0 to process 1 and back."""
    data, room = bytearray(size), memoryview(bytearray(size))

    def receive() -> None:
        at = 0
        while at < size:
            at += link.recv_into(room[at:])

    def there_and_back() -> None:
        if job.process == 0:
            link.sendall(data)
            receive()
        else:
            receive()
            link.sendall(data)

    return there_and_back


if __name__ == "__main__":
    sys.exit(main())
