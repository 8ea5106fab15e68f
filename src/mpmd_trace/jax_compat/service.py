"""JAX's coordination service in a process of its own, so that it outlives process 0 of the job when that is killed.

JAX ends every process whose service is gone with SIGABRT: nobody could say whose fault it was, and no `finally` ran.
This file is also what that process runs; it needs neither JAX nor the rest of the package.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

__all__ = ["NotStarted", "ServiceProcess"]

#: Seconds between looks, and those for which the service outlives process 0 at most: while others are connected, and
#: where the system does not tell whether they are.
_EACH, _LONGEST, _UNKNOWN = 0.25, 3600.0, 120.0


class NotStarted(Exception):
    """The service cannot listen at its address, the only argument."""


class ServiceProcess:
    """The service, in a child of this process, until this process and all that are connected have ended.

    Args:
        address: where it listens.
        processes: how many there are in the job.
        options: those of JAX's `get_distributed_runtime_service`.

    Raises:
        NotStarted: when it cannot listen there.
    """

    def __init__(self, address: str, processes: int, **options: Any) -> None:
        arguments = json.dumps({"address": address, "num_nodes": processes, **options})
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
            self._process.wait()  # jaxlib ends with SIGSEGV where it cannot listen, or raises
            raise NotStarted(address)

    def shutdown(self) -> None:
        """Do nothing: it ends after this process and all others."""


def _main(parent: int, arguments: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # some clusters send it to all processes, which then save
    options = json.loads(arguments)
    from jaxlib import _jax  # late: who only starts this process needs none of it

    service = _jax.get_distributed_runtime_service(**options)  # noqa: F841 - lives as long as this process
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
