"""Joining the processes of a job, the store that they share, and transfers that only their two ends take part in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import clusters, distributed, xla_bridge
from jaxlib import _jax

from mpmd_trace.jax_compat.wire import Wire, is_large

__all__ = [
    "Endpoint",
    "Store",
    "backends_are_initialized",
    "detected_cluster",
    "is_from_elsewhere",
    "join",
    "leave",
    "place_in_job",
    "serve",
    "shared_store",
]

#: Seconds without a heartbeat after which JAX takes a process for dead.
HEARTBEAT = 100


def backends_are_initialized() -> bool:
    """Whether JAX has looked for its devices, after which no process can join a job."""
    return bool(xla_bridge.backends_are_initialized())


def detected_cluster() -> str | None:
    """The name of the launcher that started this process (`slurm`, `ompi`, `k8s`, ...), as JAX finds out; or None."""
    for found in clusters.ClusterEnv._cluster_types:
        if not found.opt_in_only_method and found.is_env_present():
            return str(found.name)
    return None


def serve(address: str, processes: int, patience: int) -> Any:
    """JAX's coordination service, which lives as long as the object that this returns (`.shutdown()` ends it)."""
    return _jax.get_distributed_runtime_service(
        address, processes, heartbeat_timeout=HEARTBEAT, shutdown_timeout=patience, recoverable=True
    )


def join(
    address: str | None,
    processes: int | None,
    process: int | None,
    *,
    local_device_ids: Sequence[int] | None,
    bind: str | None,
    served: bool,
    host: Callable[[str], str],
    patience: int,
) -> str:
    """Join the job, so that the devices of all processes are there; the address of the coordination service.

    Processes whose peer dies go on, and are told by us.

    Args:
        address: of the coordination service; None where JAX knows the launcher.
        processes: how many there are.
        process: the number of this one.
        local_device_ids: as in `jax.distributed.initialize`.
        bind: where process 0 listens.
        served: whether the launcher has the coordination service, so that no process is more important than another.
        host: the address that this process has for others, from that of the coordination service.
        patience: seconds to wait for the others.
    """
    jax.config.update("jax_enable_recoverability", True)
    state = distributed.global_state
    if served:
        assert address is not None
        assert processes is not None
        assert process is not None
        state.client = _jax.get_distributed_runtime_client(
            address, process, init_timeout=patience, use_compression=True, heartbeat_timeout=HEARTBEAT
        )
        state.client.connect()
        state.coordinator_address, state.num_processes, state.process_id = address, processes, process
    else:
        jax.distributed.initialize(
            address,
            processes,
            process,
            local_device_ids=local_device_ids,
            coordinator_bind_address=bind,
            initialization_timeout=patience,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=patience,
        )
    found = state.coordinator_address
    assert found is not None
    if jax.config.jax_cpu_collectives_implementation == "gloo":
        # Gloo would listen on the interface that the host's name stands for.
        collectives = _jax.make_gloo_tcp_collectives(distributed_client=state.client, hostname=host(found))
        xla_bridge.register_backend_factory(
            "cpu", lambda: xla_bridge.make_cpu_client(collectives), priority=0, fail_quietly=False
        )
    return str(found)


def place_in_job() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    state = distributed.global_state
    assert state.process_id is not None
    assert state.num_processes is not None
    return state.process_id, state.num_processes


def leave() -> None:
    """Tell the coordination service that this process ends."""
    # After a fault the service may be gone.
    with contextlib.suppress(Exception):
        jax.distributed.shutdown()


def shared_store() -> Store:
    return Store(distributed.global_state.client)


class Store:
    """Names and values that all processes of the job see."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, name: str, value: bytes) -> None:
        self._client.key_value_set_bytes(name, value)

    def get(self, name: str, seconds: float) -> bytes | None:
        """The value, as soon as it is there; None if it is not in time."""
        try:
            found: bytes = self._client.blocking_key_value_get_bytes(name, max(1, int(seconds * 1000)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error) or "timed out" in str(error):
                return None
            raise
        return found

    def drop(self, name: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_delete(name)


#: What XLA says of values that another process could not send, or whose connection broke.
_OF_TRANSFERS = ("Error while transferring", "SocketServer", "recv()", "send()", "InjectFailure", "Gloo")


def is_from_elsewhere(reason: str) -> bool:
    """Whether a value is an error because of the process that it came from."""
    return any(words in reason for words in _OF_TRANSFERS)


class Endpoint:
    """This process's end of transfers: what it offers, others fetch.

    Small arrays go with `jax.experimental.transfer`, over plain TCP connections, in pieces of `chunk` bytes; large ones
    of CPUs as `wire.Wire` has it.
    """

    def __init__(self, device: jax.Device, host: str, *, sockets: int = 2, chunk: int = 1 << 20) -> None:
        from jax.experimental import transfer  # only processes that have peers need it

        address = f"[{host}]:0" if ":" in host else f"{host}:0"
        self._client = device.client
        # Without addresses for the data, XLA serves this process alone and aborts when another one asks.
        self._server: Any = transfer.start_transfer_server(
            self._client, address, [address] * sockets, transfer_size=chunk, max_num_parallel_copies=8
        )
        self._connections: dict[str, Any] = {}
        self._wire = Wire(host) if device.platform == "cpu" else None

    @property
    def address(self) -> str:
        """Where others find this end, and what they must say there."""
        wire = self._wire.address if self._wire is not None else ""
        return f"{self._server.address()} {wire}"

    def offer(self, tag: int, arrays: Sequence[jax.Array]) -> None:
        """Let the one peer that asks for the tag have these arrays of one device, which are there; returns at once."""
        wire = self._wire
        given = [wire.offer(tag, i, x) if wire is not None and is_large(x) else x for i, x in enumerate(arrays)]
        self._server._await_pull_flat(tag, given)

    def fetch(self, address: str, tag: int, specs: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
        """The arrays offered with a tag by the process at `address`; returns at once, and they arrive later."""
        place, _, over_wire = address.partition(" ")
        connection = self._connections.get(place)
        if connection is None:
            connection = self._connections[place] = self._server.connect(place)
        wire = self._wire
        if wire is None or not any(map(is_large, specs)):
            found: list[jax.Array] = connection._pull_flat(tag, self._client, list(specs))
            return found
        asked = [wire.ticket(spec) if is_large(spec) else spec for spec in specs]
        found = connection._pull_flat(tag, self._client, asked)
        return [
            wire.fetch(over_wire, tag, i, x, spec) if is_large(spec) else x
            for i, (x, spec) in enumerate(zip(found, specs, strict=True))
        ]

    def break_off(self) -> None:
        """Whatever has not arrived becomes an error, and so does what depends on it."""
        for connection in self._connections.values():
            connection._poison_connection()
        if self._wire is not None:
            self._wire.break_off()
