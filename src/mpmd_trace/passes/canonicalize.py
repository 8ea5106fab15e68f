"""Canonicalization that keeps bodies shared: what MLIR's `canonicalize` does.

Functions that hold only ops of the mpmd dialect are rewritten here, and each distinct body goes through
MLIR once.  Functions with other ops at the top level go through MLIR as a whole.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from mpmd_trace.diagnostics.location import UNKNOWN
from mpmd_trace.ir.bodies import remembers, replace_bodies
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import OFFLOADED, FragmentOp, FuncOp, Module, ReduceOp
from mpmd_trace.ir.semantics import is_constant_like, trivially_dead
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.constants import constant_key, constants_stay
from mpmd_trace.passes.greedy import Choices, Rewriter, apply_greedily, rewrites, walk_mutable
from mpmd_trace.passes.mlir_parts import result_of, run_in_parts
from mpmd_trace.passes.stablehlo.rules import New, Rule, any_value, made_by
from mpmd_trace.passes.trivially_canonical import as_read

PIPELINE = (
    "canonicalize{max-iterations=10 max-num-rewrites=-1 region-simplify=disabled test-convergence=false top-down=false}"
)


class Canonicalize(Pass):
    """Canonicalize: remove dead ops, transfers to the same type, and results that are operands.

    As MLIR's `canonicalize`, the pass rewrites greedily from the bottom, with unique constants, and visits each
    distinct body once. If a fragment or loop returns an operand of the same type, users of the result read the operand.

    Before:

        %0 = mpmd.transfer %p : (!a) -> !a
        %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%0) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %u, %v : !t, !t
        } : (!a) -> (!a, !a)
        return %1#0, %1#1 : !a, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %1 = stablehlo.negate %u : !t
          mpmd.return %u, %1 : !t, !t
        } : (!a) -> (!a, !a)
        return %p, %0#1 : !a, !a
    """

    name = "mpmd-canonicalize"
    summary = "MLIR's canonicalization, with bodies kept shared"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        return run_in_parts(module, PIPELINE, _is_native, canonical_body, _canonicalize)


def _canonicalize(function: FuncOp) -> bool:
    replace_bodies(function.regions[0], lambda body: result_of(body, PIPELINE))
    has_constants = any(map(is_constant_like, walk_mutable(function.regions[0])))
    return apply_greedily(function, _RULES, unique_constants=has_constants).changed or has_constants


def _is_native(function: FuncOp) -> bool:
    for region in function.regions:
        for op in walk_mutable(region):
            if not (op.name.startswith("mpmd.") or op.name == "func.return" or is_constant_like(op)):
                return False
    return True


def canonical_body(body: Region) -> Region:
    """Return a plain body without dead ops and with equal constants once, at the front; the same one if it is so."""
    if constants_stay(body) and not any(map(trivially_dead, body.walk())):
        return body
    copy = body.clone()
    at: dict[Hashable, set[Op | None]] = {}
    for op in copy.walk():
        if is_constant_like(op):
            at.setdefault(constant_key(op), set()).add(op if op.block is copy.block else None)
    apply_greedily(copy, (), unique_constants=True)
    for op in copy.block:
        if is_constant_like(op) and at[constant_key(op)] != {op}:
            op.loc = UNKNOWN  # it stands for several, or for one in a nested region
    return as_read(copy)


@rewrites("mpmd.fragment")
def _bypass(op: Op, rewriter: Rewriter) -> bool:
    """Replace each result that is an argument of the body by its operand.

    Only one result per argument: the first use of the argument by the terminator, in use order.
    """
    assert isinstance(op, FragmentOp)
    changed = False
    for arg, at in _forwarded(op.body):
        result, operand = op.results[at], op.operand(arg)
        if result.has_uses and result.type is operand.type:
            rewriter.replace_all_uses(result, operand)
            changed = True
    return changed


@remembers
def _forwarded(body: Region) -> list[tuple[int, int]]:
    """Return the arguments that the body returns, each with the position that counts."""
    terminator = body.block.terminator
    result = []
    for arg in body.block.args:
        use = next((use for use in arg.uses if use.owner is terminator), None)
        if use is not None:
            result.append((arg.index, use.index))
    return result


def _is_within_mesh(inner: Op, op: Op) -> bool:
    """Return whether two transfers stay on one mesh, so that they are one (but for those of `mpmd-fit-memory`)."""
    types = (inner.operand(0).type, inner.result.type, op.result.type)
    return OFFLOADED not in inner.attrs and len({t.mesh for t in types if isinstance(t, MeshTensorType)}) == 1


def _one_transfer(op: Op, value: Value) -> New | None:
    inner = cast(Op, value.defining_op)
    return New("mpmd.transfer", [inner.operand(0)], keep_attrs=False) if _is_within_mesh(inner, op) else None


def _one_broadcast(op: Op, value: Value) -> New:
    return New("mpmd.broadcast", cast(Op, value.defining_op).operands, keep_attrs=False)


def _same_reduce(op: Op, value: Value, *others: Value) -> Value | None:
    """Return the inner reduce if it is of the same kind; further operands are dropped."""
    kinds = cast(ReduceOp, op).kind, cast(ReduceOp, value.defining_op).kind
    return value if kinds[0] in ("none", kinds[1]) else None


_RULES = Choices(
    [
        _bypass,
        Rule("mpmd.transfer", (made_by("mpmd.transfer"),), _one_transfer),
        Rule("mpmd.transfer", (any_value,), lambda op, value: value if value.type is op.result.type else None),
        Rule("mpmd.broadcast", (made_by("mpmd.broadcast"),), _one_broadcast),
        Rule("mpmd.reduce", (made_by("mpmd.reduce"),), _same_reduce),
    ]
)
