"""How deep MLIR text is nested: parsers and printers recurse, MLIR's own until the process runs out of stack."""

from __future__ import annotations

import itertools
import re

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.diagnostics.spelling import quote

#: As many brackets may be open at a place (an op in a region is in two or three), and in a location.
MOST_BRACKETS = 200
_MOST_IN_LOCATION = 5000
_OPEN, _CLOSE = "<([{", ">)]}"
#: Strings, comments and arrows, in which brackets mean nothing.
_WITHOUT_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<>]=')
_TOKENS = re.compile(rf"{_WITHOUT_BRACKETS.pattern}|(?<![\w$.-])loc\(|[<(\[{{>)\]}}]")
_DELETED = bytes(sorted(set(range(256)) - set((_OPEN + _CLOSE).encode())))
_STEPS = {ord(c): 1 if c in _OPEN else -1 for c in _OPEN + _CLOSE}


def check_nesting(text: str, filename: str) -> None:
    """Raise `MpmdError` for text in which more brackets are open at a place than we, or MLIR, could follow."""
    if sum(map(text.count, _OPEN)) <= MOST_BRACKETS:
        return
    brackets = _WITHOUT_BRACKETS.sub("", text).encode(errors="replace").translate(None, _DELETED)
    if max(itertools.accumulate(map(_STEPS.__getitem__, brackets))) <= MOST_BRACKETS:
        return
    depth = in_location = 0
    for match in _TOKENS.finditer(text):
        token = match.group()
        if in_location or token == "loc(":
            in_location += (token == "loc(" or token in _OPEN) - (token in _CLOSE)
        else:
            depth += (token in _OPEN) - (token in _CLOSE)
        if depth > MOST_BRACKETS or in_location > _MOST_IN_LOCATION:
            line = text.count("\n", 0, match.start()) + 1
            place = Location(f"{quote(filename)}:{line}:{match.start() - text.rfind(chr(10), 0, match.start())}")
            limit = _MOST_IN_LOCATION if in_location else MOST_BRACKETS
            where = "locations" if in_location else "ops, attributes and types"
            message = f"nested too deeply: more than {limit} brackets of {where} are open here"
            raise MpmdError([Diagnostic("error", message, place)])
