"""Several processes: joining them, and getting values from all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from mpmd_trace.api.exit import leave_at_the_end
from mpmd_trace.backend.distribution import job as jobs
from mpmd_trace.backend.distribution.allgather import process_allgather
from mpmd_trace.backend.distribution.faults import PeerError
from mpmd_trace.backend.distribution.job import Job, Transfers
from mpmd_trace.backend.distribution.peers import Peers
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.frontend.errors import mistake

#: What `mpmd-trace launch` tells its processes, besides the variables that `initialize` documents.
SERVED, TIMEOUT = "MPMD_TRACE_LAUNCHED", "MPMD_TRACE_TIMEOUT"
#: The variables of torchrun, which count where all are set.
_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_ids: Sequence[int] | None = None,
    host: str | None = None,
    timeout: float | None = None,
    transfers: Transfers | None = None,
) -> int:
    """Join the other processes of the job, so that `jax.devices()` lists the devices of all processes.

    Call it before you use JAX.  It returns the number of processes.  Without arguments, it detects the launcher that
    started the process: `mpmd-trace launch`; a launcher that JAX knows (SLURM, Open MPI, Kubernetes, Cloud TPU); the
    variables `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`; or the variables of torchrun, which
    other launchers set, too (`MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE` and `RANK`).  Without a launcher, it does
    nothing and returns 1, so that the same script runs in one process.  If the process has already joined, it does
    nothing.

    Args:
        coordinator_address: `host:port` where process 0 runs the coordination service of JAX.
        num_processes: the number of processes.
        process_id: the number of this process.
        local_device_ids: the devices of this host that belong to this process; see `jax.distributed.initialize`.
        host: the address at which this process listens for others; by default that of the interface that reaches
            the coordinator (the loopback interface if the coordinator is on the same host).
        timeout: seconds after which a process is treated as failed if it has no heartbeat, or does not send a value
            that another process waits for; 300 by default.
        transfers: how arrays are sent between processes: "host" (through host memory, with JAX's transfer servers) or
            "device_put" (from device to device, with `jax.device_put`).  By default, arrays are sent from device to
            device if the platform and the two meshes allow it, and otherwise through host memory, with a message.  On
            CPUs, they are always sent through host memory.

    Raises:
        MpmdError: if JAX is in use already, the arguments do not describe a job, or jaxlib cannot move arrays between
            processes on this platform.
        PeerError: if another process does not join; its `process` is -1 if it is not known which.
    """
    from mpmd_trace.jax_compat import distributed, remote_arrays  # load jaxlib

    job = jobs.current()
    if job is not None and (coordinator_address, num_processes, process_id) == (None, None, None):
        return job.count
    address = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    count = _number(num_processes, "num_processes", "JAX_NUM_PROCESSES")
    process = _number(process_id, "process_id", "JAX_PROCESS_ID")
    given = (address, count, process)
    if given == (None, None, None) and all(name in os.environ for name in _TORCHRUN):
        address, count, process = given = _of_torchrun()
        if local_device_ids is None and "LOCAL_RANK" in os.environ and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
            local_device_ids = [_variable("LOCAL_RANK", "the number of the process on its host")]
    if count == 1 or (given == (None, None, None) and distributed.detected_cluster() is None):
        return 1
    if address is not None and None in given and distributed.detected_cluster() is None:
        raise mistake(
            "a job needs coordinator_address, num_processes and process_id (or JAX_COORDINATOR_ADDRESS, "
            f"JAX_NUM_PROCESSES and JAX_PROCESS_ID); got {given}"
        )
    if job is not None:
        raise mistake("mpmd_trace.initialize was called before, and cannot join another job")
    if distributed.backends_are_initialized():
        raise mistake(
            "mpmd_trace.initialize must be called before anything that makes JAX look for its devices, such as "
            "jax.devices() or a computation"
        )
    patience = timeout if timeout is not None else float(os.environ.get(TIMEOUT, "300"))
    if not 0 < patience < math.inf:
        raise mistake(f"timeout is a positive number of seconds, not {patience}")
    if transfers != "device_put":
        distributed.transfers()  # an error before the others are waited for
    try:
        own = distributed.join(
            address,
            count,
            process,
            local_device_ids=local_device_ids,
            bind=os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", address),
            served=SERVED in os.environ,
            host=host,
            patience=patience,
        )
    except distributed.NotCome as error:
        raise _not_come(patience, error.address, error.process, error.count, error.seen) from None
    except distributed.NotStarted as error:
        if error.why:
            raise mistake(f"JAX's coordination service did not start in process 0: {error.why}") from None
        text = f"process 0 cannot listen at {error.address}, the address of the coordinator"
        raise mistake(f"{text}: another program has the port, or another host the address") from None
    number, total = distributed.place_in_job()
    peers = Peers(distributed.shared_store(), number, total, own, patience)
    jobs.begin(Job(peers, transfers, own))
    leave_at_the_end(peers, launched=SERVED in os.environ)
    remote_arrays.point_to_fetch()
    return total


def _not_come(patience: float, address: str, process: int, count: int, seen: bool) -> PeerError:
    """Return the error for a job whose processes do not come; which of them, only the coordination service knows."""
    if process != 0 and not seen:
        text = f"no answer from {address}, where process 0 should be, within {patience:g} s"
        return PeerError(f"process {process} cannot go on: {text}", 0)
    text = f"not all of the {count} processes have come to {address} within {patience:g} s"
    return PeerError(f"process {process} cannot go on: {text}; see what those that are missing say", -1)


def _of_torchrun() -> tuple[str, int, int]:
    """Return coordinator, number of processes and number of this one from the variables that torchrun sets."""
    port = _variable("MASTER_PORT", "the port of the coordinator")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
        port += 1  # torchrun itself listens there
    port = _number(None, "the port of the coordinator", "JAX_COORDINATOR_PORT") or port
    host = os.environ["MASTER_ADDR"]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return address, _variable("WORLD_SIZE", "num_processes"), _variable("RANK", "process_id")


def _number(given: int | None, name: str, variable: str) -> int | None:
    return given if given is not None or variable not in os.environ else _variable(variable, name)


def _variable(variable: str, name: str) -> int:
    text = os.environ[variable]
    if not text.isdigit():
        raise mistake(f"the environment variable {variable} must be a number ({name}), not {text!r}")
    return int(text)


def check_joined() -> None:
    """Raise `MpmdError` in a process of `mpmd-trace launch` that has not joined the others."""
    count = os.environ.get("JAX_NUM_PROCESSES", "1")
    if SERVED in os.environ and count != "1" and jobs.current() is None and not jobs.has_ended():
        raise mistake(
            f"{count} processes of this script were started, and this one has not joined the others, so "
            "that each would train alone. Call mpmd_trace.initialize() at the start of the script. (A process "
            f"that is to run alone needs an environment without {SERVED}.)"
        )


@explains_internal_errors
def fetch(tree: Any) -> Any:
    """Return the arrays of `tree` as NumPy arrays, in every process.

        print(mpmd_trace.fetch(loss))

    All processes must call this with the same arrays.  It is meant for scalars and small arrays, because they are sent
    to every process through the key-value store of JAX's coordination service.  Leaves that are not JAX arrays are
    returned unchanged.

    Raises:
        MpmdError: if the processes pass different arrays, or if an array is large.
        PeerError: if another process fails.
    """
    return process_allgather(jobs.current(), tree)
