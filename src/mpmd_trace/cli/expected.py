"""`expected-error {{...}}` comments, as MLIR's diagnostic verifier reads them.

    // expected-error@+1 {{text}}        the next line gets an error whose message contains the text
    // expected-warning-re@above {{a{{[0-9]+}}b}}    the part in inner braces is a regular expression
    // expected-note 2 {{text}}          twice
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from ..ir.diagnostics import Diagnostic
from ..ir.location import Location

__all__ = ["Expectations"]

_COMMENT = re.compile(
    r"expected-(?P<kind>error|warning|remark|note)(?P<regex>-re)? *"
    r"(?:@(?P<where>[+-]\d+|above|below|unknown))? *(?P<count>\d+)? *\{\{(?P<text>.*)\}\}$"
)


@dataclasses.dataclass
class _Expected:
    kind: str
    line: int | None  # the line it is wanted on; None: no known place
    pattern: re.Pattern[str]
    text: str
    written: int  # the line of the comment
    left: int


@dataclasses.dataclass
class Expectations:
    """What a file expects."""

    name: str
    expected: list[_Expected]

    @classmethod
    def read(cls, text: str, name: str) -> Expectations:
        """Collect the comments of a file; `name` is how locations call it."""
        expected = []
        lines = text.splitlines()
        # `above` and `below` look past lines that hold only such comments.
        marks = [bool(re.match(r"\s*//\s*expected-", line)) for line in lines]
        for number, line in enumerate(lines, 1):
            for comment in _comments(line):
                match = _COMMENT.match(comment)
                if match is None:
                    continue
                where, target = match["where"], number
                if where is not None and where[0] in "+-":
                    target += int(where)
                elif where in ("above", "below"):
                    step = -1 if where == "above" else 1
                    target += step
                    while 0 < target <= len(lines) and marks[target - 1]:
                        target += step
                pattern = _pattern(match["text"], bool(match["regex"]))
                count = int(match["count"] or 1)
                line_wanted = None if where == "unknown" else target
                expected.append(_Expected(match["kind"], line_wanted, pattern, match["text"], number, count))
        return cls(name, expected)

    def compare(self, found: Sequence[Diagnostic]) -> list[str]:
        """What is missing and what was not expected, as messages."""
        problems: list[str] = []
        for diagnostic in found:
            self._take(diagnostic.severity, diagnostic.location, diagnostic.message, problems)
            for note in diagnostic.notes:
                self._take("note", note.location, note.message, problems)
        for wanted in self.expected:
            if wanted.left > 0:
                problems.append(
                    f'{self.name}:{wanted.written}: error: expected {wanted.kind} "{wanted.text}" was not produced'
                )
        return problems

    def _take(self, kind: str, location: Location, message: str, problems: list[str]) -> None:
        position = location.file
        line = position[1] if position is not None and position[0] == self.name else None
        near: _Expected | None = None
        for wanted in self.expected:
            if wanted.line != line or not wanted.pattern.search(message):
                continue
            if wanted.kind == kind and wanted.left > 0:
                wanted.left -= 1
                return
            near = near or wanted
        if near is not None and near.kind != kind:
            problems.append(f"{location}: error: '{kind}' diagnostic emitted when expecting a '{near.kind}'")
        problems.append(f"{location}: error: unexpected {kind}: {message}")


def _comments(line: str) -> list[str]:
    """The `expected-...{{...}}` pieces of a line; there may be several."""
    starts = [m.start() for m in re.finditer(r"expected-(?:error|warning|remark|note)", line)]
    if not starts or "//" not in line[: starts[0]]:
        return []
    pieces = [line[a:b] for a, b in zip(starts, [*starts[1:], len(line)], strict=True)]
    return [piece[: piece.rfind("}}") + 2] for piece in pieces]


def _pattern(text: str, regex: bool) -> re.Pattern[str]:
    if not regex:
        return re.compile(re.escape(text))
    parts = re.split(r"\{\{(.*?)\}\}", text)
    return re.compile("".join(p if i % 2 else re.escape(p) for i, p in enumerate(parts)))
