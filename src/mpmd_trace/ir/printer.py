"""MLIR's generic text form: fast and free of dialect knowledge.

`jax_compat.mlir.prettify` makes it pretty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.attributes import Attribute, dict_text
from mpmd_trace.ir.types import Type

# What there is to print of the nodes of `ir/core.py`.


class Value(Protocol):
    type: Type

    @property
    def location(self) -> Location: ...
    @property
    def defining_op(self) -> Op | None: ...


class Op(Protocol):
    name: str
    loc: Location

    @property
    def operands(self) -> Sequence[Value]: ...
    @property
    def results(self) -> Sequence[Value]: ...
    @property
    def props(self) -> Mapping[str, Attribute]: ...
    @property
    def attrs(self) -> Mapping[str, Attribute]: ...
    @property
    def regions(self) -> Sequence[Region]: ...
    @property
    def successors(self) -> Sequence[Block]: ...


class Block(Iterable[Op], Protocol):
    @property
    def args(self) -> Sequence[Value]: ...
    @property
    def first(self) -> Op | None: ...


class Region(Protocol):
    @property
    def blocks(self) -> Sequence[Block]: ...


def print_op(op: Op, *, debug_info: bool = False) -> str:
    """Return the op in generic form, with everything nested in it.

    Values defined outside of it print as `%<unnamed>`-style names `%free0`, ...
    """
    printer = _Printer(debug_info)
    printer.op(op, "")
    text = "".join(printer.out)
    if debug_info and printer.locs:
        text += "\n" + "\n".join(f"{alias} = loc({t})" for t, alias in printer.locs.items())
    return text


def print_region(region: Region) -> str:
    """Return the region in generic form, without locations."""
    printer = _Printer()
    printer.region(region, "")
    return "".join(printer.out)


class _Printer:
    def __init__(self, debug_info: bool = False) -> None:
        self.out: list[str] = []
        self.names: dict[Value, str] = {}
        self.blocks: dict[Block, str] = {}
        self.locs: dict[str, str] = {}
        self.loc_of: dict[Location, str] = {}
        self.counter = self.args = self.free = self.labels = 0
        self.debug_info = debug_info

    def name(self, value: Value) -> str:
        """Return the name of a value whose definition was not printed yet: it comes later, or is somewhere else."""
        results = self.names.get(value)
        if results is None:
            base = f"%free{self.free}"
            self.free += 1
            op = value.defining_op
            if op is None or len(op.results) == 1:
                self.names[value] = base
            else:
                for i, result in enumerate(op.results):
                    self.names[result] = f"{base}#{i}"
            results = self.names[value]
        return results

    def loc(self, loc: Location) -> str:
        if not self.debug_info:
            return ""
        result = self.loc_of.get(loc)
        if result is None:
            text = loc.resolved
            alias = self.locs.get(text)
            if alias is None:
                alias = self.locs[text] = f"#loc{len(self.locs) + 1}"
            result = self.loc_of[loc] = f" loc({alias})"
        return result

    def op(self, op: Op, indent: str) -> None:
        write = self.out.append
        write(indent)
        count = len(op.results)
        names = self.names
        if count:
            forward = names.get(op.results[0]) if self.free else None
            if forward is not None:
                base = forward.partition("#")[0]
            else:
                base = f"%{self.counter}"
                self.counter += 1
            if count == 1:
                names[op.results[0]] = base
                write(f"{base} = ")
            else:
                for i, result in enumerate(op.results):
                    names[result] = f"{base}#{i}"
                write(f"{base}:{count} = ")
        operands = op.operands
        write(f'"{op.name}"(' + ", ".join([names.get(v) or self.name(v) for v in operands]) + ")")
        if op.successors:
            write("[" + ", ".join(self.block_name(b) for b in op.successors) + "]")
        if op.props:
            write(" <{" + dict_text(op.props) + "}>")
        if op.regions:
            write(" (")
            for i, region in enumerate(op.regions):
                if i:
                    write(", ")
                self.region(region, indent)
            write(")")
        if op.attrs:
            write(" {" + dict_text(op.attrs) + "}")
        results = [r.type.text for r in op.results]
        right = results[0] if count == 1 and not results[0].startswith("(") else f"({', '.join(results)})"
        write(f" : ({', '.join([v.type.text for v in operands])}) -> {right}{self.loc(op.loc)}")

    def block_name(self, block: Block) -> str:
        result = self.blocks.get(block)
        if result is None:
            result = self.blocks[block] = f"^bb{self.labels}"
            self.labels += 1
        return result

    def region(self, region: Region, indent: str) -> None:
        write = self.out.append
        write("{\n")
        inner = indent + "  "
        for i, block in enumerate(region.blocks):
            if i or block.args or len(region.blocks) > 1 or block.first is None:
                parts = []
                for arg in block.args:
                    if arg not in self.names:
                        self.names[arg] = f"%arg{self.args}"
                        self.args += 1
                    parts.append(f"{self.names[arg]}: {arg.type.text}{self.loc(arg.location)}")
                label = self.block_name(block)
                write(f"{indent}{label}({', '.join(parts)}):\n" if parts else f"{indent}{label}:\n")
            for op in block:
                self.op(op, inner)
                write("\n")
        for block in region.blocks:  # a body that is printed again has new names, as when it is another one
            self.blocks.pop(block, None)
            for arg in block.args:
                self.names.pop(arg, None)
        write(indent + "}")
