"""`mpmd-trace launch`: a script in several processes on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from mpmd_trace_cli.console import data_stream, say
from mpmd_trace_cli.status import CallError

#: Seconds that the other processes have, when one has failed, to find out, to save and to report; and then to end.
GRACE, LAST = 30.0, 5.0
_FORCED = "--xla_force_host_platform_device_count"


@dataclasses.dataclass(frozen=True)
class Job:
    """A job to start: a script and its arguments, for Python, with the options of `mpmd-trace launch`.

    first_is_plain: whether what process 0 prints is not marked.
    """

    command: Sequence[str]
    processes: int
    devices: int | None = None
    timeout: float | None = None
    log_dir: str | None = None
    restarts: int = 0
    first_is_plain: bool = False


def is_launched() -> bool:
    """Return whether `launch` has started this process."""
    return "MPMD_TRACE_LAUNCHED" in os.environ


def launch(job: Job) -> int:
    """Run the script to the end; the exit status: 0, or that of the process that failed first."""
    if job.processes < 1:
        raise CallError(f"the number of processes is {job.processes}; it must be 1 or more")
    if job.devices is not None and job.devices < 1:
        raise CallError(f"--devices is the number of CPU devices of each process, at least 1, not {job.devices}")
    if job.timeout is not None and not 0 < job.timeout < math.inf:
        raise CallError(f"--timeout is a positive number of seconds, not {job.timeout:g}")
    if not job.command or (job.command[0] != "-m" and not os.path.exists(job.command[0])):
        raise CallError(f"there is no script {job.command[0] if job.command else ''}")
    if job.log_dir is not None:
        Path(job.log_dir).mkdir(parents=True, exist_ok=True)
    left, attempt = job.processes, 0
    while True:
        group = _Group()
        with _signals_for(group), _service(left) as address:
            failed, status = group.run(_Child(job, n, left, address, attempt) for n in range(left))
        if not failed or status == 128 + signal.SIGINT or attempt >= job.restarts or left - len(failed) < 1:
            return status
        left -= len(failed)
        attempt += 1
        names = ", ".join(map(str, failed))
        say(f"process {names} failed; starting again with {left} (restart {attempt} of {job.restarts})")


@contextlib.contextmanager
def _service(processes: int) -> Iterator[str]:
    """JAX's coordination service, here, so that no process is needed more than another; its address."""
    from mpmd_trace.jax_compat.coordination_service import serve  # late: loads jaxlib
    from mpmd_trace.jax_compat.mlir import taking_stderr

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with taking_stderr([]):  # it says that processes can be lost, which is wanted
        service = serve(address, processes, patience=5)
    try:
        yield address
    finally:
        service.shutdown()


