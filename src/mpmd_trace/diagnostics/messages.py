"""Errors for users: what is wrong, where in their program, and what to do."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.diagnostics.source_files import from_here, with_users_line

#: Of diagnostics that differ in names and numbers alone, so many are shown.
SAME_KIND = 3
#: Lines of ops are cut to this length; the types of a function can fill pages.
WIDTH = 400
_PARTICULAR = re.compile(r"(?:\"[^\"]*\"|'[^']*'|\([^()]*\)|\d+)+")

Severity = Literal["error", "warning", "remark"]


@dataclasses.dataclass(frozen=True)
class Note:
    """A note attached to a diagnostic."""

    message: str
    location: Location = UNKNOWN


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """One message.  `op` is the text of the op it is about, when there is one."""

    severity: Severity
    message: str
    location: Location = UNKNOWN
    notes: tuple[Note, ...] = ()
    op: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.location.prefix}{self.severity}: {self.message}"]
        if self.op:
            lines += ["  " + line for line in self.op.splitlines()]
        lines += [f"{note.location.prefix}note: {note.message}" for note in self.notes]
        return "\n".join(lines)


class MpmdError(Exception):
    """A program that cannot be compiled.  `diagnostics` lists all problems, errors first."""

    def __init__(self, diagnostics: Sequence[Diagnostic] | str, *, pass_name: str | None = None) -> None:
        if isinstance(diagnostics, str):
            diagnostics = [Diagnostic("error", diagnostics)]
        order = {"error": 0, "warning": 1, "remark": 2}
        self.diagnostics: list[Diagnostic] = sorted(diagnostics, key=lambda d: order[d.severity])
        self.pass_name = pass_name
        super().__init__("\n".join(str(d) for d in self.diagnostics if d.severity == "error"))

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback."""
        return with_users_line(type(self).__name__, list(self.brief()), self.__traceback__)

    def brief(self) -> Iterator[str]:
        """Yield what the command line shows: of diagnostics that are alike the first ones, with files from here."""
        seen: dict[str, int] = {}
        for diagnostic in self.diagnostics:
            kind = diagnostic.severity + _PARTICULAR.sub("#", diagnostic.message)
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] > SAME_KIND:
                continue
            op = None if diagnostic.op is None else cut_lines(diagnostic.op)
            yield from_here(str(dataclasses.replace(diagnostic, op=op)))
        more = sum(count - SAME_KIND for count in seen.values() if count > SAME_KIND)
        if more:
            yield f"(and {more} more like {'these' if len(seen) == 1 else 'some of these'})"
        if self.pass_name:
            yield f"(in the pass {self.pass_name})"


def raise_errors(problems: Iterable[Diagnostic | str]) -> None:
    """Raise one `MpmdError` with all problems, if there are any."""
    diagnostics = [Diagnostic("error", one) if isinstance(one, str) else one for one in problems]
    if diagnostics:
        raise MpmdError(diagnostics)


class MpmdWarning(UserWarning):
    """A program that probably does not do what its author wants, or that costs more than necessary."""


def cut_lines(text: str, width: int = WIDTH) -> str:
    """Return the text with long lines cut."""
    return "\n".join(one if len(one) <= width else one[:width] + " ..." for one in text.splitlines())


def shortened(lines: Sequence[str], most: int = 8) -> list[str]:
    """Return the lines of a list in a message, or the first ones and how many there are besides."""
    return [*lines[:most], *([f"  and {len(lines) - most} more"] if len(lines) > most else [])]


def used_after_donation(names: Sequence[str]) -> str:
    """Return what to say of arrays with these names that are used although their buffers are gone."""
    if len(names) == 1:
        return (
            f"{names[0]} was donated to an earlier call, or deleted, and its buffer is gone; use what that call "
            "returned instead, or do not donate it"
        )
    return (
        f"{len(names)} arrays were donated to an earlier call, or deleted, and their buffers are gone: "
        f"{listed(names, 3)}. Use what that call returned instead, or do not donate them"
    )


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """`; did you mean ...?` for the known names that are close, or nothing; a single letter is close to nothing."""
    close = difflib.get_close_matches(name, [one for one in known if len(one) > 1], n=3, cutoff=cutoff)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def listed(words: Sequence[str], most: int) -> str:
    """Return words in a sentence, or the first ones and how many there are besides."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
