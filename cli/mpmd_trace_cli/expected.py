"""`expected-error {{...}}` comments, as MLIR's diagnostic verifier reads them.

// expected-error@+1 {{text}}        the next line gets an error whose message contains the text
// expected-warning-re@above {{a{{[0-9]+}}b}}    the part in inner braces is a regular expression
// expected-note 2 {{text}}          exactly twice; without a number: once or more, as in MLIR
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError

_COMMENT = re.compile(
    r"expected-(?P<kind>error|warning|remark|note)(?P<regex>-re)? *"
    r"(?:@(?P<where>[+-]\d+|above|below|unknown))? *(?P<count>\d+)? *\{\{(?P<text>.*)\}\}$"
)
#: The line of a diagnostic that is in no file, and of one that is in another file.
_NOWHERE, _ELSEWHERE = None, -1


@dataclasses.dataclass
class _Expected:
    kind: str
    line: int | None  # the line it is wanted on; None: no known place
    pattern: re.Pattern[str]
    text: str
    written: int  # the line of the comment
    left: int
    exact: bool  # a number is written


@dataclasses.dataclass
class Expectations:
    """The diagnostics that a file expects.  `only_expected`: others, which no comment mentions, are all right."""

    name: str
    expected: list[_Expected]
    only_expected: bool = False

    @classmethod
    def read(cls, text: str, name: str) -> Expectations:
        """Collect the comments of a file; `name` is how locations call it.

        Raises `MpmdError` for a comment whose regular expression is malformed.
        """
        lines = text.split("\n")
        comments = [_comments(line) for line in lines]
        bare = [bool(c) and line.lstrip().startswith("//") for c, line in zip(comments, lines, strict=True)]
        expected = []
        for number, matches in enumerate(comments, 1):
            for match in matches:
                where, target = match["where"], number
                if where is not None and where[0] in "+-":
                    target += int(where)
                elif where in ("above", "below"):  # past lines that hold nothing but such comments
                    step = -1 if where == "above" else 1
                    target += step
                    while 0 < target < len(lines) and bare[target - 1]:
                        target += step
                expected.append(
                    _Expected(
                        match["kind"],
                        _NOWHERE if where == "unknown" else target,
                        _pattern(match["text"], bool(match["regex"]), f"{name}:{number}"),
                        match["text"],
                        number,
                        int(match["count"] or 1),
                        match["count"] is not None,
                    )
                )
        return cls(name, expected)

    def compare(self, diagnostics: Sequence[Diagnostic]) -> list[str]:
        """Return what is missing and what was not expected, as messages."""
        problems: list[str] = []
        for diagnostic in diagnostics:
            self._take(diagnostic.severity, diagnostic.location, diagnostic.message, problems)
            for note in diagnostic.notes:
                self._take("note", note.location, note.message, problems)
        for wanted in self.expected:
            if wanted.left > 0:
                what = f'expected {wanted.kind} "{wanted.text}" was not produced'
                problems.append(f"{self.name}:{wanted.written}: error: {what}")
        return problems

    def _take(self, kind: str, location: Location, message: str, problems: list[str]) -> None:
        position = location.file
        line = _NOWHERE
        if position is not None:
            line = position[1] if position[0] == self.name else _ELSEWHERE
        fits = [w for w in self.expected if w.line == line and w.pattern.search(message)]
        same = [w for w in fits if w.kind == kind]
        for wanted in same:
            if wanted.left > 0:
                wanted.left -= 1
                return
        if any(not wanted.exact for wanted in same) or self.only_expected:
            return
        others = [w for w in fits if w.kind != kind]
        if others:
            what = f"'{kind}' diagnostic emitted when expecting a '{others[0].kind}': {message}"
        else:
            what = f"unexpected {kind}: {message}"
        problems.append(f"{location}: error: {what}")


def _comments(line: str) -> list[re.Match[str]]:
    """Return the `expected-...{{...}}` pieces of a line; there may be several."""
    if "expected-" not in line:
        return []
    starts = [m.start() for m in re.finditer(r"expected-(?:error|warning|remark|note)", line)]
    pieces = [line[a:b] for a, b in zip(starts, [*starts[1:], len(line)], strict=True)]
    matches = [_COMMENT.match(piece[: piece.rfind("}}") + 2]) for piece in pieces]
    return [match for match in matches if match is not None]


def _pattern(text: str, regex: bool, where: str) -> re.Pattern[str]:
    if not regex:
        return re.compile(re.escape(text))
    parts = re.split(r"\{\{(.*?)\}\}", text)
    try:
        return re.compile("".join(f"(?:{p})" if i % 2 else re.escape(p) for i, p in enumerate(parts)))
    except re.error as error:
        raise MpmdError(f"{where}: the expected text '{text}' is not a regular expression: {error}") from None
