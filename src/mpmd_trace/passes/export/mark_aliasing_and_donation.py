"""`mpmd-mark-aliasing-and-donation`: which inputs of a fragment give their buffers away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from mpmd_trace.ir.attributes import ArrayAttr, Attribute, BoolAttr, DictAttr, IntegerAttr
from mpmd_trace.ir.core import BlockArg, Op, OpResult, Use, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.ir.types import Type
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.export.value_attrs import EMPTY, LAYOUT_MODE, array_of, inserted, is_pinned_host, value_dicts

DONOR = "jax.buffer_donor"
ALIASING_OUTPUT = "tf.aliasing_output"
_TRUE = BoolAttr.get(True)


@dataclasses.dataclass(frozen=True)
class MarkAliasingAndDonation(FunctionPass):
    """Donate operands that a fragment is the last to read, or alias them to results of the same type.

    Operands that a transfer reads, or that are in host memory, are skipped. An intermediate value is aliased to the
    first result with its type and layout that is not yet aliased and not in host memory; if there is none, it is
    donated (`jax.buffer_donor`). An argument of the program is donated only if the user donated it; if the user aliased
    it to an output that this fragment computes, it is aliased to that result, otherwise to the first.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["g"]> (%0) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %2 = stablehlo.negate %u : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["g"]> (%0) {arg_attrs = [{tf.aliasing_output = 0 : i32}]} (%u: !t) {
          %2 = stablehlo.sine %u : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %1 : !a
    """

    name = "mpmd-mark-aliasing-and-donation"
    summary = "mark the fragment operands whose buffers may be reused"
    mpmd_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        given: dict[Value, DictAttr] = dict(zip(function.args, function.arg_attrs, strict=True))
        last_uses, kept = _last_uses(function)
        kept.update([arg for arg, attributes in given.items() if not _given_away(attributes)])
        known: dict[Hashable, ArrayAttr | None] = {}
        needed = self.needed(function)
        changed = False
        for op, uses in reversed(last_uses):
            candidates: list[Use] = []
            for use in reversed(uses):
                is_only = use.prev is None and use.next is None
                if use.value not in kept and (is_only or not needed(use, op)):
                    candidates.append(use)
            if candidates:
                changed = True
                arg_attrs = self._marked(op, candidates, given, function, known, diagnostics)
                if arg_attrs is not None:
                    op.attrs["arg_attrs"] = arg_attrs
        self.finish([op for op, _ in last_uses])
        return changed

    def needed(self, function: FuncOp) -> Callable[[Use, FragmentOp], bool]:
        """Return a function that tells whether another reader needs what a fragment is the last to read."""
        return lambda use, fragment: False

    def finish(self, fragments: Sequence[FragmentOp]) -> None:
        """Do what is left, once all fragments are marked."""

    def kind(self, type: Type) -> Hashable:
        """Return what an operand and the result in its place have in common."""
        return type

    def alike(self, op: FragmentOp) -> Hashable:
        """Return what fragments have in common that are marked alike if their types are."""
        return op.num_operands

    def late_results(self, op: FragmentOp) -> LateResults | None:
        """Return the results that are computed after all that reads an argument; None if that does not matter."""
        return None

    def _marked(
        self,
        op: FragmentOp,
        candidates: Sequence[Use],
        given: dict[Value, DictAttr],
        function: FuncOp,
        known: dict[Hashable, ArrayAttr | None],
        diagnostics: Diagnostics,
    ) -> ArrayAttr | None:
        """Return the new `arg_attrs`, None if nothing is marked.  Those of most microbatches are `known`."""
        if not given.keys().isdisjoint([use.value for use in candidates]):
            return _Marker(self, op, function, diagnostics).mark(candidates, given)
        key = (
            self.alike(op),
            tuple([use.index for use in candidates]),
            tuple([use.value.type for use in candidates]),
            op.attrs.get("arg_attrs"),
            tuple([result.type for result in op.results]),
            op.attrs.get("res_attrs"),
        )
        if key not in known:
            known[key] = _Marker(self, op, function, diagnostics).mark(candidates, given)
        return known[key]


def _last_uses(function: FuncOp) -> tuple[list[tuple[FragmentOp, list[Use]]], set[Value]]:
    """Per fragment, last one first: its operands that are not read later, last one first.  Transferred values."""
    last_uses: list[tuple[FragmentOp, list[Use]]] = []
    seen: set[Value] = set()
    transferred: set[Value] = set()
    for op in reversed(function.body):
        if isinstance(op, TransferOp):
            transferred.add(op.operand(0))
        uses = []
        for use in reversed(op.operand_uses):
            value = use.value
            if value not in seen:
                if use.prev is not None or use.next is not None:
                    seen.add(value)
                uses.append(use)
        if uses and isinstance(op, FragmentOp):
            last_uses.append((op, uses))
    return last_uses, transferred


class LateResults(NamedTuple):
    """For each argument of a body the results computed from all that reads it, so that it is not needed any more.

    A set of results is a number with a bit for each: bit r for result `order[r]`.  Those that most ops go into are
    first: XLA computes again what two results have in common.  `only`: no other result may take an argument's place.
    """

    order: tuple[int, ...]
    after: tuple[int, ...]
    only: bool = False


def _donated(attributes: DictAttr) -> bool:
    return attributes.entries.get(DONOR) is _TRUE


def _given_away(attributes: DictAttr) -> bool:
    return _donated(attributes) or isinstance(attributes.entries.get(ALIASING_OUTPUT), IntegerAttr)


def _bits(number: int) -> list[int]:
    """Return the bits that are set, the lowest first."""
    return [i for i, digit in enumerate(reversed(bin(number)[2:])) if digit == "1"]


class _Marker:
    """Decides for the candidates of one fragment, in order; an output is aliased at most once."""

    def __init__(
        self, rules: MarkAliasingAndDonation, op: FragmentOp, function: FuncOp, diagnostics: Diagnostics
    ) -> None:
        self.op = op
        self.kind = rules.kind
        #: None if it does not matter.
        self.late = rules.late_results(op)
        self.function = function
        self.diagnostics = diagnostics
        self.inputs = list(value_dicts(op, "arg_attrs") or [EMPTY] * op.num_operands)
        self.outputs: Sequence[DictAttr] = value_dicts(op, "res_attrs") or [EMPTY] * len(op.results)
        #: The results that an input of that kind could alias and that are not taken: bit k for result k.
        self.free: dict[tuple[Hashable, Attribute | None], int] = {}
        for k in range(len(op.results)):
            if not is_pinned_host(self.outputs[k]):
                key = (self.kind(op.results[k].type), self.outputs[k].entries.get(LAYOUT_MODE))
                self.free[key] = self.free.get(key, 0) | 1 << k

    def mark(self, candidates: Sequence[Use], given: dict[Value, DictAttr]) -> ArrayAttr | None:
        """Return the `arg_attrs` of the fragment with these operands marked; None if none is."""
        marked = False
        late = {} if self.late is None else self._late(self.late, candidates, given)
        for use in candidates:
            i, value = use.index, use.value
            if is_pinned_host(self.inputs[i]):
                continue
            output: int | None = late.get(i)
            attributes = given.get(value)
            if output is None and attributes is None and self.late is not None and self.late.only:
                continue
            if output is None and (attributes is None or not _donated(attributes)):
                output = self._take(i, value, self._preferred(attributes))
            if output is None:
                self._insert(i, DONOR, _TRUE)
            else:
                self._insert(i, ALIASING_OUTPUT, IntegerAttr.get(output, "i32"))
            marked = True
        return array_of(self.inputs) if marked else None

    def _late(self, late: LateResults, candidates: Sequence[Use], given: dict[Value, DictAttr]) -> dict[int, int]:
        """Return the late results that inputs take the place of, those with the fewest to choose from first."""
        rank = {k: r for r, k in enumerate(late.order)}
        free = {key: sum(1 << rank[k] for k in _bits(results)) for key, results in self.free.items()}
        keys = {u.index: self._key(u.index, u.value) for u in candidates if u.value not in given}
        fitting = {i: late.after[i] & free.get(key, 0) for i, key in keys.items() if not is_pinned_host(self.inputs[i])}
        taken: dict[int, int] = {}
        for i in sorted(fitting, key=lambda i: fitting[i].bit_count()):
            results = fitting[i] & free.get(keys[i], 0)
            if results:
                first = results & -results
                taken[i] = k = late.order[first.bit_length() - 1]
                free[keys[i]] ^= first
                self.free[keys[i]] ^= 1 << k
        return taken

    def _insert(self, index: int, key: str, value: Attribute) -> None:
        self.inputs[index] = inserted(self.op, self.inputs[index], key, value, self.diagnostics)

    def _take(self, index: int, value: Value, preferred: int | None) -> int | None:
        """Return the result that input `index` aliases, from now on taken: the preferred one, or else the first."""
        key = self._key(index, value)
        free = self.free.get(key, 0)
        if not free:
            return None
        first = (free & -free).bit_length() - 1
        k = preferred if preferred is not None and free >> preferred & 1 else first
        self.free[key] = free ^ 1 << k
        return k

    def _key(self, index: int, value: Value) -> tuple[Hashable, Attribute | None]:
        return self.kind(value.type), self.inputs[index].entries.get(LAYOUT_MODE)

    def _preferred(self, attributes: DictAttr | None) -> int | None:
        """Return the result of this fragment that becomes the function result to which the argument is aliased."""
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
