"""Values of options as text: brackets and quotes around what holds blanks and commas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_OPEN, _CLOSE = "([{", ")]}"


def _nesting(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each character with its place, and whether it leaves no bracket or quote open."""
    depth, quote = 0, ""
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        yield i, char, depth == 0 and not quote


def split_outside(text: str, separators: str) -> list[str]:
    """Split at separators that are outside of brackets and quotes; empty parts are dropped."""
    parts, start = [], 0
    for i, char, outside in _nesting(text):
        if outside and char in separators:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def closing(text: str) -> int | None:
    """Return the index of the bracket that closes the one with which the text begins, if there is one."""
    return next((i for i, _, outside in _nesting(text) if outside), None)


def unwrap(text: str) -> str:
    """`text` without the braces or quotes around the whole of it."""
    if len(text) < 2 or text[0] + text[-1] not in ("{}", "''", '""'):
        return text
    for i, _, outside in _nesting(text):
        if outside and i < len(text) - 1:
            return text  # the first one closes before the end: {a},{b}
    return text[1:-1]


def option_text(value: Any) -> str:
    """Return the value of an option as text that reads back as the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) in (tuple, list):  # named tuples have a text of their own
        parts = [option_text(v) for v in value]
        text = ",".join(_wrapped(p) if not p or split_outside(p, ",") != [p] else p for p in parts)
        # The braces of the list, since its only part may have some of its own.
        return text if _is_plain(text) else f"{{{text}}}"
    text = str(value)
    return text if _is_plain(text) else _wrapped(text)


def _wrapped(text: str) -> str:
    """`text` in quotes, or in braces when it has quotes of both kinds (which must then be balanced)."""
    quote = next((q for q in "\"'" if q not in text), None)
    return f"{{{text}}}" if quote is None else f"{quote}{text}{quote}"


def _is_plain(text: str) -> bool:
    """Return whether `text` reads as itself where options are separated by blanks."""
    if not text:
        return True
    # What is behind it must still be seen as another option: its quotes and brackets are closed.
    return split_outside(f"{text} x", " \n\t") == [text, "x"] and unwrap(text) == text
