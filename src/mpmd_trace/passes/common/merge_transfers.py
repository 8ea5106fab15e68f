"""`mpmd-merge-transfers`: scalars between the same two fragments travel together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mpmd_trace.ir.attributes import UNIT, Attribute, DenseArrayAttr, IntegerAttr
from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp, make_transfer
from mpmd_trace.ir.types import MeshTensorType, TensorType, Type, mesh_tensor, tensor
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.body_rewrites import cover_transferred_results, replace_op

_MARK = "concat_transfer"


class MergeTransfers(FunctionPass):
    """Transfer scalars of one type that a fragment sends to another as one array.

    Results of a fragment that have one element, no sharding, are not in host memory, and are transferred to a fragment
    are grouped by type and by that fragment. For a group of several, the producer returns their concatenation as an
    additional result, a transfer marked `concat_transfer` follows it directly, and the consumer slices the array at the
    start of its body. The old transfers, operands and arguments become unused, but are not removed.

    Before:

        !s = !mpmd.mesh_tensor<"a", tensor<f32>>
        !r = !mpmd.mesh_tensor<"b", tensor<f32>>
        !s2 = !mpmd.mesh_tensor<"a", tensor<2xf32>>
        !r2 = !mpmd.mesh_tensor<"b", tensor<2xf32>>
        func.func public @main(%p: !s) -> !r attributes {topology = #meshes} {
          %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: tensor<f32>) {
            %v = stablehlo.negate %u : tensor<f32>
            mpmd.return %u, %v : tensor<f32>, tensor<f32>
          } : (!s) -> (!s, !s)
          %1 = mpmd.transfer %0#0 : (!s) -> !r
          %2 = mpmd.transfer %0#1 : (!s) -> !r
          %3 = mpmd.fragment<mesh="b", origin=["g"]> (%1, %2) (%u: tensor<f32>, %v: tensor<f32>) {
            %w = stablehlo.add %u, %v : tensor<f32>
            mpmd.return %w : tensor<f32>
          } : (!r, !r) -> !r
          return %3 : !r
        }

    After:

        !s = !mpmd.mesh_tensor<"a", tensor<f32>>
        !r = !mpmd.mesh_tensor<"b", tensor<f32>>
        !s2 = !mpmd.mesh_tensor<"a", tensor<2xf32>>
        !r2 = !mpmd.mesh_tensor<"b", tensor<2xf32>>
        func.func public @main(%arg0: !s) -> !r attributes {topology = #meshes} {
          %0:3 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0) (%arg1: tensor<f32>) {
            %5 = stablehlo.negate %arg1 : tensor<f32>
            %6 = stablehlo.reshape %arg1 : (tensor<f32>) -> tensor<1xf32>
            %7 = stablehlo.reshape %5 : (tensor<f32>) -> tensor<1xf32>
            %8 = stablehlo.concatenate %6, %7, dim = 0 : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
            mpmd.return %arg1, %5, %8 : tensor<f32>, tensor<f32>, tensor<2xf32>
          } : (!s) -> (!s, !s, !s2)
          %1 = mpmd.transfer {concat_transfer} %0#2 : (!s2) -> !r2
          %2 = mpmd.transfer %0#0 : (!s) -> !r
          %3 = mpmd.transfer %0#1 : (!s) -> !r
          %4 = mpmd.fragment<mesh="b", origin=["g"]> (%2, %3, %1)
              (%arg1: tensor<f32>, %arg2: tensor<f32>, %arg3: tensor<2xf32>) {
            %5 = stablehlo.slice %arg3 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
            %6 = stablehlo.reshape %5 : (tensor<1xf32>) -> tensor<f32>
            %7 = stablehlo.slice %arg3 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
            %8 = stablehlo.reshape %7 : (tensor<1xf32>) -> tensor<f32>
            %9 = stablehlo.add %6, %8 : tensor<f32>
            mpmd.return %9 : tensor<f32>
          } : (!r, !r, !r2) -> !r
          return %4 : !r
        }
    """

    name = "mpmd-merge-transfers"
    summary = "send scalars between the same two fragments in one transfer"
    mpmd_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for producer in [op for op in function.body if isinstance(op, FragmentOp)]:
            for (payload, consumer), indices in _bundles(producer).items():
                if len(indices) > 1:
                    producer = _bundle(producer, payload, consumer, indices)
                    changed = True
        return changed


def _transfers(value: Value) -> list[TransferOp]:
    """Return the plain transfers of the value, in use order."""
    return [u for u in value.users if isinstance(u, TransferOp) and _MARK not in u.attrs]


def _payload(type: Type) -> TensorType | None:
    """Return the ranked type of a value that may be bundled; None for others."""
    if not isinstance(type, MeshTensorType) or type.on_host:
        return None
    if type.sharding is not None and not type.sharding.is_fully_replicated:
        return None
    shape = type.tensor.shape
    if shape is None or any(size < 0 for size in shape) or type.tensor.num_elements > 1:
        return None
    return type.tensor


def _bundles(producer: FragmentOp) -> dict[tuple[TensorType, FragmentOp], list[int]]:
    """Return the results that go to each consumer, by type; in the order in which they are found."""
    results: dict[tuple[TensorType, FragmentOp], list[int]] = {}
    for result in producer.results:
        payload = _payload(result.type)
        if payload is None:
            continue
        for transfer in _transfers(result):
            for consumer in transfer.distinct_users:
                if isinstance(consumer, FragmentOp):
                    results.setdefault((payload, consumer), []).append(result.index)
    return results


def _bundle(producer: FragmentOp, payload: TensorType, consumer: FragmentOp, indices: list[int]) -> FragmentOp:
    """Send these results together; returns the fragment that replaces the producer."""
    stacked = rows_type(payload, len(indices))
    body = _concatenating(producer.body, tuple(indices))
    array = mesh_tensor(producer.mesh, stacked)
    new = replace_op(producer, producer.operands, producer.results, [array], regions=[body])

    transfer = make_transfer(new.results[-1], mesh_tensor(consumer.mesh, stacked), loc=new.loc)
    transfer.attrs[_MARK] = UNIT
    assert new.block is not None
    new.block.insert_after(new, transfer)
    cover_transferred_results(new)

    rows: dict[int, int] = {}  # argument of the consumer -> row of the array
    for row, index in enumerate(indices):
        for old_transfer in _transfers(new.results[index]):
            for use in old_transfer.results[0].uses:
                if use.owner is consumer:
                    rows[use.index] = row
    consumer.append_operands([transfer.result])
    consumer.body = _slicing(consumer.body, tuple(rows.items()), stacked)
    return new


@remembers
def _concatenating(body: Region, indices: tuple[int, ...]) -> Region:
    """Return the body that also returns these of its results in one array."""
    copy = body.clone()
    terminator = copy.block.terminator
    ops = of_rows([terminator.operand(i) for i in indices])
    copy.block.insert_all_before(terminator, ops)
    terminator.append_operands([ops[-1].result])
    return freeze(copy)


@remembers
def _slicing(body: Region, rows: tuple[tuple[int, int], ...], stacked: TensorType) -> Region:
    """Return the body with one more argument, an array whose rows are used instead of other arguments."""
    copy = body.clone()
    block = copy.block
    whole = block.add_arg(stacked)
    first = block.first
    assert first is not None
    for argument, row in rows:
        old = block.args[argument]
        ops = row_of(whole, row, cast(TensorType, old.type))
        block.insert_all_before(first, ops)
        old.replace_all_uses_with(ops[-1].result)
    return freeze(copy)


# Arrays of one type as the rows of one array.


def rows_type(row: TensorType, count: int) -> TensorType:
    """Return the type of an array of so many rows, each of type `row`."""
    assert row.shape is not None
    return tensor((count, *row.shape), row.element, row.encoding)


def of_rows(values: Sequence[Value]) -> list[Op]:
    """Ops, the last of which gives the array with these values of one type as its rows."""
    type = cast(TensorType, values[0].type)
    rows = [make_op("stablehlo.reshape", [value], [rows_type(type, 1)]) for value in values]
    whole = rows_type(type, len(values))
    props: dict[str, Attribute] = {"dimension": IntegerAttr.get(0, "i64")}
    return [*rows, make_op("stablehlo.concatenate", [row.result for row in rows], [whole], props=props)]


def row_of(whole: Value, number: int, type: TensorType) -> list[Op]:
    """Ops, the last of which gives row `number`, of type `type`."""
    assert type.shape is not None
    props: dict[str, Attribute] = {
        "start_indices": DenseArrayAttr.get((number, *[0] * len(type.shape))),
        "limit_indices": DenseArrayAttr.get((number + 1, *type.shape)),
        "strides": DenseArrayAttr.get([1] * (1 + len(type.shape))),
    }
    piece = make_op("stablehlo.slice", [whole], [rows_type(type, 1)], props=props)
    return [piece, make_op("stablehlo.reshape", [piece.result], [type])]
