"""Joining the processes of a job, and the store that they share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import clusters, distributed, xla_bridge
from jaxlib import _jax

__all__ = [
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


#: What errors say of values that another process could not send, or whose connection broke.
_OF_TRANSFERS = ("Error while transferring", "Gloo")


def is_from_elsewhere(reason: str) -> bool:
    """Whether a value is an error because of the process that it came from."""
    return any(words in reason for words in _OF_TRANSFERS)
