"""Reads MLIR's generic text form into the IR.

Only the regular form that MLIR itself prints is read: one op a line.  Text that people write goes through
`jax_compat.mlir.to_generic` first, which parses and verifies it with the real dialects.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.diagnostics.mlir_text import matching_bracket, split_top_level
from mpmd_trace.ir.attributes import Attribute, parse_dict_body
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.garbage_collection import paused_collector
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.outlined import OUTLINED
from mpmd_trace.ir.types import FunctionType, Type, parse_type

_OP = re.compile(r'\s*(?:(%[\w$.-]+)(?::\d+)? = )?"((?:[^"\\]|\\.)*)"\(([^()]*)\)')
_ALIAS = re.compile(r"([#!][A-Za-z_][\w$.-]*) = (.*)$")
_ALIAS_USE = re.compile(r'"(?:[^"\\]|\\.)*"|[#!][A-Za-z_][\w$-]*(?![\w$.-])')
#: Their bodies use nothing from outside.
_SHARED_BODY_OPS = frozenset({"mpmd.fragment", "mpmd.named_computation"})
#: The name of a value or block; strings are found, too, because there is no name in them.
_NAME = re.compile(r'("(?:[^"\\]|\\.)*"|[%^][\w$.-]+)')
#: The locations of most block arguments.
_ARG_LOCATION = re.compile(r' loc\((?:#loc\d*|"[^"\\]*"(?::\d+:\d+)?)\)')


class _Tail(NamedTuple):
    """The text behind the operand list of an op, without its location."""

    successors: tuple[str, ...]
    props: dict[str, Attribute]
    attrs: dict[str, Attribute]
    result_types: tuple[Type, ...]
    apart: Attribute | None


@dataclass(slots=True)
class _Frame:
    """An op whose regions are being read.

    `body`: what bodies that are spelled alike have in common, where the body is to be shared.
    """

    name: str
    result: str | None
    operands: list[Value]
    tail: _Tail
    body: Hashable = None
    regions: list[Region] = field(default_factory=lambda: [Region()])
    block: Block | None = None


def parse_generic(text: str, *, any_location: bool = False) -> Module:
    """Return the module that `text` spells in generic form.

    Bodies of fragments and named computations that are spelled alike are one object, with `any_location` also where
    their locations differ.  Raises `ValueError` on text that MLIR would not have printed.
    """
    return _parse(text, None, any_location)[0]


def parse_apart(text: str, name: str) -> tuple[Module, dict[Op, Attribute]]:
    """As `parse_generic`, without the discardable attributes of this name, and those."""
    return _parse(text, name, False)


def _parse(text: str, name_apart: str | None, any_location: bool) -> tuple[Module, dict[Op, Attribute]]:
    with paused_collector():  # a module is all live: looking for garbage while it grows takes a third of the time
        parser = _Parser(text, name_apart, any_location)
        return parser.run(), parser.apart


def _location_at(text: str) -> int:
    """Return where the location begins with which the text ends, an alias or a place; or the length of the text."""
    at = text.rfind(" loc(")
    short = at >= 0 and text.startswith(("#loc", '"-":'), at + 5) and text.find(")", at) == len(text) - 1
    return at if short else len(text)


class _Parser:
    def __init__(self, text: str, name_apart: str | None, any_location: bool) -> None:
        self.name_apart = name_apart
        self.any_location = any_location
        self.apart: dict[Op, Attribute] = {}
        self.lines = text.split("\n")
        self.at = 0
        self.values: dict[str, Value] = {}
        self.pending: dict[str, Value] = {}
        self.blocks: list[dict[str, Block]] = [{}]
        self.tails: dict[str, _Tail] = {}
        self.loc_table: dict[str, str] = {}
        self.locs: dict[str, Location] = {}
        self.aliases: dict[str, str] = {}
        self.frames: list[_Frame] = []
        self.bodies: dict[Hashable, Region] = {}
        self.top: Op | None = None

    def run(self) -> Module:
        trailer: list[str] = []
        body: list[str] = []
        for number, line in enumerate(self.lines):
            if line.startswith(("#", "!")):
                match = _ALIAS.match(line)
                if match is None:
                    raise ValueError(f"cannot read the alias definition: {line[:80]}")
                name, value = match.groups()
                if value.startswith("loc("):
                    self.loc_table[name] = value[4:-1]
                else:
                    self.aliases[name] = self.expand(value)
            elif line.startswith("{-#"):
                trailer = self.lines[number:]
                break
            else:
                body.append(line)
        self.lines = body
        while self.at < len(body):
            line = body[self.at]
            self.at += 1
            stripped = line.lstrip()
            if not stripped or stripped.startswith("//"):
                continue
            first = stripped[0]
            if first == "^":
                self.block_header(stripped)
            elif first == "}":
                self.close(stripped)
            else:
                self.op(line)
        if self.frames or self.top is None:
            raise ValueError("the text ends inside of an op")
        if self.pending:
            raise ValueError(f"undefined values: {', '.join(sorted(self.pending))}")
        module = Module(self.top, "\n".join(trailer))
        outlined = [f for f in module.functions if OUTLINED in f.attrs]
        module.outlined = tuple([f.clone() for f in outlined])
        for function in outlined:
            function.erase()
        return module

    # Pieces.

    def expand(self, text: str) -> str:
        """Return `text` with attribute and type aliases replaced, and locations that are attributes spelled out."""
        if not self.aliases and "#loc" not in text:
            return text

        def replaced(match: re.Match[str]) -> str:
            name = match.group()
            if name in self.loc_table:
                return f"loc({Location(self.loc_table[name], self.loc_table).resolved})"
            return self.aliases.get(name, name)

        return _ALIAS_USE.sub(replaced, text)

    def location(self, text: str) -> tuple[str, Location]:
        """Split a trailing ` loc(...)` off."""
        if not text.endswith(")"):
            return text, UNKNOWN
        at = _location_at(text)
        if at == len(text):
            at = text.find(" loc(")
            if at < 0:
                return text, UNKNOWN
        body = text[at + 5 : -1]
        loc = self.locs.get(body)
        if loc is None:
            resolved = self.loc_table.get(body, body)
            loc = UNKNOWN if resolved == "unknown" else Location(resolved, self.loc_table)
            self.locs[body] = loc
        return text[:at], loc

    def tail(self, text: str) -> _Tail:
        result = self.tails.get(text)
        if result is None:
            result = self.parse_tail(self.expand(text))
            if len(text) < 2000:  # big constants are not worth remembering
                self.tails[text] = result
        return result

    def parse_tail(self, text: str) -> _Tail:
        successors: tuple[str, ...] = ()
        props: dict[str, Attribute] = {}
        attrs: dict[str, Attribute] = {}
        rest = text.lstrip()
        if rest.startswith("["):
            close = matching_bracket(rest, 0)
            successors = tuple(split_top_level(rest[1:close]))
            rest = rest[close + 1 :].lstrip()
        if rest.startswith("<{"):
            close = matching_bracket(rest, 1)
            props = parse_dict_body(rest[2:close])
            rest = rest[close + 2 :].lstrip()
        if rest == "({":
            return _Tail(successors, props, attrs, (), None)
        if rest.startswith("{"):
            close = matching_bracket(rest, 0)
            attrs = parse_dict_body(rest[1:close])
            rest = rest[close + 1 :].lstrip()
        if not rest.startswith(":"):
            raise ValueError(f"expected a type: {text[:120]}")
        text = rest[1:].strip()
        inputs, arrow, results = text.rpartition(") -> ")
        if arrow and arrow not in inputs:  # one arrow, and so no need to read the types of operands, which have them
            text = f"({arrow}{results}"
        signature = parse_type(text)
        if not isinstance(signature, FunctionType):
            raise ValueError(f"expected a function type: {rest[:120]}")
        apart = attrs.pop(self.name_apart, None) if self.name_apart is not None else None
        return _Tail(successors, props, attrs, signature.results, apart)

    def value(self, name: str) -> Value:
        result = self.values.get(name) or self.pending.get(name)
        if result is None:
            result = self.pending[name] = Value(parse_type("none"), 0)
        return result

    def define(self, name: str, value: Value) -> None:
        if name in self.pending:
            self.pending.pop(name).replace_all_uses_with(value)
        self.values[name] = value

    def block_named(self, name: str) -> Block:
        return self.blocks[-1].setdefault(name, Block())

    def block_header(self, line: str) -> None:
        frame = self.frames[-1]
        end = line.rfind(":", 0, line.find("//") if "//" in line and '"' not in line else None)
        name, _, rest = line[:end].partition("(")
        block = self.block_named(name)
        if rest:
            for part in split_top_level(rest[: rest.rindex(")")]):
                text, loc = self.location(part)
                arg_name, _, type_text = text.partition(":")
                arg = block.add_arg(parse_type(self.expand(type_text.strip())), loc=loc)
                self.define(arg_name.strip(), arg)
        frame.regions[-1].add_block(block)
        frame.block = block

    def op(self, line: str) -> None:
        match = _OP.match(line)
        if match is None:
            raise ValueError(f"cannot read the op: {line[:160]}")
        result, name, operand_text = match.groups()
        operands = [self.value(n) for n in operand_text.split(", ")] if operand_text else []
        rest = line[match.end() :]
        if rest.endswith("({"):
            frame = _Frame(name, result, operands, self.tail(rest))
            self.frames.append(frame)
            self.blocks.append({})
            if name in _SHARED_BODY_OPS:
                self.find_body(frame, line[: len(line) - len(line.lstrip())] + "})")
            return
        rest, loc = self.location(rest)
        self.finish(name, result, operands, self.tail(rest), {}, (), [], loc)

    def find_body(self, frame: _Frame, end: str) -> None:
        """Give the op a body that was read before and is spelled as its own, up to a line that starts with `end`."""
        numbers: dict[str, int] = {}
        spelled: list[Hashable] = []
        at, length = self.at, len(self.lines)
        while at < length and not (line := self.lines[at]).startswith(end):
            at += 1
            rest = ""
            if not line.lstrip().startswith("^"):  # an op, which names all values before the first bracket that closes
                line, _, rest = line.partition(")")
            if self.any_location:
                line, rest = _ARG_LOCATION.sub("", line), rest[: _location_at(rest)]
            parts = _NAME.split(line)
            spelled.append(rest)
            spelled += parts[::2]
            spelled += [numbers.setdefault(n, len(numbers)) if n[0] != '"' else n for n in parts[1::2]]
        frame.body = tuple(spelled)
        known = self.bodies.get(frame.body)
        if known is not None:
            frame.regions = [known]
            self.at = at

    def close(self, line: str) -> None:
        frame = self.frames[-1]
        if line.startswith("}, {"):
            frame.regions.append(Region())
            frame.block = None
            self.blocks[-1] = {}
            return
        if not line.startswith("})"):
            raise ValueError(f"unexpected: {line[:80]}")
        self.frames.pop()
        self.blocks.pop()
        if frame.body is not None:
            self.bodies[frame.body] = freeze(frame.regions[0])
        rest, loc = self.location(line[2:])
        end, begin = self.tail(rest), frame.tail
        self.finish(frame.name, frame.result, frame.operands, end, begin.props, begin.successors, frame.regions, loc)

    def finish(
        self,
        name: str,
        result: str | None,
        operands: list[Value],
        tail: _Tail,
        props: dict[str, Attribute],
        successors: tuple[str, ...],
        regions: list[Region],
        loc: Location,
    ) -> None:
        op = make_op(
            name,
            operands,
            tail.result_types,
            props=props or tail.props,
            attrs=tail.attrs,
            regions=regions,
            successors=[self.block_named(s) for s in successors or tail.successors],
            loc=loc,
        )
        if tail.apart is not None:
            self.apart[op] = tail.apart
        if result is not None:
            if len(op.results) == 1:
                self.define(result, op.results[0])
            else:
                for i, value in enumerate(op.results):
                    self.define(f"{result}#{i}", value)
        if not self.frames:
            if self.top is not None:
                raise ValueError("more than one op at the top level")
            self.top = op
            return
        frame = self.frames[-1]
        if frame.block is None:
            frame.block = Block()
            frame.regions[-1].add_block(frame.block)
        frame.block.append(op)
