"""Common subexpression elimination that keeps bodies shared: what MLIR's `cse` does."""

from __future__ import annotations

import functools
from collections.abc import Hashable

from mpmd_trace.diagnostics.location import UNKNOWN
from mpmd_trace.ir.bodies import fingerprint, replace_bodies
from mpmd_trace.ir.core import Block, Op, Region, Value, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.semantics import is_removable_alone, region_is_removable
from mpmd_trace.jax_compat.mlir import run_pipeline
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.mlir_parts import result_of, run_in_parts
from mpmd_trace.passes.trivially_canonical import is_plain

_CSE = "cse"


class Cse(Pass):
    """Remove ops that compute the same from the same values as an earlier op, and unused ops.

    As MLIR's `cse`, the pass works on functions, and once on each distinct body. Fragments are equal if their
    attributes, operands and bodies are.

    Before:

        %0 = mpmd.transfer %p : (!a) -> !b
        %1 = mpmd.transfer %p : (!a) -> !b
        return %0, %1 : !b, !b

    After:

        %0 = mpmd.transfer %p : (!a) -> !b
        return %0, %0 : !b, !b
    """

    name = "mpmd-cse"
    summary = "MLIR's common subexpression elimination, with bodies kept shared"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        return run_in_parts(module, _CSE, _is_native, without_common_subexpressions, _eliminate)


def _is_native(function: FuncOp) -> bool:
    """Return whether the only regions at function level are frozen bodies of one block."""
    return len(function.regions[0].blocks) == 1 and all(
        region.frozen and len(region.blocks) == 1 for op in function.body for region in op.regions
    )


def without_common_subexpressions(body: Region) -> Region:
    """Return a plain body of which the ops are gone that compute what another does; the same one if none does.

    Ops that were unused are gone, too, but not those that only they used.
    """
    search = _Search(body.block)
    return search.copy(body) if search.found else body


def _eliminate(function: FuncOp) -> bool:
    search = _Search(function.body)  # equal fragments are those whose bodies were equal before
    replace_bodies(function.regions[0], lambda body: result_of(body, _CSE))
    search.erase()
    return bool(search.found)


class _Search:
    """What `cse` does to the ops of a block and those nested in them, found without changing anything.

    Values in nested regions may be replaced by values from outside, not the other way round.  What is found
    keeps what it uses alive, because producers are visited before their users.
    """

    def __init__(self, block: Block) -> None:
        #: Ops that go, each with the op that takes its place (None: it was unused).
        self.found: dict[Op, Op | None] = {}
        self._instead: dict[Value, Value] = {}
        #: The visible ops by what they have in common, those of outer blocks first, and the keys in the same order.
        self._known: dict[Hashable, list[Op]] = {}
        self._keys: list[Hashable] = []
        self._visit(block)

    def erase(self) -> None:
        """Replace and erase what was found."""
        for op, first in self.found.items():
            if first is not None:
                op.replace_all_uses_with(first.results)
                if first.loc is UNKNOWN:
                    first.loc = op.loc
        for op in self.found:
            op.erase()

    def copy(self, region: Region) -> Region:
        """Return a frozen copy of the region of the block without what was found."""
        mapping: dict[Value, Value] = {}
        copies: dict[Op, Op] = {}

        def copied(region: Region) -> Region:
            block = Block()
            for arg in region.block.args:
                mapping[arg] = block.add_arg(arg.type, loc=arg.loc)
            for op in region.block:
                if op not in self.found:
                    if op.regions:
                        regions = [copied(nested) for nested in op.regions]
                        new = op_like(op, [mapping.get(v, v) for v in op.operands], regions=regions)
                        mapping.update(zip(op.results, new.results, strict=True))
                    else:
                        new = op.clone(mapping)
                    copies[op] = block.append(new)
                    continue
                first = self.found[op]
                if first is not None:
                    mapping.update({r: mapping[f] for r, f in zip(op.results, first.results, strict=True)})
                    if copies[first].loc is UNKNOWN:
                        copies[first].loc = op.loc
            return Region([block])

        return freeze(copied(region))

    def _visit(self, block: Block) -> bool:
        """Look for what goes in the block; whether all of its ops are removable."""
        outside = len(self._keys)
        whole = True
        for op in block:
            inside = True
            for region in op.regions:
                inside = (region_is_removable(region) if region.frozen else self._visit(region.block)) and inside
            removable = inside and is_removable_alone(op)
            whole = whole and removable
            if op.is_terminator or not removable:
                continue
            if not op.has_uses:
                self.found[op] = None
            else:
                first = self._first_like(op)
                if first is not op:
                    self.found[op] = first
                    self._instead.update(zip(op.results, first.results, strict=True))
        while len(self._keys) > outside:
            self._known[self._keys.pop()].pop()
        return whole

    def _first_like(self, op: Op) -> Op:
        """Return the visible op that computes the same; `op` itself, which becomes known, if there is none."""
        key: Hashable = (op.name, *self._operands(op)) if op.operand_uses else (op.name, op.props.get("value"))
        visible = self._known.setdefault(key, [])
        for other in visible:
            if _agree(op, other) and all(map(self._equal, other.regions, op.regions)):
                return other
        visible.append(op)
        self._keys.append(key)
        return op

    def _operands(self, op: Op) -> list[Value]:
        if not self._instead:
            return op.operands
        return [self._instead.get(value, value) for value in op.operands]

    def _equal(self, a: Region, b: Region) -> bool:
        """Return whether `cse` takes two regions for equal."""
        if a is b:
            return True
        if a.frozen:
            late = _equal_before(a, b)
            early = fingerprint(result_of(a, _CSE)) == fingerprint(result_of(b, _CSE))
        else:
            late = self._shape(a, {}) == self._shape(b, {})
            early = self._shape(a, {}, left=True) == self._shape(b, {}, left=True)
        return late if late == early else early == _erases_at_once()

    def _shape(self, region: Region, numbers: dict[Value, int], *, left: bool = False) -> list[object]:
        """Return what equal regions share: values of their own count by number, those from outside as they are.

        `left`: without the ops that go.
        """
        shape: list[object] = [[arg.type for arg in region.block.args]]
        for arg in region.block.args:
            numbers[arg] = len(numbers)
        for op in region.block:
            if left and op in self.found:
                continue
            operands = [numbers.get(v, v) for v in self._operands(op)]
            inside = [self._shape(nested, numbers, left=left) for nested in op.regions]
            shape.append((op.name, operands, [r.type for r in op.results], op.props, op.attrs, inside))
            for result in op.results:
                numbers[result] = len(numbers)
        return shape


