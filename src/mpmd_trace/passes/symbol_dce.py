"""`symbol-dce` on functions: removes private functions that nothing refers to.

MLIR has a pass of this name; this one works on our IR, which keeps the bodies of fragments shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mpmd_trace.ir.attributes import SYMBOL, ArrayAttr, Attribute, DictAttr, StringAttr, SymbolRefAttr
from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.reachable import reachable


class SymbolDce(Pass):
    """Remove private functions that no public function refers to, directly or through others.

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
        return self._among([op])

    def _among(self, ops: Iterable[Op]) -> set[str]:
        attributes: set[Attribute] = set()
        regions: set[Region] = set()
        for op in ops:
            attributes.update(op.props.values(), op.attrs.values())
            if op.regions:
                regions.update(op.regions)
        result = {name for attribute in attributes for name in self._in_attribute(attribute)}
        return result.union(*map(self._inside, regions))

    def _in_attribute(self, attribute: Attribute) -> tuple[str, ...]:
        names = self._known.get(attribute)
        if names is None:
            names = self._known[attribute] = tuple(_in_attribute(attribute))
        return names

    def _inside(self, region: Region) -> set[str]:
        if region.frozen:
            return remembered(region, "symbol-references", lambda: self._among(_ops_in(region)))
        return self._among(_ops_in(region))


def _ops_in(region: Region) -> Iterator[Op]:
    for block in region.blocks:
        yield from block


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
