"""Joining the processes of a job, and the store that they share."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import clusters, distributed, xla_bridge
from jaxlib import _jax

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.jax_compat.coordination_service import HEARTBEAT, ServiceProcess
from mpmd_trace.jax_compat.coordination_service import NotStarted as NotStarted


def backends_are_initialized() -> bool:
    """Return whether JAX has looked for its devices, after which no process can join a job."""
    return bool(xla_bridge.backends_are_initialized())


def detected_cluster() -> str | None:
    """Return the launcher that started this process (`slurm`, `ompi`, `k8s`, ...), as JAX finds out; or None."""
    for cluster in clusters.ClusterEnv._cluster_types:
        if not cluster.opt_in_only_method and cluster.is_env_present():
            return str(cluster.name)
    return None


def join(
    address: str | None,
    processes: int | None,
    process: int | None,
    *,
    local_device_ids: Sequence[int] | None,
    bind: str | None,
    served: bool,
    host: str | None,
    patience: float,
) -> str:
    """Join the job, so that the devices of all processes are there; return the address of this process for others.

    Processes whose peer dies go on; `PeerError` informs them.

    Args:
        address: of the coordination service; None where JAX knows the launcher.
        processes: how many there are.
        process: the number of this one.
        local_device_ids: as in `jax.distributed.initialize`.
        bind: where process 0 listens.
        served: whether the launcher has the coordination service, so that no process is more important than another.
        host: that address; None for that of the interface which reaches the coordination service.
        patience: seconds to wait for the others.

    Raises:
        NotCome: when they do not come.
        NotStarted: when process 0 cannot have the coordination service.
    """
    jax.config.update("jax_enable_recoverability", True)
    state = distributed.global_state

    def service(where: str, count: int, **options: Any) -> Any:
        return _Elsewhere() if served else ServiceProcess(where, count, **options)

    def connect() -> None:
        distributed._jax = _JaxWith(service)
        jax.distributed.initialize(
            address,
            processes,
            process,
            local_device_ids=local_device_ids,
            # Inside of a job of SLURM all that our launcher starts would seem to be the same process.
            cluster_detection_method="deactivate" if served else None,
            coordinator_bind_address=bind,
            initialization_timeout=_NEVER,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=max(1, round(patience)),
        )

    until = time.monotonic() + patience
    seen = False
    joining = _Call(connect)
    while not joining.is_done(min(1.0, until - time.monotonic())):
        where = state.coordinator_address
        seen = seen or (where is not None and _is_reachable(where))
        if time.monotonic() >= until:
            # These still wait, and end the process when they are taken down.
            _LEFT.append((state.client, state.service))
            atexit.register(joining.park)
            state.client = state.service = None
            raise NotCome(str(where), state.process_id, state.num_processes, seen)
    own = host or _own_address(state.coordinator_address)
    if jax.config.jax_cpu_collectives_implementation == "gloo":
        # Gloo would listen on the interface that the host's name stands for.
        collectives = _jax.make_gloo_tcp_collectives(distributed_client=state.client, hostname=own)

        def make_client() -> Any:
            if jax.config.jax_num_cpu_devices == 0:  # of which jaxlib crashes
                raise ValueError(
                    "this process has no device (jax_num_cpu_devices is 0): start at most as many processes as there "
                    "are devices for them, or give each process more"
                )
            return xla_bridge.make_cpu_client(collectives)

        xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
    return own


def _is_reachable(address: str) -> bool:
    """Return whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except OSError:
        return False
    return True


def _own_address(coordinator: str) -> str:
    """Return the address of the interface of this host that reaches the coordinator."""
    host, _, port = coordinator.rpartition(":")
    host = host.strip("[]")
    address: Any = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
        probe.connect(address[4])  # sends nothing
        return str(probe.getsockname()[0])


