"""`symbol-dce` on functions: removes private functions that nothing refers to.

MLIR has a pass of this name; this one works on our IR, which keeps the bodies of fragments shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from ..ir.attributes import (
    SYMBOL,
    ArrayAttr,
    Attribute,
    DictAttr,
    StringAttr,
    SymbolRefAttr,
)
from ..ir.bodies import remembered
from ..ir.core import Op, Region
from ..ir.diagnostics import Diagnostics
from ..ir.ops import FuncOp, Module
from .base import Pass

__all__ = ["SymbolDce"]


@dataclasses.dataclass(frozen=True)
class SymbolDce(Pass):
    """Every private function is referred to by a public function, or by one that is itself kept.

        func.func @main(..) { mpmd.call @f .. }            func.func @main(..) { mpmd.call @f .. }
        func.func private @f(..) { .. }               =>   func.func private @f(..) { .. }
        func.func private @g(..) { .. }
    """

    name: ClassVar[str] = "mpmd-symbol-dce"
    summary: ClassVar[str] = "remove private functions without references"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = {f.sym_name: f for f in module.functions}
        live: set[Op] = set()
        pending: list[Op] = [
            op
            for op in module.body
            if not isinstance(op, FuncOp) or op.visibility != "private"
        ]
        while pending:
            op = pending.pop()
            if op in live:
                continue
            live.add(op)
            for name in _references(op):
                callee = functions.get(name)
                if callee is not None:
                    pending.append(callee)
        dead = [f for f in functions.values() if f not in live]
        for function in dead:
            function.erase()
        return bool(dead)


def _references(op: Op) -> Iterator[str]:
    """The symbols that the op and everything inside mention."""
    for attributes in (op.props, op.attrs):
        for value in attributes.values():
            yield from _in_attribute(value)
    for region in op.regions:
        yield from _in_region(region)


def _in_region(region: Region) -> Iterator[str]:
    if region.frozen:
        yield from remembered(region, "symbol-references", lambda: tuple(_in_blocks(region)))
    else:
        yield from _in_blocks(region)


def _in_blocks(region: Region) -> Iterator[str]:
    for block in region.blocks:
        for op in block:
            yield from _references(op)


def _in_attribute(attribute: Attribute) -> Iterator[str]:
    if isinstance(attribute, SymbolRefAttr):
        yield attribute.name
    elif isinstance(attribute, ArrayAttr):
        for element in attribute.elements:
            yield from _in_attribute(element)
    elif isinstance(attribute, DictAttr):
        for value in attribute.entries.values():
            yield from _in_attribute(value)
    elif not isinstance(attribute, StringAttr) and "@" in attribute.text:
        yield from (match.group(1) for match in SYMBOL.finditer(attribute.text))
