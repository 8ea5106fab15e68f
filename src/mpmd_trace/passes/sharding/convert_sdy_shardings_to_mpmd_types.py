"""`mpmd-convert-sdy-shardings-to-mpmd-types`: shardings move from attributes into types."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import TensorShardingAttr
from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import ForOp, FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.ir.shardings import equivalent_shardings
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.walks import function_ops
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.sharding.edges import SHARDING, UNSET, ValueShardings, in_sharding, per_value, user_sharding

_KEEP = frozenset({"stablehlo.send", "stablehlo.recv"})


@dataclasses.dataclass(frozen=True)
class ConvertSdyShardingsToMpmdTypes(FunctionPass):
    """Move shardings from `sdy.sharding`, `in_shardings` and `out_shardings` into types.

    If several ops give a value a sharding, the last one in the program counts; for arguments of the function, their own
    attribute counts. Shardings of ops inside bodies are removed, except those of `sdy` ops, of sends and receives, and
    in manual computations. A transfer that would reshard is an error.

    Before:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"x"}]>]> (%p) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %0 : !a
        }

    After:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%arg0: !mpmd.mesh_tensor<"a", !t, sharding=<@mesh, [{"x"}]>>) -> !a attributes
            {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0) (%arg1: !t) {
            %1 = stablehlo.negate %arg1 : !t
            mpmd.return %1 : !t
          } : (!mpmd.mesh_tensor<"a", !t, sharding=<@mesh, [{"x"}]>>) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-convert-sdy-shardings-to-mpmd-types"
    summary = "move shardings from attributes into mesh tensor types"

    def always_verifies(self) -> bool:
        return False  # an attribute may shard what cannot be divided, a type must not

    def finish(self, function: FuncOp) -> None:
        """Do what is left, once all types have their shardings."""

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        _convert(function, ValueShardings(function))
        arg_attrs = function.arg_attrs
        for arg, attributes in zip(function.args, arg_attrs, strict=True):
            _type(arg, user_sharding(attributes))
        function.set_all_arg_attrs([d.without(SHARDING) for d in arg_attrs])
        function.set_all_res_attrs([d.without(SHARDING) for d in function.res_attrs])
        function.attrs.pop(SHARDING, None)
        self.finish(function)
        function.refresh_type()
        _check_transfers(function, diagnostics)
        return True


def _type(value: Value, sharding: TensorShardingAttr | None) -> None:
    """Put the sharding into the type of the value; no sharding changes nothing."""
    type = value.type
    if sharding is not None and isinstance(type, MeshTensorType) and type.sharding is not sharding:
        value.type = type.with_sharding(sharding)


def unset_whole(function: FuncOp) -> None:
    """Give whole on each device one spelling, no sharding."""
    values = function.args
    for op in function_ops(function):
        values += op.results
        if isinstance(op, ForOp):
            values += op.body.block.args
    for value in values:
        type = value.type
        if not isinstance(type, MeshTensorType) or type.sharding is None:
            continue
        if type.sharding.is_fully_replicated and not type.sharding.unreduced:
            value.type = type.with_sharding(None)


def _convert(function: FuncOp, shardings: ValueShardings) -> None:
    for op in walk_mutable(function.regions[0]):  # a loop after what is in it, where it says how arguments are sharded
        if isinstance(op, FragmentOp):
            op.body = _without_shardings(op.body)
            for i, operand in enumerate(op.operands if op.in_shardings is not None else ()):
                _type(operand, in_sharding(op, i))
            for result in op.results if op.out_shardings is not None else ():
                _type(result, per_value(op.out_shardings, result.index))
            op.props.pop("in_shardings", None)
            op.props.pop("out_shardings", None)
            op.attrs.pop(UNSET, None)
        else:
            for i, region in enumerate(op.regions):
                if region.frozen:
                    op.regions[i] = _without_shardings(region)
            if isinstance(op, TransferOp):
                _type(op.operand(0), shardings.of(op.operand(0)))
                _type(op.results[0], per_value(op.attrs.get(SHARDING), 0))
            elif isinstance(op, ForOp):
                _convert_loop(op, shardings)
        if op.name not in _KEEP:
            op.attrs.pop(SHARDING, None)


def _convert_loop(op: ForOp, shardings: ValueShardings) -> None:
    for i, operand in enumerate(op.operands):
        sharding = shardings.of(operand)
        _type(operand, sharding)
        _type(op.body.block.args[i], sharding)
    for i, result in enumerate(op.results):
        _type(result, per_value(op.attrs.get(SHARDING), i))


def _without_shardings(body: Region) -> Region:
    return map_ops(body, "drop sdy.sharding", _drop, only=lambda op: SHARDING in op.attrs)


def _drop(region: Region) -> bool:
    changed = False
    for op in region.walk():
        if SHARDING in op.attrs and op.name not in _KEEP:
            del op.attrs[SHARDING]
            changed = True
    return changed


def _check_transfers(function: FuncOp, diagnostics: Diagnostics) -> None:
    good: set[tuple[Type, Type]] = set()
    for op in function.body:
        if not isinstance(op, TransferOp):
            continue
        source, target = op.source_type, op.target_type
        if (source, target) in good:
            continue
        good.add((source, target))
        if not isinstance(source, MeshTensorType) or not isinstance(target, MeshTensorType):
            continue
        a, b = source.sharding, target.sharding
        if a is None or b is None or a.mesh_name != b.mesh_name or equivalent_shardings(a, b):
            continue
        diagnostics.error(
            op,
            f"the transfer from mesh '{source.mesh}' to mesh '{target.mesh}' would change the sharding from "
            f"{a.stripped} to {b.stripped}, but a transfer only copies; run "
            f"mpmd-extract-reshards-from-inter-mesh-transfers before this pass, or give both ends one "
            f"sharding",
        )
        return
