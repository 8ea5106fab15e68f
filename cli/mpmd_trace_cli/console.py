"""The output of commands: results on stdout, diagnostics on stderr, errors without tracebacks of ours."""

from __future__ import annotations

import functools
import json
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

from mpmd_trace.diagnostics.internal import InternalError, internal_error
from mpmd_trace.diagnostics.messages import MpmdError, MpmdWarning
from mpmd_trace.diagnostics.progress import without_bar
from mpmd_trace.diagnostics.source_files import from_here
from mpmd_trace_cli import INTERRUPTED
from mpmd_trace_cli.files import explain_os_error, write_stream
from mpmd_trace_cli.status import FOUND, PROGRAM_FAILED, WRONG_CALL, ProgramFailed, status_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

P = ParamSpec("P")
T = TypeVar("T")

#: Where data goes while a program of the user may print; None stands for stdout.
_data_stream: TextIO | None = None


def keeps_output_apart(command: Callable[P, T]) -> Callable[P, T]:
    """Return a command that runs a program of the user, whose output goes to stderr: stdout has results alone."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        global _data_stream
        before = sys.stdout, _data_stream
        _data_stream, sys.stdout = sys.stdout, sys.stderr
        try:
            return command(*args, **kwargs)
        finally:
            sys.stdout, _data_stream = before

    return wrapped


def console() -> Console:
    """Return the console for diagnostics: stderr."""
    from rich.console import Console  # late: `passes` does without it

    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a line on stderr, in one piece: other threads print there, too."""
    print(f"{text}\n", end="", file=sys.stderr)


def data_stream() -> TextIO:
    """Return where data goes."""
    return _data_stream or sys.stdout


def data(value: Any) -> None:
    """Write data to stdout: text as it is, anything else as JSON."""
    stream = data_stream()
    text = value if isinstance(value, str) else as_json(value)
    write_stream(stream, text if text.endswith("\n") or not text else text + "\n")


def as_json(value: Any) -> str:
    """JSON text.  JSON has no NaN and no infinity: they become null."""
    return json.dumps(_finite(value), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a progress display on stderr."""
    from rich import progress as parts  # late: `passes` does without it
    from rich.table import Column  # late: as above

    stderr = console()
    columns: list[parts.ProgressColumn]
    if stderr.width < 80:  # of columns that do not fit, the display would cut the counts first
        info = Column(no_wrap=True, max_width=max(stderr.width - 28, 1))
        columns = [parts.TextColumn("{task.description}"), parts.MofNCompleteColumn()]
        columns.append(parts.TextColumn("{task.fields[info]}", table_column=info))
    else:
        columns = [parts.TextColumn("{task.description:24}"), parts.BarColumn(), parts.MofNCompleteColumn()]
        columns += [parts.TimeElapsedColumn(), parts.TextColumn("{task.fields[info]}")]
    with without_bar(), parts.Progress(*columns, console=stderr, transient=False) as shown:
        yield shown


def compiling(shown: Progress) -> Callable[[int, int, str], None]:
    """Return a line for what XLA compiles, and what tells it how far that is."""
    task = shown.add_task("XLA", total=None, info="")
    return lambda done, total, name: shown.update(task, total=total, completed=done, info=name[:40])


@contextmanager
def _warnings_as_talk() -> Iterator[None]:
    """Warnings about the program look like its errors."""
    before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, MpmdWarning):
            say(from_here(f"{filename}:{lineno}: warning: {message}"))
        else:
            before(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def guard(command: Callable[[], Any], *, tracebacks: bool = False) -> int:
    """Run a command and return its exit status; problems of the program or of the call become messages on stderr.

    tracebacks: whether what the user's code raises is printed with its traceback.
    """
    try:
        with _warnings_as_talk(), _others_told():
            command()
    except MpmdError as error:
        if tracebacks and isinstance(error, ProgramFailed):
            traceback.print_exception(error.__cause__ or error)
        for line in error.brief():
            say(line)
        return status_of(error)
    except InternalError as error:
        return _say_bug(error, error.__cause__)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough
        return 0
    except Exception as error:
        from mpmd_trace_cli.program import user_error  # late: needs jax, and few calls fail

        failure = user_error(error)
        bug = internal_error(error)
        if bug is not None:
            return _say_bug(bug, error)
        if failure is not None:
            if tracebacks:
                traceback.print_exception(error)
            say(str(failure))
            return PROGRAM_FAILED
        if isinstance(error, OSError):  # a folder that cannot be written, a full disk
            say(f"error: {explain_os_error(error)}")
            return WRONG_CALL
        raise  # of JAX or another library, which the traceback helps to find
    return 0


def _say_bug(bug: InternalError, error: BaseException | None) -> int:
    """Print a bug of ours with its traceback, and what to do with them."""
    if error is not None:
        traceback.print_exception(error)
    say(str(bug))
    return FOUND


@contextmanager
def _others_told() -> Iterator[None]:
    """Tell the other processes of a job at once why this one ends: no hook sees an error that becomes a message."""
    try:
        yield
    except Exception as error:
        jobs = sys.modules.get("mpmd_trace.backend.distribution.job")
        job = None if jobs is None else jobs.current()
        if job is not None:
            job.peers.failed(error, "in mpmd-trace")
        raise


def rounding_hint(error: float, remedy: str) -> str:
    """Return what to do if a relative difference may be rounding to bfloat16 or float16; nothing for a larger one."""
    if not error < 0.1:
        return ""
    return f". If the program computes in bfloat16 or float16, this may be rounding: {remedy}"
