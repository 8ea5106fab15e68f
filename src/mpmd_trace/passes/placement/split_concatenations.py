"""`mpmd-split-concatenations`: one array made of values of several meshes does not bring them together."""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.ir.attributes import DenseArrayAttr
from mpmd_trace.ir.bodies import region_dce
from mpmd_trace.ir.core import Op, Value, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.semantics import region_reduction_kind
from mpmd_trace.ir.stablehlo_attributes import integer, integers, ranked, shape_of
from mpmd_trace.ir.types import tensor
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.import_.reductions import is_neutral
from mpmd_trace.passes.placement.sums import Origins, change_each, reduced
from mpmd_trace.passes.trivially_canonical import ELEMENTWISE


class SplitConcatenations(Pass):
    """Apply elementwise ops to the parts of a concatenation of values of several meshes.

    Reductions over the concatenation become reductions of the parts, and a slice that lies in one part becomes a slice
    of that part. So all gradients may be raveled into one vector, for example to compute its norm or to scale it.

    Before:

        %u = mpmd.unassign %p : (!a) -> tensor<4xf32>
        %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
        %0 = stablehlo.concatenate %u, %v, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
        %1 = stablehlo.tanh %0 : tensor<8xf32>
        %2 = stablehlo.slice %1 [0:4] : (tensor<8xf32>) -> tensor<4xf32>
        %3 = stablehlo.slice %1 [4:8] : (tensor<8xf32>) -> tensor<4xf32>
        return %2, %3 : tensor<4xf32>, tensor<4xf32>

    After:

        %u = mpmd.unassign %p : (!a) -> tensor<4xf32>
        %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
        %0 = stablehlo.tanh %u : tensor<4xf32>
        %1 = stablehlo.tanh %v : tensor<4xf32>
        return %0, %1 : tensor<4xf32>, tensor<4xf32>
    """

    name = "mpmd-split-concatenations"
    summary = "split computations on concatenated values of several meshes"
    only_with = ("stablehlo.concatenate",)

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        return change_each(module, ("stablehlo.concatenate",), lambda *given: _Splitting(*given).run())


class _Splitting:
    """The values of a function that are made of parts, and the parts."""

    def __init__(self, function: FuncOp, origins: Origins) -> None:
        self.function = function
        self.origins = origins
        #: The dimension along which a value is made of parts, and these.
        self.parts: dict[Value, tuple[int, list[Value]]] = {}
        self.changed = False

    def run(self) -> bool:
        """Return whether a result of an op is now made of parts."""
        for op in self.function.body.ops:
            if op.name == "stablehlo.concatenate" and all(map(ranked, op.operands)):
                meshes = {self.origins.of(value) for value in op.operands}
                if len(meshes) > 1 or (None in meshes and op.num_operands > 1):
                    self.parts[op.results[0]] = integer(op, "dimension"), op.operands
            elif any(value in self.parts for value in op.operands) and len(op.results) == 1:
                self._follow(op)
        if self.parts:
            region_dce(self.function.regions[0])
        return self.changed

    def _follow(self, op: Op) -> None:
        """Make an op that reads a value of parts one of the parts, if that is possible."""
        if op.name in ELEMENTWISE:
            self._elementwise(op)
            return
        part: Value | None = None
        if op.name == "stablehlo.slice":
            part = self._slice(op)
        elif op.name == "stablehlo.reduce" and op.num_operands == 2 and op.operand(0) in self.parts:
            part = self._reduction(op)
        elif op.name == "stablehlo.dot_general" and op.results[0].type.is_scalar:
            part = self._product(op)
        if part is not None:
            op.results[0].replace_all_uses_with(part)
            self.changed = True

    def _elementwise(self, op: Op) -> None:
        dim, parts = next(self.parts[v] for v in op.operands if v in self.parts)
        shapes = [shape_of(part) for part in parts]
        operands = [self._as_parts(op, value, dim, shapes) for value in op.operands]
        known = [values for values in operands if values is not None]
        type = ranked(op.results[0])
        if type is None or len(known) < len(operands):
            return
        made: list[Value] = []
        for shape, *read in zip(shapes, *known, strict=True):
            part = op_like(op, read, [tensor(shape, type.element)])
            made += self.function.body.insert_before(op, part).results
        self.parts[op.results[0]] = dim, made

    def _as_parts(
        self, reader: Op, value: Value, dim: int, shapes: Sequence[tuple[int, ...]]
    ) -> Sequence[Value] | None:
        """Return the parts of an operand: of one made of such parts, of a scalar, or of one scalar everywhere."""
        if value in self.parts:
            other, parts = self.parts[value]
            return parts if other == dim and [shape_of(part) for part in parts] == shapes else None
        if value.type.is_scalar:
            return [value] * len(shapes)
        made = _filled(value, shapes)
        return None if made is None else [self.function.body.insert_before(reader, op).results[0] for op in made]

    def _slice(self, op: Op) -> Value | None:
        dim, parts = self.parts[op.operand(0)]
        starts, limits = integers(op, "start_indices"), integers(op, "limit_indices")
        end = 0
        for part in parts:
            size = shape_of(part)[dim]
            begin, end = end, end + size
            if begin <= starts[dim] and limits[dim] <= end and size:
                break
        else:
            return None
        if op.results[0].type is part.type:
            return part
        own = [s - begin * (i == dim) for i, s in enumerate(starts)]
        ends = [s - begin * (i == dim) for i, s in enumerate(limits)]
        made = op_like(op, [part])
        made.props.update(start_indices=DenseArrayAttr.get(own), limit_indices=DenseArrayAttr.get(ends))
        return self.function.body.insert_before(op, made).results[0]

    def _reduction(self, op: Op) -> Value | None:
        dim, parts = self.parts[op.operand(0)]
        kind = region_reduction_kind(op.regions[0])
        if kind is None or dim not in integers(op, "dimensions") or not is_neutral(op.operand(1), kind):
            return None
        return self._combined(op, kind, [[part, op.operand(1)] for part in parts])

    def _product(self, op: Op) -> Value | None:
        """Return the inner product of two vectors of parts."""
        left, right = (self.parts.get(value) for value in op.operands)
        if left is None or right is None or any(len(shape_of(v)) != 1 for v in op.operands):
            return None
        if [shape_of(part) for part in left[1]] != [shape_of(part) for part in right[1]]:
            return None
        return self._combined(op, "add", list(zip(left[1], right[1], strict=True)))

    def _combined(self, op: Op, kind: str, operands: Sequence[Sequence[Value]]) -> Value:
        """Return the op of each of the operands, reduced."""
        body = self.function.body
        return reduced(op, kind, [body.insert_before(op, op.clone(operands=own)).results[0] for own in operands])


def _filled(value: Value, shapes: Sequence[tuple[int, ...]]) -> list[Op] | None:
    """Ops that fill arrays of these shapes with the scalar of which the value is full, if it is."""
    from mpmd_trace.passes.stablehlo.elements import make_constant, splat_text  # NumPy, which is slow to import

    maker, type, text = value.defining_op, ranked(value), splat_text(value)
    if maker is None or type is None:
        return None
    types = [tensor(shape, type.element) for shape in shapes]
    if text is not None:
        return [make_constant(text, one, maker.loc) for one in types]
    if maker.name == "stablehlo.broadcast_in_dim" and maker.operand(0).type.is_scalar:
        return [op_like(maker, maker.operands, [one]) for one in types]
    return None
