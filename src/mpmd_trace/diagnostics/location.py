"""Source locations: where in the user's program (or in the MLIR text) an op comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpmd_trace.diagnostics.mlir_text import unquote

_FILE = re.compile(r'("(?:[^"\\]|\\.)*"):(\d+):(\d+)')
_ALIAS = re.compile(r"#loc\d*")
_NAME = re.compile(r'"(?:[^"\\]|\\.)*"')


class Location:
    """A location in MLIR's spelling (without the surrounding `loc(...)`), resolved lazily.

    `table` maps the aliases (`#loc3`) that `text` may mention to their definitions.
    """

    __slots__ = ("_resolved", "table", "text")

    def __init__(self, text: str, table: dict[str, str] | None = None) -> None:
        self.text = text
        self.table = table
        self._resolved: str | None = None

    @property
    def resolved(self) -> str:
        """The location with every alias replaced by its definition."""
        if self._resolved is None:
            self._resolved = "".join(_expanded(self.text, self.table or {}))
        return self._resolved

    @property
    def files(self) -> Iterator[tuple[str, int, int]]:
        """All `(file, line, column)` positions in it, innermost first."""
        for match in _FILE.finditer(self.resolved):
            yield unquote(match.group(1)), int(match.group(2)), int(match.group(3))

    @property
    def file(self) -> tuple[str, int, int] | None:
        """The first position, or None when there is none."""
        return next(self.files, None)

    @property
    def name(self) -> str | None:
        """The name of a name location (`"jit(f)/add"(...)`), if it is one."""
        match = _NAME.match(self.resolved)
        if match is None or re.match(r":\d+:\d+", self.resolved[match.end() :]):
            return None
        return unquote(match.group())

    @property
    def prefix(self) -> str:
        """The text in front of a message about this place: `file:line:column: `, nothing if unknown."""
        return "" if self.resolved == "unknown" else f"{self}: "

    def __str__(self) -> str:
        position = self.file
        if position is not None:  # column 0 means that only the line is known
            return f"{position[0]}:{position[1]}" + (f":{position[2]}" if position[2] else "")
        name = self.name
        return f'"{name}"' if name is not None else self.resolved

    def __repr__(self) -> str:
        return f"<Location {self}>"


def _expanded(text: str, table: dict[str, str]) -> Iterator[str]:
    """Yield the pieces of the text with its aliases, and those in their definitions, replaced."""
    pending = [(text, 0)]
    while pending:
        text, start = pending.pop()
        match = _ALIAS.search(text, start)
        if match is None:
            yield text[start:]
        else:
            yield text[start : match.start()]
            pending += [(text, match.end()), (table.get(match.group(), "unknown"), 0)]


UNKNOWN = Location("unknown")


def fused(first: Location, second: Location) -> Location:
    """Return the location of an op made of two others."""
    if first is second or second is UNKNOWN:
        return first
    if first is UNKNOWN:
        return second
    if len(first.text) + len(second.text) > 4000:  # long merge chains would grow without bound
        return first
    if first.table is second.table:
        return Location(f"fused[{first.text}, {second.text}]", first.table)
    return Location(f"fused[{first.resolved}, {second.resolved}]")
