"""`mpmd-delay-constants` (ours): a pipeline does not begin with constants that are needed later."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, before_transfers, make_fragment
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.shardings import byte_size, mesh_symbols
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.block_order import in_block_order
from mpmd_trace.passes.common.body_rewrites import prune


@dataclasses.dataclass(frozen=True)
class DelayConstants(FunctionPass):
    """Large constants are not made in front of a computation that could begin and does not need them.

    The first mesh of a pipeline needs the index of a microbatch to begin, and zeros as large as its parameters when its
    first backward comes, for which it waits anyway; all other meshes wait for it.  What is needed later becomes a
    fragment of its own in front of its first user.  Where the first user waits for what another mesh computes, all
    stays together: there constants are made meanwhile.

    Before, with {least=16}:

        %0:2 = mpmd.fragment<mesh="a", origin=[]> () () {
          %c = stablehlo.constant dense<0> : tensor<i32>
          %z = stablehlo.constant dense<0.0> : !t
          mpmd.return %c, %z : tensor<i32>, !t
        } : () -> (!mpmd.mesh_tensor<"a", tensor<i32>>, !a)
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %0#0) (%u: !t, %i: tensor<i32>) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a, !mpmd.mesh_tensor<"a", tensor<i32>>) -> !a
        %2 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%1, %0#1) (%u: !t, %z: !t) {
          %v = stablehlo.add %z, %u : !t
          mpmd.return %v : !t
        } : (!a, !a) -> !a
        return %2 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=[]> () () {
          %c = stablehlo.constant dense<0> : tensor<i32>
          mpmd.return %c : tensor<i32>
        } : () -> !mpmd.mesh_tensor<"a", tensor<i32>>
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %0) (%u: !t, %i: tensor<i32>) {
          %4 = stablehlo.sine %u : !t
          mpmd.return %4 : !t
        } : (!a, !mpmd.mesh_tensor<"a", tensor<i32>>) -> !a
        %2 = mpmd.fragment<mesh="a", origin=[]> () () {
          %cst = stablehlo.constant dense<0.000000e+00> : !t
          mpmd.return %cst : !t
        } : () -> !a
        %3 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%1, %2) (%u: !t, %z: !t) {
          %4 = stablehlo.add %z, %u : !t
          mpmd.return %4 : !t
        } : (!a, !a) -> !a
        return %3 : !a
    """

    name = "mpmd-delay-constants"
    summary = "create large constants when they are needed, on meshes that can start without them"
    mpmd_only = True
    entry_only = True

    least: int = option(1 << 20, "the smallest size on a device in bytes that is worth an additional program")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        symbols = mesh_symbols(module)
        constants = [op for op in function.body if isinstance(op, FragmentOp) and not op.num_operands and is_pure(op)]
        delayed = [self._delay(op, symbols) for op in constants if not op.is_user]
        return any(delayed)

    def _delay(self, op: FragmentOp, symbols: dict[str, MeshAttr]) -> bool:
        first = _first_user(op.results)
        if not isinstance(first, FragmentOp) or any(_comes_from_elsewhere(value) for value in first.operands):
            return False
        sizes = [_size(result, symbols) for result in op.results]
        late = [first not in result.users and size > 0 for result, size in zip(op.results, sizes, strict=True)]
        if sum(itertools.compress(sizes, late)) < self.least:
            return False
        for kept in ([not is_late for is_late in late], late):
            results = list(itertools.compress(op.results, kept))
            body = prune(op.body, tuple(kept))[0]
            types = [result.type for result in results]
            made = make_fragment(op.mesh, [], types, body, origin=(), stage=op.stage, attrs=op.attrs, loc=op.loc)
            user = _first_user(results)
            assert user is not None
            made.move_before(user)
            for old, new in zip(results, made.results, strict=True):
                old.replace_all_uses_with(new)
        op.erase()
        return True


def _first_user(values: Sequence[Value]) -> Op | None:
    users = dict.fromkeys(user for value in values for user in value.users)
    return next(iter(in_block_order(users)), None)


def _comes_from_elsewhere(value: Value) -> bool:
    """Return whether another mesh computes the value; an argument that is sent is soon there."""
    sent = before_transfers(value)
    return sent is not value and sent.defining_op is not None


def _size(value: Value, symbols: dict[str, MeshAttr]) -> float:
    """Return the bytes of an array on a device; 0 for scalars, which may as well be made with the others."""
    if not isinstance(value.type, MeshTensorType) or value.type.tensor.is_scalar or not value.has_uses:
        return 0
    return byte_size(value.type, symbols)
