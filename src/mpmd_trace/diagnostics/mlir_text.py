"""Strings and brackets of MLIR's text."""

from __future__ import annotations

import re

_OPEN, _CLOSE = "<([{", ">)]}"
#: A byte that cannot stand in a string literal as it is, and what may stand for one there.
_SPECIAL = re.compile(rb'[^ -~]|["\\]')
_ESCAPED = re.compile(rb'\\([nt\\"]|..)', re.S)
_SHORT = {b"n": b"\n", b"t": b"\t", b"\\": b"\\", b'"': b'"'}


def quote(text: str) -> str:
    """Return `text` as an MLIR string literal."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    bytes_of = text.encode("utf-8", "surrogateescape")
    escaped = _SPECIAL.sub(lambda m: b"\\\\" if m[0] == b"\\" else b"\\%02X" % ord(m[0]), bytes_of)
    return f'"{escaped.decode()}"'


def unquote(text: str) -> str:
    """Return the value of an MLIR string literal."""
    text = text.strip()
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        raise ValueError(f"not a string literal: {text}")
    body = text[1:-1]
    if "\\" not in body:
        return body
    unescaped = _ESCAPED.sub(lambda m: _SHORT.get(m[1]) or bytes([int(m[1], 16)]), body.encode())
    return unescaped.decode(errors="surrogateescape")


_STRING = r'"(?:[^"\\]|\\.)*"'
TOKENS = re.compile(rf"{_STRING}|->|[<>]=|[<(\[{{>)\]}},]", re.S)


def _closed(inside: str) -> str:
    """Return a pattern of brackets with what `inside` matches, with strings, and with text without brackets."""
    between = rf"""(?:[^][(){{}}<>"]++|{_STRING}{inside})*+"""
    return rf"<(?!=){between}(?<!-)>(?!=)|\({between}\)|\[{between}\]|\{{{between}\}}"


#: As `TOKENS`, but brackets with at most one level of others in them are one token.
_TOKENS_OUTSIDE = re.compile(rf"{_closed('|' + _closed(''))}|{TOKENS.pattern}", re.S)


def split_top_level(text: str, separator: str = ",") -> list[str]:
    """Return the parts of `text` between separators that are outside of brackets and strings, stripped."""
    parts: list[str] = []
    depth = start = 0
    for match in _TOKENS_OUTSIDE.finditer(text):
        token = match.group()
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
        elif token == separator and depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    last = text[start:].strip()
    if last or parts:
        parts.append(last)
    return parts


def matching_bracket(text: str, start: int) -> int:
    """Return the index of the bracket that closes the one at `start`; strings and `->` are skipped."""
    if text.startswith("(", start):  # around types, of which there may be thousands, there is mostly one pair
        close = text.find(")", start)
        if text.find("(", start + 1, close) < 0 and text.find('"', start, close) < 0 <= close:
            return close
    depth = 1
    for match in _TOKENS_OUTSIDE.finditer(text, start + 1):
        token = match.group()
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
            if depth == 0:
                return match.start()
    raise ValueError(f"unbalanced bracket in {text[start : start + 60]!r}")
