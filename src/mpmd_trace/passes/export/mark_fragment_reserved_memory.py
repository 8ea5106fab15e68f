"""`mpmd-mark-fragment-reserved-memory`: the memory that a fragment must leave to others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpmd_trace.ir.attributes import ArrayAttr, Attribute, IntegerAttr, MeshAttr
from mpmd_trace.ir.core import Op, OpResult, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.ir.shardings import byte_size, mesh_symbols
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.export.mark_aliasing_and_donation import DONOR
from mpmd_trace.passes.export.value_attrs import MEMORY_KIND, PINNED_HOST, is_pinned_host, mentions, value_dicts


class MarkFragmentReservedMemory(FunctionPass):
    """Set `reserved_hbm_bytes`, the bytes of other values on the mesh of a fragment when it starts.

    Arguments are live from the start to their last use, or to the end if they are not donated; used results of
    fragments and transfers are live until the last op that reads them. Values in host memory and the fragment's own
    operands do not count. Sizes are per device.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["g"]> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %0, %1 : !a, !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {reserved_hbm_bytes = 0 : i64} (%u: !t) {
          %2 = stablehlo.negate %u : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["g"]> (%p) {reserved_hbm_bytes = 16 : i64} (%u: !t) {
          %2 = stablehlo.sine %u : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %0, %1 : !a, !a
    """

    name = "mpmd-mark-fragment-reserved-memory"
    summary = "record the bytes of other live buffers on each fragment"
    mpmd_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        count = _Count(function, mesh_symbols(module), diagnostics)
        terminator = function.body.terminator
        for op in function.body:
            if isinstance(op, FragmentOp) or isinstance(op, TransferOp):  # noqa: SIM101 (a tuple takes longer)
                count.run(op)
            elif op is not terminator:
                diagnostics.refuse(
                    op,
                    f"'{op.name}' cannot be here when memory is counted: at this point the functions of a program "
                    "consist of fragments, transfers and a return; run the import and optimize phases first",
                )
        return True


class _Count:
    """The bytes that are live on each mesh, while the program is walked in order."""

    def __init__(self, function: FuncOp, symbols: dict[str, MeshAttr], diagnostics: Diagnostics) -> None:
        self.symbols = symbols
        #: Per type the mesh and the bytes on each of its devices; no mesh for tokens.
        self.places: dict[Type, tuple[str | None, float]] = {}
        #: For values of these types together, the bytes; sums of bytes are exact in any order.
        self.sums: dict[tuple[Type, ...], float] = {}
        self.attributes: dict[float, IntegerAttr] = {}
        self.diagnostics = diagnostics
        self.function = function
        topology = function.topology
        self.live: dict[str, float] = dict.fromkeys(topology.meshes if topology else (), 0.0)
        kept: set[Value] = set()
        for arg, attributes in zip(function.args, function.arg_attrs, strict=True):
            donor = attributes.entries.get(DONOR)
            donated = donor is not None and donor.text == "true"
            if not donated:  # the caller keeps it
                kept.add(arg)
            if not is_pinned_host(attributes) and (arg.has_uses or not donated):
                self.add([arg], 1)
        self.last_read = _last_read(function, kept)

    def place(self, value: Value) -> tuple[str | None, float]:
        """Return where a value of this type is, and its size there; remembered, since it is asked for every value."""
        type = value.type
        size = 0.0
        if isinstance(type, MeshTensorType):
            try:
                size = byte_size(type, self.symbols)
                if type.tensor.element == "i1":  # which the reference counts as a bit; XLA gives it a byte
                    size /= 8
            except ValueError as error:
                self.diagnostics.refuse(value, f"cannot count the memory of a value of type {type}: {error}")
        result = self.places[type] = (type.mesh if isinstance(type, MeshTensorType) else None, size)
        return result

    def bytes(self, values: Sequence[Value]) -> float:
        """Return the bytes of the values together, on their meshes."""
        types = tuple([value.type for value in values])
        result = self.sums.get(types)
        if result is None:
            places = [self.places.get(value.type) or self.place(value) for value in values]
            result = self.sums[types] = sum([size for mesh, size in places if mesh is not None])
        return result

    def add(self, values: Sequence[Value], sign: int) -> None:
        for value in values:
            mesh, size = self.places.get(value.type) or self.place(value)
            if mesh is not None:
                self.live[mesh] = self.live.get(mesh, 0.0) + sign * size

    def run(self, op: FragmentOp | TransferOp) -> None:
        dying: Sequence[Value] = self.last_read.get(op, ())
        if isinstance(op, FragmentOp):
            operands = [use.value for use in op.operand_uses]
            if _on_host(op.attrs.get("arg_attrs")):
                pairs = zip(operands, value_dicts(op, "arg_attrs") or (), strict=False)
                operands = [v for v, d in pairs if not is_pinned_host(d)]
                dying = [value for value in dying if value in operands]
            if len(set(operands)) < len(operands):
                operands = list(dict.fromkeys(operands))
            reserved = self.live.get(op.mesh, 0.0) - self.bytes(operands)
            attribute = self.attributes.get(reserved)
            if attribute is None:
                attribute = self.attributes[reserved] = IntegerAttr.get(math.ceil(reserved), "i64")
            op.attrs["reserved_hbm_bytes"] = attribute
        if dying:
            self.add(dying, -1)
        born: list[OpResult] = []
        for result in op.results:
            if result.first_use is not None:
                born.append(result)
        if _on_host(op.attrs.get("res_attrs")):
            dicts = value_dicts(op, "res_attrs") or ()
            born = [result for result in born if not is_pinned_host(dicts[result.index])]
        self.add(born, 1)


def _on_host(attributes: Attribute | None) -> bool:
    """Return whether something is in host memory, of what these are the attributes."""
    return isinstance(attributes, ArrayAttr) and mentions(attributes, MEMORY_KIND, PINNED_HOST)


def _last_read(function: FuncOp, kept: set[Value]) -> dict[Op, list[Value]]:
    """Per op the values that are not read later, without those that are `kept`."""
    result: dict[Op, list[Value]] = {}
    seen = kept
    for op in reversed(function.body):
        dying = []
        for use in op.operand_uses:
            value = use.value
            if value not in seen:
                seen.add(value)
                dying.append(value)
        if dying:
            result[op] = dying
    return result