class _Child:
    """A process, and threads that pass on what it prints."""

    def __init__(self, job: Job, number: int, processes: int, address: str, attempt: int) -> None:
        self.number = number
        self.log: IO[bytes] | None = None
        if job.log_dir is not None:
            self.log = open(Path(job.log_dir) / f"{number}.log", "ab" if attempt else "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *job.command],
            env=_environment(job, number, processes, address, attempt),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        mark = b"" if job.first_is_plain and number == 0 else f"[{number}] ".encode()
        pairs = (self.process.stdout, data_stream()), (self.process.stderr, sys.stderr)
        self.threads = [threading.Thread(target=self._pass_on, args=(*pair, mark), daemon=True) for pair in pairs]
        for thread in self.threads:
            thread.start()

    def _pass_on(self, source: IO[bytes], sink: Any, mark: bytes) -> None:
        """Print what the process prints, and log it.

        Without a reader and without a log, the process finds its pipe closed, as it would by itself.
        """
        is_read = True
        with source:
            while line := source.readline(_LONGEST):
                if line.startswith(b"[Gloo] Rank "):  # a library's greeting
                    continue
                # What is longer is passed on in parts, those of another process each in a line of its own.
                text = line if line.endswith(b"\n") or (not mark and len(line) == _LONGEST) else line + b"\n"
                with _PRINTING:
                    is_read = is_read and _print(mark + text, sink)
                    self._write_log(text)
                    if self.log is None and not is_read:
                        return

    def _write_log(self, text: bytes) -> None:
        if self.log is None:
            return
        try:
            self.log.write(text)
            self.log.flush()
        except OSError as error:  # a full disk: training goes on
            say(f"cannot write {self.log.name}: {error.strerror}; process {self.number} goes on without a log")
            self._close_log()

    def _close_log(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            with contextlib.suppress(OSError):
                log.close()

    def send(self, number: int) -> None:
        """Send a signal to the process and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    @property
    def is_stopped(self) -> bool:
        """True if a signal has stopped the process since the last call, so that it will not end by itself."""
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG) is not None
        except ChildProcessError:
            return False

    @property
    def status(self) -> int | None:
        """The exit status as shells have it; None while it runs."""
        status = self.process.poll()
        return status if status is None or status >= 0 else 128 - status

    def close(self) -> None:
        for thread in self.threads:
            thread.join(2.0)
        self._close_log()


#: Lines come whole, up to so many bytes.
_LONGEST = 1 << 20
_PRINTING = threading.Lock()


def _print(text: bytes, sink: Any) -> bool:
    """Print text; whether somebody may read it."""
    out = getattr(sink, "buffer", None)
    try:
        if out is not None:
            out.write(text)
            out.flush()
        elif sink is not None:  # None: there was nothing from the start
            sink.write(text.decode(errors="replace"))
    except OSError:  # a closed pipe, a full disk
        return False
    return True


class _Group:
    def __init__(self) -> None:
        self.children: list[_Child] = []
        self.stopped_by: int | None = None  # a signal to us

    def run(self, children: Iterable[_Child]) -> tuple[list[int], int]:
        """Start them, and wait until all have ended.

        The result is the first that failed, with all that failed in the same moment, and its status.
        """
        failed: list[int] = []
        status = 0
        until: float | None = None
        told = False
        blamed: list[int] = []
        try:
            for child in children:
                self.children.append(child)
                if self.stopped_by is not None:
                    child.send(self.stopped_by)
                    break
            while running := [c for c in self.children if c.status is None]:
                if not failed:
                    failed, status = self._failed()
                    if failed:
                        say(f"process {failed[0]} {_ended(status)}")
                if until is None and (failed or self.stopped_by is not None):
                    until = time.monotonic() + (GRACE if self.stopped_by is None else LAST)
                stopped = [c for c in running if c.is_stopped] if until is not None else []
                for child in stopped:
                    child.send(signal.SIGKILL)
                if stopped and not blamed:  # the others failed because of them
                    failed = blamed = [c.number for c in stopped]
                    say(f"process {', '.join(map(str, failed))} was stopped")
                if until is not None and time.monotonic() > until:
                    for child in running:
                        child.send(signal.SIGKILL if told else signal.SIGTERM)
                    until, told = time.monotonic() + LAST, True
                time.sleep(0.02)
        finally:
            for child in self.children:
                child.send(signal.SIGKILL)  # what it has started and left behind
                child.close()
        if self.stopped_by is not None:
            return [], 128 + self.stopped_by
        return (failed, status) if failed else self._failed()

    def _failed(self) -> tuple[list[int], int]:
        """Return those that have failed so far, and the status of the first."""
        failed = [c.number for c in self.children if c.status]
        return failed, (self.children[failed[0]].status or 1) if failed else 0


def _ended(status: int) -> str:
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(status - 128).name}"
    return f"exited with status {status}"


@contextlib.contextmanager
def _signals_for(group: _Group) -> Iterator[None]:
    """Pass Ctrl-C, the request to end and the end of the terminal on to all processes, also while they start."""

    def pass_on(number: int, frame: Any) -> None:
        group.stopped_by = number
        for child in group.children:
            child.send(number)

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {n: signal.signal(n, pass_on) for n in numbers}  # `nohup` ignores one of them
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(job: Job, number: int, processes: int, address: str, attempt: int) -> dict[str, str]:
    result = dict(
        os.environ,
        JAX_COORDINATOR_ADDRESS=address,
        JAX_NUM_PROCESSES=str(processes),
        JAX_PROCESS_ID=str(number),
        MPMD_TRACE_LAUNCHED="1",
        MPMD_TRACE_RESTARTS=str(attempt),
        PYTHONUNBUFFERED="1",
    )
    if job.timeout is not None:
        result["MPMD_TRACE_TIMEOUT"] = f"{job.timeout:g}"
    if job.devices is not None:
        result["JAX_NUM_CPU_DEVICES"] = str(job.devices)
        result.setdefault("JAX_PLATFORMS", "cpu")
        flags = [flag for flag in result.get("XLA_FLAGS", "").split() if not flag.startswith(_FORCED)]
        result["XLA_FLAGS"] = " ".join(flags)  # JAX refuses two ways of saying it
    return result
