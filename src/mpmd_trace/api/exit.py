"""The end of a process in a job: in good order, or so that all know why not, and never by waiting for ever."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from mpmd_trace.backend.distribution import job as jobs
from mpmd_trace.backend.distribution.faults import Fault, PeerError
from mpmd_trace.backend.distribution.peers import Peers
from mpmd_trace.diagnostics.internal import explains_internal_errors, in_words

#: Seconds that a process which ends after a fault may take to clean up: a busy machine takes many for what is no work.
_LAST_SECONDS = 60.0
#: Seconds that the others leave to the one at fault, to end first: its status says more.  More where they see its end.
_AFTER_THE_FAULTY, _UNTIL_ITS_END = 3.0, 10.0
#: Seconds for which a process may do something else when there is a fault, before it is ended; less where the launcher
#: would end it, who does not know why.
_ELSEWHERE, _ELSEWHERE_LAUNCHED = 60.0, 20.0
#: In the names of files that wait for other processes in ways of their own.
_WAITING = (f"{os.sep}orbax{os.sep}", f"{os.sep}multihost_utils")
#: The name of the number that the system gives a process, for the others on this machine.
_PID = "mpmd_trace/pid/{}"
#: What ends the watch for exits.
_WATCHING: list[Callable[[], None]] = []


def leave_at_the_end(peers: Peers, *, launched: bool) -> None:
    """Let this process leave the job at its end, and end where it waits for one that is at fault without knowing.

    launched: whether `mpmd-trace launch` has started it.
    """
    if launched:
        peers.store.put(_PID.format(peers.process), str(os.getpid()).encode())
    atexit.register(_leave_at_exit, launched)
    peers.guard = _Guard(peers, min(peers.timeout, _ELSEWHERE_LAUNCHED if launched else _ELSEWHERE))
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:

        _report_end(peers, "was interrupted" if kind is KeyboardInterrupt else f"ended with {in_words(error)}")
        before(kind, error, trace)
        _end_soon()  # Python waits for threads, which may wait for other processes

    sys.excepthook = hook

    def exits(status: Any) -> None:
        if status:
            _report_end(peers, f"ended with status {status}")

    if sys.version_info >= (3, 12) and (stop := _watch_exits(exits)) is not None:
        _WATCHING.append(stop)
    else:
        _record_exits(exits)


@explains_internal_errors
def shutdown() -> None:
    """Leave the job: wait until the other processes have received all values from this one, and disconnect.

    This happens automatically at the end of a script.  Call it only in a process that is ended by something else, such
    as an actor of Ray.  All processes must call it.  Afterwards, they can still compute on their own devices.

    Raises:
        PeerError: if another process has failed, and this process has not raised that error yet.
    """
    _leave(lambda: None)


def _leave(before_disconnecting: Callable[[], None]) -> None:
    from mpmd_trace.jax_compat import distributed  # loaded long since

    job = jobs.current()
    if job is None:
        return
    peers = job.peers

    def disconnect() -> None:
        before_disconnecting()
        distributed.leave()

    peers.close(disconnect, hosts=distributed.hosts_the_service(), patience=_LAST_SECONDS)
    jobs.end()
    while _WATCHING:
        _WATCHING.pop()()
    if peers.fault is not None and not peers.is_told:
        raise peers.error()


def _leave_at_exit(launched: bool) -> None:
    job = jobs.current()
    if job is None:
        return
    peers = job.peers

    def before() -> None:
        if peers.fault is not None:
            if launched and peers.fault.process != peers.process:
                _wait_for_end_of(peers.fault.process, peers)
            # Devices may wait for what never comes; that must not keep the process, which ends with its own status.
            _end_soon()

    try:
        _leave(before)
    except PeerError as error:
        print(f"mpmd_trace: {error}", file=sys.stderr)
        if error.process != job.process and not launched:
            time.sleep(_AFTER_THE_FAULTY)
        if error.process != job.process or peers.is_ours:
            _exit(1)  # the job has failed, although this process has done its part


def _wait_for_end_of(process: int, peers: Peers) -> None:
    """Wait until another process of this machine has ended, but not much longer than that takes."""
    until = time.monotonic() + _UNTIL_ITS_END
    with contextlib.suppress(Exception):  # it is gone, or the service with the numbers is
        number = int(peers.store.get(_PID.format(process), 1.0) or 0)
        while number and time.monotonic() < until:
            os.kill(number, 0)
            time.sleep(0.02)


def _report_end(peers: Peers, text: str) -> None:
    """Tell the others how this process ends, unless there is a fault already."""
    peers.report(Fault(peers.process, text), ours=True)
    if peers.fault is not None and peers.fault.process == peers.process:
        peers.is_told = True


def _end_soon() -> None:
    faulthandler.dump_traceback_later(_LAST_SECONDS, exit=True)


def _exit(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class _Guard:
    """Ends a process that waits in something of others for a process that is at fault, and cannot be notified there.

    Called again and again, in a thread of its own, once there is a fault, or others have ended.
    """

    def __init__(self, peers: Peers, seconds: float) -> None:
        self._peers = peers
        self._seconds = seconds
        self._place: list[tuple[int, int]] = []
        self._since = 0.0

    def __call__(self) -> None:
        peers, now = self._peers, time.monotonic()
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = [] if frame is None else [f for f, _ in traceback.walk_stack(frame)]
        place = [(id(f), f.f_lasti) for f in stack]
        if place != self._place:
            self._place, self._since = place, now
        if peers.fault is not None and not peers.is_told:
            # A process that is busy with work of its own moves on and learns of the fault by itself.
            if min(peers.age_of_fault, now - self._since) > self._seconds:
                self._give_up(self._seconds, stack)
            return
        if now - self._since > peers.timeout and any(w in f.f_code.co_filename for f in stack for w in _WAITING):
            if peers.fault is not None:
                self._give_up(peers.timeout, stack)
            text = f"has ended, and process {peers.process} has waited in {_where(stack)} for {peers.timeout:g} s"
            peers.report(Fault(peers.ended[0], text))

    def _give_up(self, seconds: float, stack: list[Any]) -> NoReturn:
        """Say why and where, and end the process.  stack: the frames of its main thread, innermost first."""
        own = [f for f in stack[1:] if "site-packages" not in f.f_code.co_filename and "<" not in f.f_code.co_filename]
        lines = [f"  {f.f_code.co_filename}:{f.f_lineno} in {f.f_code.co_name}" for f in own[::-1]]
        text = "\n".join(
            [f"ends, after {seconds:g} s in a call that does not notice the fault:", *lines, f"  {_where(stack)}"]
        )
        print(f"mpmd_trace: {self._peers.error()}\nprocess {self._peers.process} {text}", file=sys.stderr)
        _exit(1)


def _where(stack: list[Any]) -> str:
    """Return the place at which a thread waits for other processes, if it is a known one; `stack` as above."""
    frame = next((f for f in stack if any(w in f.f_code.co_filename for w in _WAITING)), stack[0])
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


if sys.version_info >= (3, 12):

    def _watch_exits(call: Callable[[Any], None]) -> Callable[[], None] | None:
        """Call this with the status when a `SystemExit` ends the main thread.

        Return what ends that; None where nothing can be watched.
        """
        events = sys.monitoring
        # The others are for debuggers, coverage, profilers and optimizers.
        tool = next((number for number in (3, 4) if events.get_tool(number) is None), None)
        if tool is None:
            return None

        def unwound(code: object, offset: int, error: BaseException) -> None:
            if (
                isinstance(error, SystemExit)
                and sys._getframe(1).f_back is None
                and threading.current_thread() is threading.main_thread()
            ):
                call(error.code)

        events.use_tool_id(tool, "mpmd_trace")
        events.register_callback(tool, events.events.PY_UNWIND, unwound)
        events.set_events(tool, events.events.PY_UNWIND)

        def stop() -> None:
            events.set_events(tool, 0)
            events.register_callback(tool, events.events.PY_UNWIND, None)
            events.free_tool_id(tool)

        return stop


class _Exit:
    """Goes with a `SystemExit`, and knows when that has ended the process: no hook of Python's tells its status."""

    def __init__(self, call: Callable[[Any], None], status: Any) -> None:
        self._call, self._status = call, status

    def __del__(self) -> None:
        try:
            sys._getframe(1)
        except ValueError:  # it was not caught: no code runs any more
            self._call(self._status)


def _record_exits(call: Callable[[Any], None]) -> None:
    """Call this with the status when `sys.exit` ends the process (before Python 3.12, which tells of all exits)."""
    before = sys.exit

    def exit_(status: Any = None, /) -> NoReturn:
        try:
            before(status)
        except SystemExit as error:
            error.ended = _Exit(call, error.code)  # type: ignore[attr-defined]
            raise

    sys.exit = exit_
