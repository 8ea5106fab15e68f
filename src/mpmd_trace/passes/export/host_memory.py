"""Which results of a body are in host memory: follows values back to placement annotations."""

from __future__ import annotations

from mpmd_trace.ir.attributes import Attribute, DictAttr, StringAttr, SymbolRefAttr
from mpmd_trace.ir.core import Op, OpResult, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.types import TensorType, Type

__all__ = ["HostMemory"]

_FORWARDING_CALLS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})


class HostMemory:
    """Answers for the bodies of one module; every distinct body is looked at once."""

    def __init__(self, module: Module, diagnostics: Diagnostics) -> None:
        self._module = module
        self._diagnostics = diagnostics
        self._known: dict[Region, tuple[int, ...]] = {}

    def host_results(self, body: Region) -> tuple[int, ...]:
        """Return the numbers of the returned values that are in pinned host memory."""
        if body not in self._known:
            self._known[body] = tuple(k for k, value in enumerate(body.returned) if self._in_host_memory(value))
        return self._known[body]

    def _in_host_memory(self, value: Value) -> bool:
        current: Value | None = value
        while isinstance(current, OpResult):
            op = current.op
            frontend = op.attrs.get("mhlo.frontend_attributes")
            entries = frontend.entries if isinstance(frontend, DictAttr) else {}
            if "_xla_compute_type" in entries:
                return _text(entries["_xla_compute_type"]) == "host"
            if _call_target(op) == "annotate_device_placement":
                if "_xla_buffer_placement" not in entries:
                    raise self._diagnostics.fatal(
                        op,
                        "the custom call 'annotate_device_placement' has no '_xla_buffer_placement' in its "
                        "mhlo.frontend_attributes, so it does not say where its result lives; add "
                        '"device" or "pinned_host"',
                    )
                return _text(entries["_xla_buffer_placement"]) == "pinned_host"
            current = self._source(current, op)
        return False

    def _source(self, value: OpResult, op: Op) -> Value | None:
        """Return the value whose memory decides, for ops that do not move data between memories."""
        if op.name == "stablehlo.optimization_barrier":
            return op.operand(value.index)
        if op.name == "stablehlo.while":
            return op.regions[1].block.terminator.operand(value.index)
        if op.name == "stablehlo.dynamic_update_slice":
            return op.operand(1)
        if op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
            same = _squeezed(op.operand(0).type) == _squeezed(value.type)
            return op.operand(0) if same else None
        if _call_target(op) in _FORWARDING_CALLS:
            return op.operand(0)
        if op.name == "func.call":
            callee = op.attr("callee")
            function = self._module.lookup(callee.name) if isinstance(callee, SymbolRefAttr) else None
            if function is not None and not function.is_declaration:
                return function.body.terminator.operand(value.index)
        return None


def _text(attribute: Attribute) -> str | None:
    return attribute.value if isinstance(attribute, StringAttr) else None


def _call_target(op: Op) -> str | None:
    target = op.attr("call_target_name") if op.name == "stablehlo.custom_call" else None
    return None if target is None else _text(target)


def _squeezed(type: Type) -> tuple[int, ...] | None:
    if not isinstance(type, TensorType) or type.shape is None:
        return None
    return tuple(size for size in type.shape if size != 1)
