"""`symbol-dce` on functions: removes private functions that nothing refers to.

MLIR has a pass of this name; this one works on our IR, which keeps the bodies of fragments shared.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from mpmd_trace.ir.attributes import SYMBOL, ArrayAttr, Attribute, DictAttr, StringAttr, SymbolRefAttr
from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.reachable import reachable


class SymbolDce(Pass):
    """Every private function is referred to by a public function, or by one that is itself kept.

    Before:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          return %x : !t
        }
        func.func private @f(%x: !t) -> !t {
          return %x : !t
        }

    After:

        func.func public @main(%arg0: !t) -> !t attributes {topology = #meshes} {
          return %arg0 : !t
        }
    """

    name = "mpmd-symbol-dce"
    summary = "remove private functions without references"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = {f.sym_name: f for f in module.functions}
        references = References()
        kept: list[Op] = [op for op in module.body if not isinstance(op, FuncOp) or op.visibility != "private"]
        live = reachable(kept, lambda op: [functions[name] for name in references.of(op) if name in functions])
        dead = [f for f in functions.values() if f not in live]
        for function in dead:
            function.erase()
        return bool(dead)


class References:
    """The symbols that ops mention.  Attributes are few, so each is looked into once."""

    def __init__(self) -> None:
        self._known: dict[Attribute, tuple[str, ...]] = {}

    def of(self, op: Op) -> set[str]:
        """Return those of the op and everything inside."""
        result: set[str] = set()
        self._op(op, result)
        return result

    def _op(self, op: Op, symbols: set[str]) -> None:
        known = self._known
        for held in (op.props, op.attrs):
            for attribute in held.values():
                names = known.get(attribute)
                if names is None:
                    names = known[attribute] = tuple(_in_attribute(attribute))
                if names:
                    symbols.update(names)
        for region in op.regions:
            if region.frozen:
                symbols.update(remembered(region, "symbol-references", functools.partial(self._inside, region)))
            else:
                for block in region.blocks:
                    for nested in block:
                        self._op(nested, symbols)

    def _inside(self, region: Region) -> frozenset[str]:
        result: set[str] = set()
        for block in region.blocks:
            for op in block:
                self._op(op, result)
        return frozenset(result)


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
