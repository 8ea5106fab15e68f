"""How commands talk: data on stdout, everything else on stderr, errors without tracebacks of ours."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

from mpmd_trace.diagnostics.internal import InternalError, internal_error
from mpmd_trace.diagnostics.messages import MpmdError, MpmdWarning
from mpmd_trace.diagnostics.progress import without_bar
from mpmd_trace_cli.files import explain_os_error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = [
    "as_json",
    "compiling",
    "console",
    "data",
    "data_stream",
    "from_here",
    "guard",
    "programs_talk",
    "progress",
    "say",
    "told",
]

P = ParamSpec("P")
T = TypeVar("T")

#: Where data goes while a program of the user may print; None stands for stdout.
_data_stream: TextIO | None = None


def programs_talk(command: Callable[P, T]) -> Callable[P, T]:
    """Return a command that runs a program of the user.  What that prints is talk, so that stdout is data alone."""

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
    """Return the console for talk: stderr."""
    from rich.console import Console  # late: `passes` does without it

    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line of talk."""
    print(text, file=sys.stderr)


def data_stream() -> TextIO:
    """Return where data goes."""
    return _data_stream or sys.stdout


def data(value: Any) -> None:
    """Data on stdout: text as it is, anything else as JSON."""
    stream = data_stream()
    text = value if isinstance(value, str) else as_json(value)
    stream.write(text if text.endswith("\n") or not text else text + "\n")
    stream.flush()  # a full disk or a closed pipe is told now, and not when Python ends


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
    """A progress display on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # late: as above

    columns = (
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[info]}"),
    )
    with without_bar(), Progress(*columns, console=console(), transient=False) as shown:
        yield shown


def compiling(shown: Progress) -> Callable[[int, int, str], None]:
    """Return a line for what XLA compiles, and what tells it how far that is."""
    task = shown.add_task("XLA", total=None, info="")
    return lambda done, total, name: shown.update(task, total=total, completed=done, info=name[:40])


#: Diagnostics that differ in names and numbers alone are told this often.
SAME_KIND = 3
#: Lines of ops are cut to this length; the types of a function can fill pages.
WIDTH = 400
_PARTICULAR = re.compile(r"(?:\"[^\"]*\"|'[^']*'|\([^()]*\)|\d+)+")


def from_here(text: str) -> str:
    """Return the text with files relative to where we are."""
    here = os.getcwd() + os.sep
    return text.replace(here, "") if here != os.sep * 2 else text


def told(error: MpmdError) -> Iterator[str]:
    """Yield what to say about an error, with files relative to where we are."""
    seen: dict[str, int] = {}
    for diagnostic in error.diagnostics:
        kind = diagnostic.severity + _PARTICULAR.sub("#", diagnostic.message)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] > SAME_KIND:
            continue
        op = diagnostic.op
        if op is not None:
            op = "\n".join(one if len(one) <= WIDTH else one[:WIDTH] + " ..." for one in op.splitlines())
        yield from_here(str(dataclasses.replace(diagnostic, op=op)))
    more = sum(count - SAME_KIND for count in seen.values() if count > SAME_KIND)
    if more:
        yield f"(and {more} more like {'these' if len(seen) == 1 else 'some of these'})"
    if error.pass_name:
        yield f"(in the pass {error.pass_name})"


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


def guard(command: Callable[[], Any]) -> int:
    """Run a command; problems of the program or of the call become messages on stderr and exit status 1."""
    try:
        with _warnings_as_talk(), _others_told():
            command()
    except MpmdError as error:
        for line in told(error):
            say(line)
        return 1
    except InternalError as error:
        return _say_bug(error, error.__cause__)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        from mpmd_trace_cli.program import user_error  # late: needs jax, and few calls fail

        failure = user_error(error)
        bug = internal_error(error)
        if bug is not None:
            return _say_bug(bug, error)
        if failure is not None:
            say(str(failure))
        elif isinstance(error, OSError):  # a folder that cannot be written, a full disk
            say(f"error: {explain_os_error(error)}")
        else:
            raise  # of JAX or another library, which the traceback helps to find
        return 1
    return 0


def _say_bug(bug: InternalError, error: BaseException | None) -> int:
    """Print a bug of ours with its traceback, and what to do with them."""
    if error is not None:
        traceback.print_exception(error)
    say(str(bug))
    return 1


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