class _JaxWith:
    """The module of jaxlib that JAX's module for jobs uses, with another coordination service.

    service: returns it; it has a method `shutdown`.
    """

    def __init__(self, service: Callable[..., Any]) -> None:
        self.get_distributed_runtime_service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(_jax, name)


class _Elsewhere:
    """The coordination service, where the launcher has it."""

    def shutdown(self) -> None: ...


#: Seconds after which JAX would end the process, with `finally` and all, because others have not come.
_NEVER = 1_000_000
_LEFT: list[Any] = []


class NotCome(Exception):
    """Not all processes have come.

    Attributes:
        address: of the coordination service.
        process: the number of this process.
        count: how many there should be.
        seen: whether the coordination service has been there.
    """

    def __init__(self, address: str, process: int, count: int, seen: bool) -> None:
        super().__init__(address, process, count, seen)
        self.address, self.process, self.count, self.seen = address, process, count, seen


class _Call:
    """A call that cannot be broken off, in a thread that may be left alone."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="mpmd-join", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def is_done(self, seconds: float) -> bool:
        """Wait for it; raises what it has raised."""
        self._thread.join(max(0.0, seconds))
        is_done = not self._thread.is_alive()  # asked first: it may fail in between
        if self._error is not None:
            raise self._error
        return is_done

    def park(self) -> None:
        """Let the thread never return from C++, if it is there: while Python is finalized that would be a SIGABRT."""
        self._thread.join(0.05)
        if self._thread.is_alive() and hasattr(signal, "SIGRTMAX"):
            c = ctypes.CDLL(None)
            c.signal.argtypes = ctypes.c_int, ctypes.c_void_p
            c.pthread_kill.argtypes = ctypes.c_ulong, ctypes.c_int
            c.signal(signal.SIGRTMAX, ctypes.cast(c.pause, ctypes.c_void_p))
            c.pthread_kill(self._thread.ident, signal.SIGRTMAX)


def place_in_job() -> tuple[int, int]:
    """Return the number of this process, and how many there are."""
    state = distributed.global_state
    assert state.process_id is not None
    assert state.num_processes is not None
    return state.process_id, state.num_processes


def hosts_the_service() -> bool:
    """Return whether the coordination service may end with this process, as in a container."""
    return isinstance(distributed.global_state.service, ServiceProcess)


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
        """Return the value, as soon as it is there; None if it is not in time."""
        try:
            result: bytes = self._client.blocking_key_value_get_bytes(name, max(1, int(seconds * 1000)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error) or "timed out" in str(error):
                return None
            raise
        return result

    def drop(self, name: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_delete(name)


def transfers() -> Any:
    """Return JAX's module for arrays that go between processes.

    Raises:
        MpmdError: where there is none in jaxlib.
    """
    try:
        from jax.experimental import transfer  # late: cannot be imported where jaxlib has no such servers
    except (ImportError, AttributeError):
        raise MpmdError(
            "arrays cannot go from one process to another on this platform: JAX's transfer servers are in jaxlib for "
            "Linux only; use one process with several devices (jax.config.update('jax_num_cpu_devices', 8))"
        ) from None
    return transfer


def transfer_server(host: str) -> Any:
    """Return a server of JAX's for arrays of this process, which listens at the address of an interface."""
    place = f"[{host}]:0" if ":" in host else f"{host}:0"
    return transfers().start_transfer_server(jax.local_devices()[0].client, place, [place])


#: What errors say of values that another process could not send, or whose connection broke.
_OF_TRANSFERS = (
    "Error while transferring",
    "SocketServer",
    "recv() failed errno",
    "send() failed errno",
    "fd failed with hup",
    "Gloo",
)


def is_from_elsewhere(reason: str) -> bool:
    """Return whether a value is an error because of the process that it came from."""
    return any(words in reason for words in _OF_TRANSFERS)


def sends_between_processes(device: jax.Device) -> bool:
    """Return whether `jax.device_put` moves arrays between devices of several processes on this platform."""
    return bool(getattr(device.client, "supports_cross_host_transfers", False))
