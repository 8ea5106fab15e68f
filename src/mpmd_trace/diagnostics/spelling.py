"""Strings and brackets of MLIR's text."""

from __future__ import annotations

import re

__all__ = ["TOKENS", "matching_bracket", "quote", "split_top_level", "unquote"]

_OPEN, _CLOSE = "<([{", ">)]}"


def quote(text: str) -> str:
    """`text` as an MLIR string literal."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for byte in text.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        if char == "\\":
            out.append("\\\\")
        elif 0x20 <= byte < 0x7F and char != '"':
            out.append(char)
        else:
            out.append(f"\\{byte:02X}")
    return '"' + "".join(out) + '"'


def unquote(text: str) -> str:
    """The value of an MLIR string literal."""
    text = text.strip()
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        raise ValueError(f"not a string literal: {text}")
    body = text[1:-1]
    if "\\" not in body:
        return body
    out, i = bytearray(), 0
    while i < len(body):
        if body[i] == "\\":
            nxt = body[i + 1]
            simple = {"n": 10, "t": 9, "\\": 92, '"': 34}
            if nxt in simple:
                out.append(simple[nxt])
                i += 2
            else:
                out.append(int(body[i + 1 : i + 3], 16))
                i += 3
        else:
            out += body[i].encode("utf-8")
            i += 1
    return out.decode("utf-8", errors="surrogateescape")


TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>]=|[<(\[{>)\]},]', re.S)


def split_top_level(text: str, separator: str = ",") -> list[str]:
    """The parts of `text` between separators that are outside of brackets and strings, stripped."""
    parts: list[str] = []
    depth = start = 0
    for match in TOKENS.finditer(text):
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
    """The index of the bracket that closes the one at `start`; strings and `->` are skipped."""
    if text.startswith("(", start):  # around types, of which there may be thousands, there is mostly one pair
        close = text.find(")", start)
        if text.find("(", start + 1, close) < 0 and text.find('"', start, close) < 0 <= close:
            return close
    depth = 0
    for match in TOKENS.finditer(text, start):
        token = match.group()
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
            if depth == 0:
                return match.start()
    raise ValueError(f"unbalanced bracket in {text[start : start + 60]!r}")
