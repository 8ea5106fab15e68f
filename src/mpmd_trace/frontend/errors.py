"""What is wrong with a user's program or configuration, told to that user."""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.ir.diagnostics import Diagnostic, MpmdError
from mpmd_trace.ir.location import UNKNOWN, Location


class FrontendError(MpmdError):
    """A program, argument or configuration that cannot be used; lists every problem found."""


def problem(message: str, where: str | None = None) -> Diagnostic:
    """An error at `where` (`file:line`)."""
    location = UNKNOWN
    if where is not None:
        file, _, line = where.rpartition(":")
        escaped = file.replace("\\", "\\\\").replace('"', '\\"')
        location = Location(f'"{escaped}":{line}:0')
    return Diagnostic("error", message, location)


def raise_problems(problems: Sequence[Diagnostic]) -> None:
    """Raise one `FrontendError` for all `problems`, in order and without repetitions."""
    if problems:
        raise FrontendError(list(dict.fromkeys(problems)))