def _equal_before(a: Region, b: Region) -> bool:
    """Return whether two frozen bodies are equal with every op still in place, but uses already redirected."""
    if is_plain(a) and is_plain(b):
        return _Search(a.block)._shape(a, {}) == _Search(b.block)._shape(b, {})
    return fingerprint(a) == fingerprint(b)


@functools.cache
def _erases_at_once() -> bool:
    """Return whether the installed `cse` erases what it finds before it compares the ops around it.

    In jaxlib 0.10 it erases in the end, in 0.12 at once.
    """
    after, _ = run_pipeline(_PROBE, "builtin.module(cse)")
    return after.count("stablehlo.if") == 1


#: Two ops that differ in an unused op.
_PROBE = """"builtin.module"() ({
  "func.func"() <{function_type = (tensor<i1>) -> (tensor<i1>, tensor<i1>), sym_name = "f"}> ({
  ^bb0(%p: tensor<i1>):
    %0 = "stablehlo.if"(%p) ({
      %2 = "stablehlo.not"(%p) : (tensor<i1>) -> tensor<i1>
      "stablehlo.return"(%p) : (tensor<i1>) -> ()
    }, {
      "stablehlo.return"(%p) : (tensor<i1>) -> ()
    }) : (tensor<i1>) -> tensor<i1>
    %1 = "stablehlo.if"(%p) ({
      "stablehlo.return"(%p) : (tensor<i1>) -> ()
    }, {
      "stablehlo.return"(%p) : (tensor<i1>) -> ()
    }) : (tensor<i1>) -> tensor<i1>
    "func.return"(%0, %1) : (tensor<i1>, tensor<i1>) -> ()
  }) : () -> ()
}) : () -> ()
"""


def _agree(a: Op, b: Op) -> bool:
    """Return whether two ops of one name have equal attributes, types and numbers of regions and blocks."""
    return (
        a.props == b.props
        and a.attrs == b.attrs
        and [r.type for r in a.results] == [r.type for r in b.results]
        and [(r.frozen, len(r.blocks)) for r in a.regions] == [(r.frozen, len(r.blocks)) for r in b.regions]
    )
