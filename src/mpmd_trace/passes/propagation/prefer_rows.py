"""`mpmd-prefer-rows` (ours): where rows and weights are sharded over one axis, activations are sharded by rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mpmd_trace.ir.attributes import DictAttr
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.ir.shardings import sharding_like
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.fragment_info import is_of_microbatch, transpose_counts
from mpmd_trace.passes.hoisting.value_numbering import SLICES, are_of_several
from mpmd_trace.passes.sharding.edges import SHARDING, user_sharding


class PreferRows(FunctionPass):
    """Propagate the sharding of the batch before other shardings over the same axes, which get priority 1.

    If the rows of a batch and the columns of a weight are sharded over the same axis, as in FSDP, Shardy may choose
    either for the result of their product. Sharded columns need the rows of all devices in each microbatch; sharded
    rows need the weight, which is gathered once per step. The batch consists of the arguments of which the forward of
    each microbatch reads a slice, or one of its own.

    Before:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%w: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>},
            %p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%v: !t) {
            %1 = stablehlo.negate %v : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          %1 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%0, %w) {call_counter = 0 : ui32} (%v: !t, %u: !t) {
            %1 = stablehlo.add %u, %v : !t
            mpmd.return %1 : !t
          } : (!a, !a) -> !a
          return %1 : !a
        }

    After:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%w: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p1]>},
            %p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%v: !t) {
            %1 = stablehlo.negate %v : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          %1 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%0, %w) {call_counter = 0 : ui32} (%v: !t, %u: !t) {
            %1 = stablehlo.add %u, %v : !t
            mpmd.return %1 : !t
          } : (!a, !a) -> !a
          return %1 : !a
        }
    """

    name = "mpmd-prefer-rows"
    summary = "propagate the axes of a batch before those of weights"
    only_with = ("shardings",)
    mpmd_only = True
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        arguments, results = function.arg_attrs, function.res_attrs
        shardings = [user_sharding(attributes) for attributes in arguments]
        if not any(shardings):
            return False
        known: dict[Value, bool] = {}
        for op in reversed(function.body.ops):
            if _hands_on(op):
                known.update((result, _is_batch(result, known)) for result in op.results)
        rows = [_is_batch(arg, known) for arg in function.args]
        axes = {axis.name for i, one in enumerate(shardings) if one is not None and rows[i] for axis in one.all_axes}
        if not axes:
            return False
        function.set_all_arg_attrs(
            [attributes if rows[i] else _later(attributes, axes) for i, attributes in enumerate(arguments)]
        )
        function.set_all_res_attrs([_later(attributes, axes) for attributes in results])
        return function.arg_attrs != arguments or function.res_attrs != results


def _hands_on(op: Op) -> bool:
    return isinstance(op, TransferOp) or (isinstance(op, FragmentOp) and not is_of_microbatch(op))


def _is_batch(value: Value, known: Mapping[Value, bool]) -> bool:
    """Return whether microbatches read slices of the value, or one of them reads all of it in its forward.

    `known`: the same of the values that are made of it.
    """
    whole: list[FragmentOp] = []
    for use in value.uses:
        op = use.owner
        if isinstance(op, FragmentOp) and is_of_microbatch(op):
            users = op.body.block.args[use.index].users
            if users and all(user.name in SLICES and user.block is op.body.block for user in users):
                return True
            whole.append(op)
        elif _hands_on(op) and any(known[result] for result in op.results):
            return True
    return any(0 in transpose_counts(op) for op in whole) and not are_of_several(whole)


def _later(attributes: DictAttr, axes: Collection[str]) -> DictAttr:
    """Return the attributes with a priority for the dimensions that are sharded over one of the axes."""
    sharding = user_sharding(attributes)
    if sharding is None:
        return attributes
    dims = [
        f"{dim}p1" if dim.endswith("}") and any(axis.name in axes for axis in sharding.dim_axes(i)) else dim
        for i, dim in enumerate(sharding.dims)
    ]
    return attributes.with_(SHARDING, sharding_like(sharding, dims=dims))
