"""What a device of a mesh holds at its peak, before XLA compiles anything: values, without scratch memory."""

from __future__ import annotations

from collections.abc import Mapping

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.ops import FuncOp
from mpmd_trace.ir.shardings import byte_size
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.sharding.edges import ValueShardings

__all__ = ["held_bytes"]


def held_bytes(function: FuncOp, mesh: str, meshes: Mapping[str, MeshAttr]) -> float:
    """The bytes of one device at the peak: arguments stay, other values live until their last use."""
    shardings = ValueShardings(function)

    def size(value: Value) -> float:
        type = value.type
        if not isinstance(type, MeshTensorType) or type.mesh != mesh or type.on_host:
            return 0.0
        sharding = shardings.of(value)
        try:
            return byte_size(type if sharding is None else type.with_sharding(sharding), dict(meshes))
        except ValueError:
            return 0.0

    live = sum(map(size, function.args))
    last: dict[Op, list[Value]] = {}
    for op in function.body:
        for result in op.results:
            users = result.distinct_users
            end = max(users, key=_Position, default=op)
            last.setdefault(end, []).append(result)
    peak = live
    for op in function.body:
        live += sum(map(size, op.results))
        peak = max(peak, live)
        live -= sum(map(size, last.get(op, ())))
    return peak


class _Position:
    """Compares ops of a block by their order."""

    def __init__(self, op: Op) -> None:
        self.op = op

    def __lt__(self, other: _Position) -> bool:
        return self.op.is_before(other.op)

    def __gt__(self, other: _Position) -> bool:
        return other.op.is_before(self.op)
