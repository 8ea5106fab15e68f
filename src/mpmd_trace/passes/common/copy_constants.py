"""`mpmd-copy-constants`: fragments compute constants themselves instead of receiving them."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from mpmd_trace.ir.bodies import remembered, remembers
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.ir.semantics import is_constant_like
from mpmd_trace.passes.base import FunctionPass


@dataclasses.dataclass(frozen=True)
class CopyConstants(FunctionPass):
    """Copy constants that a fragment returns into the fragments that read them, also through transfers.

    Fragments are visited from the last to the first, and their operands in order. If an operand is, through transfers,
    a constant that another fragment returns, a copy of the constant at the front of the body replaces the argument.
    `mpmd-fragment-dce` removes operands and results that have become unused. With {apart}, only scalars are copied, and
    only into inferred fragments, so that those of all meshes contain them.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> () () {
          %c = stablehlo.constant dense<1.0> : !t
          mpmd.return %c : !t
        } : () -> !a
        %1 = mpmd.transfer %0 : (!a) -> !b
        %2 = mpmd.fragment<mesh="b", origin=["g"]> (%1) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!b) -> !b
        return %2 : !b

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> () () {
          %cst = stablehlo.constant dense<1.000000e+00> : !t
          mpmd.return %cst : !t
        } : () -> !a
        %1 = mpmd.transfer %0 : (!a) -> !b
        %2 = mpmd.fragment<mesh="b", origin=["g"]> (%1) (%u: !t) {
          %cst = stablehlo.constant dense<1.000000e+00> : !t
          %3 = stablehlo.negate %cst : !t
          mpmd.return %3 : !t
        } : (!b) -> !b
        return %2 : !b
    """

    name = "mpmd-copy-constants"
    summary = "copy constants into the fragments that use them"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        known = _constants(function)
        changed = False
        for fragment in reversed(function.body):
            if isinstance(fragment, FragmentOp) and not known.keys().isdisjoint(fragment.operands):
                count = len(fragment.body.block.args)
                constants = [(i, known[value]) for i, value in enumerate(fragment.operands[:count]) if value in known]
                if constants:
                    fragment.body = _with_constants(fragment.body, constants)
                    changed = True
        return changed


def _constants(function: FuncOp) -> dict[Value, Op]:
    """Return the constants that fragments return, by the results, and by the transfers of these."""
    known: dict[Value, Op] = {}
    for op in function.body:
        if isinstance(op, FragmentOp):
            known.update((op.results[i], constant) for i, constant in _returned_constants(op.body))
    pending = list(known)
    for value in pending:
        for user in value.users:
            if isinstance(user, TransferOp):
                known[user.results[0]] = known[value]
                pending.append(user.results[0])
    return known


@remembers
def _returned_constants(body: Region) -> list[tuple[int, Op]]:
    makers = [value.defining_op for value in body.returned]
    return [(i, op) for i, op in enumerate(makers) if op is not None and is_constant_like(op)]


def _with_constants(body: Region, constants: list[tuple[int, Op]]) -> Region:
    """Return the body with these constants in front, each used instead of the argument of that number."""

    def make() -> Region:
        copy = body.clone()
        for i, op in constants:
            constant = op.clone()
            copy.block.insert_front(constant)
            copy.block.args[i].replace_all_uses_with(constant.result)
        return freeze(copy)

    return remembered(body, ("constants", tuple((i, _identity(op)) for i, op in constants)), make)


def _identity(op: Op) -> Hashable:
    """Return what makes two constants equal."""
    return (
        op.name,
        op.result.type,
        tuple(sorted(op.props.items(), key=lambda item: item[0])),
        tuple(sorted(op.attrs.items(), key=lambda item: item[0])),
    )
