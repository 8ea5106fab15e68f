"""`mpmd-mark-aliasing-and-donation`: which inputs of a fragment give their buffers away.

Source: section 4.6 of the specification of the export passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from ...ir.attributes import Attribute, BoolAttr, DictAttr, IntegerAttr
from ...ir.core import BlockArg, Op, OpResult, Value
from ...ir.diagnostics import Diagnostics
from ...ir.ops import FragmentOp, FuncOp, Module, TransferOp
from ..base import FunctionPass
from .value_attrs import EMPTY, LAYOUT_MODE, array_of, inserted, is_pinned_host, value_dicts

__all__ = ["ALIASING_OUTPUT", "DONOR", "MarkAliasingAndDonation"]

DONOR = "jax.buffer_donor"
ALIASING_OUTPUT = "tf.aliasing_output"
_TRUE = BoolAttr.get(True)


@dataclasses.dataclass(frozen=True)
class MarkAliasingAndDonation(FunctionPass):
    """An operand that a fragment is the last to read is donated, or aliased to a result of the same type.

    Function arguments give their buffer away only when the user donated or aliased them.

        %g = mpmd.fragment<..> (%f, %q) (..) {..} : (!s, !s) -> !s                   // %f is not used later
    becomes
        %g = mpmd.fragment<..> (%f, %q) {arg_attrs = [{tf.aliasing_output = 0 : i32}, {}]} (..) {..}
    """

    name: ClassVar[str] = "mpmd-mark-aliasing-and-donation"
    summary: ClassVar[str] = "mark the fragment operands whose buffers may be reused"
    mpmd_only: ClassVar[bool] = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        arg_attrs = function.arg_attrs
        given: dict[Value, DictAttr] = dict(zip(function.args, arg_attrs, strict=True))
        last_uses, transferred = _last_uses(function)
        changed = False
        for op, indices in reversed(last_uses):
            candidates = [
                i
                for i in reversed(indices)
                if (v := op.operand(i)) not in transferred and (v not in given or _given_away(given[v]))
            ]
            if candidates:
                _Marker(op, function, diagnostics).mark(candidates, given)
                changed = True
        return changed


def _last_uses(function: FuncOp) -> tuple[list[tuple[FragmentOp, list[int]]], set[Value]]:
    """Per fragment, last one first: operands that nobody reads later, highest first.  Transferred values."""
    found: list[tuple[FragmentOp, list[int]]] = []
    seen: set[Value] = set()
    transferred: set[Value] = set()
    for op in reversed(function.body):
        if isinstance(op, TransferOp):
            transferred.add(op.operand(0))
        indices = []
        operands = op.operands
        for i in range(len(operands) - 1, -1, -1):
            value = operands[i]
            if value not in seen:
                seen.add(value)
                indices.append(i)
        if indices and isinstance(op, FragmentOp):
            found.append((op, indices))
    return found, transferred


def _donated(attributes: DictAttr) -> bool:
    return attributes.entries.get(DONOR) is _TRUE


def _given_away(attributes: DictAttr) -> bool:
    return _donated(attributes) or isinstance(attributes.entries.get(ALIASING_OUTPUT), IntegerAttr)


class _Marker:
    """Decides for the candidates of one fragment, in order; an output is aliased at most once."""

    def __init__(self, op: FragmentOp, function: FuncOp, diagnostics: Diagnostics) -> None:
        self.op = op
        self.function = function
        self.diagnostics = diagnostics
        self.inputs = list(value_dicts(op, "arg_attrs") or [EMPTY] * op.num_operands)
        self.outputs: Sequence[DictAttr] = value_dicts(op, "res_attrs") or [EMPTY] * len(op.results)
        self.free: dict[tuple[object, Attribute | None], list[int]] = {}
        for k in range(len(op.results) - 1, -1, -1):
            if not is_pinned_host(self.outputs[k]):
                key = (op.results[k].type, self.outputs[k].entries.get(LAYOUT_MODE))
                self.free.setdefault(key, []).append(k)  # lowest index last, to be popped

    def mark(self, candidates: Sequence[int], given: dict[Value, DictAttr]) -> None:
        marked = False
        for i in candidates:
            if is_pinned_host(self.inputs[i]):
                continue
            value = self.op.operand(i)
            output: int | None = None
            attributes = given.get(value)
            if attributes is None or not _donated(attributes):
                output = self._take(i, value, self._preferred(attributes))
            if output is None:
                self._insert(i, DONOR, _TRUE)
            else:
                self._insert(i, ALIASING_OUTPUT, IntegerAttr.get(output, "i32"))
            marked = True
        if marked:
            self.op.attrs["arg_attrs"] = array_of(self.inputs)

    def _insert(self, index: int, key: str, value: Attribute) -> None:
        self.inputs[index] = inserted(self.op, self.inputs[index], key, value, self.diagnostics)

    def _take(self, index: int, value: Value, preferred: int | None) -> int | None:
        """The result that input `index` aliases, from now on taken."""
        free = self.free.get((value.type, self.inputs[index].entries.get(LAYOUT_MODE)))
        if not free:
            return None
        if preferred is not None and preferred in free:
            free.remove(preferred)
            return preferred
        return free.pop()

    def _preferred(self, attributes: DictAttr | None) -> int | None:
        """The result of this fragment that becomes the function result to which the argument is aliased."""
        wanted = None if attributes is None else attributes.entries.get(ALIASING_OUTPUT)
        terminator = self.function.body.terminator
        if not isinstance(wanted, IntegerAttr) or not 0 <= wanted.value < terminator.num_operands:
            return None
        value = terminator.operand(wanted.value)
        while isinstance(value, OpResult):
            producer: Op = value.op
            if isinstance(producer, FragmentOp):
                return value.index if producer is self.op else None
            if producer.num_operands != 1:
                return None
            value = producer.operand(0)
        assert isinstance(value, BlockArg)
        return None
