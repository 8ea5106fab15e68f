"""JAX's coordination service: in the launcher, or in a process that outlives process 0 of the job when that is killed.

JAX ends every process whose service is gone with SIGABRT: no message would name the process at fault, and no
`finally` would run.  This file is also what that process runs; it needs neither `jax`, which takes most of the time
that the launcher would need to start, nor the rest of the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

#: Seconds without a heartbeat after which JAX takes a process for dead.
HEARTBEAT = 100
#: Seconds between looks, and those for which the service outlives process 0 at most: while others are connected, and
#: where the system does not tell whether they are.
_EACH, _LONGEST, _UNKNOWN = 0.25, 3600.0, 120.0


class NotStarted(Exception):
    """The service did not start.

    Attributes:
        address: where it should listen.
        why: in words; empty where it cannot listen there.
    """

    def __init__(self, address: str, why: str = "") -> None:
        super().__init__(address, why)
        self.address, self.why = address, why


def serve(address: str, processes: int, patience: int) -> Any:
    """Start JAX's coordination service in this process; it ends with the returned object, or by its `shutdown()`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as `import jax` does: jaxlib says nothing but warnings
    from jaxlib import _jax  # late: who only starts the process below needs none of it

    return _jax.get_distributed_runtime_service(
        address, processes, heartbeat_timeout=HEARTBEAT, shutdown_timeout=patience, recoverable=True
    )


class ServiceProcess:
    """The service, in a child of this process, until this process and all that are connected have ended.

    Args:
        address: where it listens.
        processes: how many there are in the job.
        options: those of JAX's `get_distributed_runtime_service`.

    Raises:
        NotStarted: when it cannot listen there, or fails otherwise.
    """

    def __init__(self, address: str, processes: int, **options: Any) -> None:
        given = {"address": address, "num_nodes": processes, **options}
        arguments = json.dumps({"options": given, "path": [place for place in sys.path if isinstance(place, str)]})
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(os.getpid()), arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the others
        )
        assert self._process.stdout is not None
        with self._process.stdout as output:
            text = output.read().decode(errors="replace")
        if text != "ready":
            status = self._process.wait()  # jaxlib ends with SIGSEGV where it cannot listen, or raises
            why = text or f"its process ended with status {status}"
            raise NotStarted(address, why if _can_listen(address) else "")
        self._process.returncode = 0  # it outlives this process: no ResourceWarning
        threading.Thread(target=self._reap, name="mpmd-service", daemon=True).start()

    def _reap(self) -> None:
        """Wait for its end, should that come before the end of this process."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process.pid, 0)

    def shutdown(self) -> None:
        """Do nothing: it ends after this process and all others."""


def _main(parent: int, arguments: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # some clusters send it to all processes, which then save
    given = json.loads(arguments)
    options, sys.path[:] = given["options"], given["path"]
    try:
        from jaxlib import _jax  # as above

        service = _jax.get_distributed_runtime_service(**options)  # noqa: F841 - lives as long as this process
    except Exception as error:
        os.write(1, f"{type(error).__name__}: {error}".encode())
        sys.exit(1)
    os.write(1, b"ready")
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)  # ends what the parent reads
    while os.getppid() == parent:
        time.sleep(_EACH)
    ended = time.monotonic()
    port = int(options["address"].rpartition(":")[2])
    while time.monotonic() - ended < _LONGEST:
        count = _connections(port)
        if count == 0 or (count is None and time.monotonic() - ended > _UNKNOWN):
            break
        time.sleep(_EACH)
    os._exit(0)


def _can_listen(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        (family, kind, _, _, place), *_ = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError:
        return False
    return True


def _connections(port: int) -> int | None:
    """Return how many connections others have to this port; None where the system does not tell."""
    result = 0
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}") as file:
                fields = [line.split() for line in file.readlines()[1:]]
        except OSError:
            return None
        result += sum(f[3] == "01" and int(f[1].rpartition(":")[2], 16) == port for f in fields)  # 01: established
    return result


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
