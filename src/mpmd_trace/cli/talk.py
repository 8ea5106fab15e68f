"""How commands talk: data on stdout, everything else on stderr, errors without tracebacks of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["console", "data", "guard", "progress", "say"]


def console() -> Console:
    """The console for talk: stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line of talk."""
    print(text, file=sys.stderr)


def data(value: Any) -> None:
    """Data on stdout: text as it is, anything else as JSON."""
    if isinstance(value, str):
        sys.stdout.write(value if value.endswith("\n") or not value else value + "\n")
    else:
        json.dump(value, sys.stdout, indent=1)
        sys.stdout.write("\n")


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress display on stderr."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[info]}"),
    )
    with Progress(*columns, console=console(), transient=False) as shown:
        yield shown


def guard(command: Callable[[], Any]) -> int:
    """Run a command; problems of the program or of the call become messages on stderr and exit status 1."""
    from ..ir.diagnostics import MpmdError

    try:
        command()
    except MpmdError as error:
        for diagnostic in error.diagnostics:
            say(str(diagnostic))
        if error.pass_name:
            say(f"(in the pass {error.pass_name})")
        return 1
    except (FileNotFoundError, FileExistsError, IsADirectoryError, PermissionError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        from ..program import user_error

        found = user_error(error)
        if found is None:
            raise  # a fault of ours, which the traceback helps to find
        say(str(found))
        return 1
    return 0
