"""Prints modules in the dialects' own syntax, each body once.

Bodies of fragments are most of the text, most passes leave them as they are, and equal stages share one. A
`PrettyPrinter` keeps their texts, and gives MLIR a module with a single op in place of each that it knows:

    %0 = mpmd.fragment<mesh="m0", origin=["f"]> (%arg0) (%arg3: tensor<4xf32>) {
      %9:2 = "mpmd_trace.known_body"(%arg3) {id = 7 : i64} : (tensor<4xf32>) -> (i1, tensor<4xf32>)
      mpmd.return %9#1 : tensor<4xf32>
    } : ...

The numbers in that line are those that MLIR gives to the first value and the first argument in the body.
"""

from __future__ import annotations

import dataclasses
import re

from mpmd_trace.ir.core import Region
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.printer import print_region
from mpmd_trace.jax_compat.mlir import prettify

#: The line in place of a body, and the one before a body whose text is not known yet.
_MARKS = re.compile(
    r'^( *)(?:%(\d+)(?::\d+)? = "mpmd_trace\.known_body"|"mpmd_trace\.new_body")'
    r"\((?:%arg(\d+))?\) \{id = (\d+) : i64\}.*\n",
    re.MULTILINE,
)
_NUMBER = re.compile(r"%(arg)?(\d+)\b")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
#: A value that MLIR names by its kind, such as `%cst`: names in bodies depend on those outside.
_NAMED = re.compile(r"%(?!arg\d|\d)")
_NAMED_OPS = {"stablehlo.constant", "sdy.constant"}
#: What MLIR defines once for the whole text: aliases and resources.
_DEFINITION = re.compile(r"^(?:[#!]|\{-#)", re.MULTILINE)


@dataclasses.dataclass
class _Body:
    #: As MLIR reads it; the same with a mark; and what MLIR reads in place of it, once `pretty` is known.
    generic: str
    marked: str
    short: str
    #: Whether its text depends on nothing else than numbers.
    movable: bool
    #: The lines between the braces, and for what they are printed: indentation, numbers of first value and argument.
    pretty: str = ""
    place: tuple[int, int, int] = (0, 0, 0)

    def at(self, place: tuple[int, int, int]) -> str:
        """Return the lines for another place, which is likely to be that of the next use as well."""
        if place != self.place:
            (indent, *numbers), (before, *numbered) = place, self.place
            more = {kind: a - b for kind, a, b in zip((None, "arg"), numbers, numbered, strict=True)}
            if any(more.values()):
                self.pretty = _NUMBER.sub(lambda m: f"%{m[1] or ''}{int(m[2]) + more[m[1]]}", self.pretty)
            if indent != before:
                self.pretty = re.sub(rf"^ {{{before}}}", " " * indent, self.pretty, flags=re.MULTILINE)
            self.place = place
        return self.pretty


class PrettyPrinter:
    """Prints what `str(module)` does, quickly where it has printed the same bodies before."""

    def __init__(self) -> None:
        self._bodies: dict[Region, _Body] = {}
        self._by_id: list[_Body] = []

    def text(self, module: Module) -> str:
        """Return the module in the dialects' own syntax."""
        text = None if _names_values(module) else self._from_short(module)
        return prettify(module.to_generic(body=lambda region: self._body(region).generic)) if text is None else text

    def _from_short(self, module: Module) -> str | None:
        """Return the text with bodies in the places of the marks; None if they depend on more than numbers."""
        new: set[Region] = set()

        def short(region: Region) -> str:
            body = self._body(region)
            if body.movable and (body.pretty or region in new):
                return body.short
            new.add(region)
            return body.marked

        return self._with_bodies(prettify(module.to_generic(body=short)))

    def _body(self, region: Region) -> _Body:
        body = self._bodies.get(region)
        if body is None:
            body = self._bodies[region] = _read(region, len(self._by_id))
            self._by_id.append(body)
        return body

    def _with_bodies(self, short: str) -> str | None:
        """Return the text with all bodies; None if it depends on more than numbers."""
        if _DEFINITION.search(short):
            return None
        parts: list[str] = []
        end = 0
        for mark in _MARKS.finditer(short):
            if mark.start() < end:
                continue
            indent, value, argument, id = mark.groups()
            body = self._by_id[int(id)]
            outside = short[end : mark.start()]
            if _NAMED.search(outside):
                return None
            if value is None:
                end = short.index(f"\n{indent[2:]}}}", mark.end()) + 1
                body.pretty = short[mark.end() : end]
                first = min((int(number) for kind, number in _NUMBER.findall(body.pretty) if not kind), default=0)
                body.place = (len(indent), first, int(argument or 0))
                parts += [outside, body.pretty]
            else:
                end = short.index("\n", mark.end()) + 1  # behind what it returns
                parts += [outside, body.at((len(indent), int(value), int(argument or 0)))]
        parts.append(short[end:])
        return None if _NAMED.search(parts[-1]) else "".join(parts)


def _names_values(module: Module) -> bool:
    """Return whether MLIR will name a value outside of bodies."""
    regions = [*module.op.regions]
    while regions:
        for block in regions.pop().blocks:
            for op in block:
                if op.name in _NAMED_OPS:
                    return True
                regions += [region for region in op.regions if not region.frozen]
    return False


def _read(region: Region, id: int) -> _Body:
    generic = print_region(region, prefix=f"b{id}_")
    args, end = region.blocks[0].args, region.blocks[-1].terminator
    first, type = (f"%b{id}_arg0", args[0].type.text) if args else ("", "")
    mark = f'_body"({first}) {{id = {id} : i64}} : ({type}) -> '
    start = generic.index("\n", 2 if args else 0) + 1
    marked = f'{generic[:start]}  "mpmd_trace.new{mark}()\n{generic[start:]}'
    types = [value.type.text for value in end.operands]
    returned = ", ".join(f"%b{id}#{i + 1}" for i in range(len(types)))
    short = (
        f"{generic[: start - 1]}\n"
        f'  %b{id}:{len(types) + 1} = "mpmd_trace.known{mark}({", ".join(["i1", *types])})\n'
        f'  "{end.name}"({returned}) : ({", ".join(types)}) -> ()\n}}'
    )
    numbered = bool(args) or "_arg" not in generic  # the mark says which number its first argument has, if there is one
    strings = any("%" in text for text in _STRING.findall(generic))
    return _Body(generic, marked, short, movable=len(region.blocks) == 1 and numbered and not strings)
