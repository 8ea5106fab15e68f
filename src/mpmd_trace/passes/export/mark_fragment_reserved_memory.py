"""`mpmd-mark-fragment-reserved-memory`: the memory that a fragment must leave to others.

Source: section 4.7 of the specification of the export passes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from ...ir.attributes import IntegerAttr, MeshAttr
from ...ir.core import Op, Value
from ...ir.diagnostics import Diagnostics
from ...ir.ops import FragmentOp, FuncOp, Module, TransferOp
from ...ir.shardings import byte_size, mesh_symbols
from ...ir.types import MeshTensorType, Type
from ..base import FunctionPass
from .mark_aliasing_and_donation import DONOR
from .value_attrs import is_pinned_host, value_dicts

__all__ = ["MarkFragmentReservedMemory"]


@dataclasses.dataclass(frozen=True)
class MarkFragmentReservedMemory(FunctionPass):
    """Every fragment says how many bytes other live values take on its mesh when it starts.

        func.func @main(%p: !s {jax.buffer_donor = true}, %q: !s) ..                  // 16 bytes each
          %f = mpmd.fragment<..> (%p) (..) {..} : (!s) -> !s
    becomes
          %f = mpmd.fragment<..> (%p) {reserved_hbm_bytes = 16 : i64} (..) {..} : (!s) -> !s
    """

    name: ClassVar[str] = "mpmd-mark-fragment-reserved-memory"
    summary: ClassVar[str] = "record the bytes of other live buffers on each fragment"
    mpmd_only: ClassVar[bool] = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        count = _Count(function, mesh_symbols(module), diagnostics)
        terminator = function.body.terminator
        for op in function.body:
            if isinstance(op, FragmentOp | TransferOp):
                count.run(op)
            elif op is not terminator:
                diagnostics.error(
                    op,
                    f"'{op.name}' cannot be here when memory is counted: at this point the functions of a "
                    f"program "
                    f"consist of fragments, transfers and a return; run the import and optimize phases first",
                )
                diagnostics.fail()
        return True


class _Count:
    """The bytes that are live on each mesh, while the program is walked in order."""

    def __init__(
        self, function: FuncOp, symbols: dict[str, MeshAttr], diagnostics: Diagnostics
    ) -> None:
        self.symbols = symbols
        #: Per type the mesh and the bytes on each of its devices; no mesh for tokens.
        self.places: dict[Type, tuple[str | None, float]] = {}
        self.diagnostics = diagnostics
        self.function = function
        topology = function.topology
        self.live: dict[str, float] = dict.fromkeys(topology.meshes if topology else (), 0.0)
        self.last_user = _last_users(function)
        self.kept: set[Value] = set()  # arguments that the caller did not give away
        for arg, attributes in zip(function.args, function.arg_attrs, strict=True):
            donor = attributes.entries.get(DONOR)
            donated = donor is not None and donor.text == "true"
            if not donated:
                self.kept.add(arg)
            if not is_pinned_host(attributes) and (arg.has_uses or not donated):
                self.add(arg, 1)

    def place(self, value: Value) -> tuple[str | None, float]:
        """Where a value of this type is, and how big it is there; remembered, for it is asked for every value."""
        type = value.type
        size = 0.0
        if isinstance(type, MeshTensorType):
            try:
                size = byte_size(type, self.symbols)
            except ValueError as error:
                self.diagnostics.error(value, f"cannot count the memory of a value of type {type}: {error}")
                self.diagnostics.fail()
        found = self.places[type] = (type.mesh if isinstance(type, MeshTensorType) else None, size)
        return found

    def add(self, value: Value, sign: int) -> None:
        mesh, size = self.places.get(value.type) or self.place(value)
        if mesh is not None:
            self.live[mesh] = self.live.get(mesh, 0.0) + sign * size

    def run(self, op: FragmentOp | TransferOp) -> None:
        operands = op.operands
        inputs = value_dicts(op, "arg_attrs")
        if inputs is not None and any(is_pinned_host(d) for d in inputs):
            operands = [v for v, d in zip(operands, inputs, strict=False) if not is_pinned_host(d)]
        operands = list(dict.fromkeys(operands))
        if isinstance(op, FragmentOp):
            own = sum([(self.places.get(v.type) or self.place(v))[1] for v in operands])
            reserved = math.ceil(self.live.get(op.mesh, 0.0) - own)
            op.attrs["reserved_hbm_bytes"] = IntegerAttr.get(reserved, "i64")
        for value in operands:
            if self.last_user[value] is op and value not in self.kept:
                self.add(value, -1)
        outputs = value_dicts(op, "res_attrs")
        for i, result in enumerate(op.results):
            if result._first is not None and (outputs is None or not is_pinned_host(outputs[i])):
                self.add(result, 1)


def _last_users(function: FuncOp) -> dict[Value, Op]:
    found: dict[Value, Op] = {}
    for op in function.body:
        for value in op.operands:
            found[value] = op
    return found
