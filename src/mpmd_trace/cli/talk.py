"""How commands talk: data on stdout, everything else on stderr, errors without tracebacks of ours."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from ..ir.diagnostics import MpmdError

__all__ = ["console", "data", "guard", "progress", "say", "told"]


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


#: Diagnostics that differ in names and numbers alone are told this often.
SAME_KIND = 3
#: Lines of ops are cut to this length; the types of a function can fill pages.
WIDTH = 400
_PARTICULAR = re.compile(r"(?:\"[^\"]*\"|'[^']*'|\([^()]*\)|\d+)+")


def told(error: MpmdError) -> Iterator[str]:
    """What to say about an error, with files relative to where we are."""
    here = os.getcwd() + os.sep
    seen: dict[str, int] = {}
    for diagnostic in error.diagnostics:
        kind = diagnostic.severity + _PARTICULAR.sub("#", diagnostic.message)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] > SAME_KIND:
            continue
        op = diagnostic.op
        if op is not None:
            op = "\n".join(one if len(one) <= WIDTH else one[:WIDTH] + " ..." for one in op.splitlines())
        text = str(dataclasses.replace(diagnostic, op=op))
        yield text.replace(here, "") if here != os.sep * 2 else text
    more = sum(count - SAME_KIND for count in seen.values() if count > SAME_KIND)
    if more:
        yield f"(and {more} more like {'these' if len(seen) == 1 else 'some of these'})"
    if error.pass_name:
        yield f"(in the pass {error.pass_name})"


def guard(command: Callable[[], Any]) -> int:
    """Run a command; problems of the program or of the call become messages on stderr and exit status 1."""
    from ..ir.diagnostics import MpmdError

    try:
        command()
    except MpmdError as error:
        for line in told(error):
            say(line)
        return 1
    except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        from .files import explain_os_error

        say(f"error: {explain_os_error(error)}")
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
