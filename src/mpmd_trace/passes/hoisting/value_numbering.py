"""What the microbatches of a program compute in the same way, as expressions that are equal when they are one object.

An expression is made of values that fragments of several microbatches read, by ops without effects.  What a body
computes of its arguments is looked up once for all fragments that have the body and read the same values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

from mpmd_trace.ir.attributes import Attribute, IntegerAttr, TensorShardingAttr
from mpmd_trace.ir.bodies import fingerprint, free_values
from mpmd_trace.ir.core import Block, Op, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, local_type
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.fragment_info import MERGED, numbers
from mpmd_trace.passes.sharding.axes import ShardingOf, same_axes, wanted_sharding
from mpmd_trace.passes.sharding.edges import CONSTRAINT, UNSET, ValueShardings, body_sharding, in_sharding, per_value

T = TypeVar("T")

#: Descriptions have fewer characters than this, and no more levels of operands.
_LONGEST, _DEEPEST = 120, 6
SLICES = ("stablehlo.slice", "stablehlo.dynamic_slice")


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Expression:
    """A value of the program (`value`), a result of an op, or (without either) its operand in another sharding."""

    number: int
    type: TensorType
    sharding: TensorShardingAttr | None
    operands: tuple[Expression, ...] = ()
    value: Value | None = None
    op: Op | None = None
    index: int = 0

    @property
    def is_reshard(self) -> bool:
        return self.op is None and self.value is None

    def described(self) -> str:
        """Return what it is, for people: `reshard(convert(weights[0]))`, as deep as fits a line."""
        text = self._text(0)
        for depth in range(1, _DEEPEST + 1):
            before, text = text, self._text(depth)
            if len(text) >= _LONGEST or text == before:
                return before
        return text

    def _text(self, depth: int) -> str:
        """Return the text with that many levels of operands."""
        if self.value is not None:
            return self.value.location.name or str(self.type)
        name = "reshard" if self.op is None else self.op.name.partition(".")[2]
        if not depth:
            return f"{name}(...) : {self.type}"
        return f"{name}({', '.join(one._text(depth - 1) for one in self.operands[:3])})"


def parts_of(expressions: Iterable[Expression]) -> Iterator[Expression]:
    """Yield the expressions and all that they are made of, operands first, each once."""
    return postorder(expressions, lambda one: one.operands)


@dataclasses.dataclass(frozen=True)
class KnownExpressions:
    """The expressions of a fragment: of values in its body, and of operands that an op wants in another sharding."""

    values: dict[Value, Expression]
    uses: dict[tuple[Op, int], Expression]
    #: What the body returns; None where it is no expression.
    returned: tuple[Expression | None, ...]
    #: Slices, of which `values` has those that several microbatches read.
    slices: tuple[Expression, ...]

    @functools.cached_property
    def given(self) -> tuple[tuple[int, Expression], ...]:
        """Those of `returned` that are expressions, with their numbers."""
        return tuple((i, one) for i, one in enumerate(self.returned) if one is not None)


def counters(fragment: FragmentOp) -> frozenset[int]:
    """Return the microbatches that the fragment works on."""
    return _counters(fragment.attrs.get("call_counter"), fragment.attrs.get(MERGED))


@functools.lru_cache(maxsize=1 << 16)
def _counters(one: Attribute | None, merged: Attribute | None) -> frozenset[int]:
    if merged is not None:
        return frozenset(numbers(merged))
    return frozenset({one.value}) if isinstance(one, IntegerAttr) else frozenset()


def are_of_several(fragments: Iterable[FragmentOp]) -> bool:
    """Return whether what all the fragments read belongs to several microbatches.

    It does not where there is one that all work on: a forward that was merged with the backward of another microbatch,
    and a backward that was merged with another forward, read both what belongs to the microbatch that they share.
    """
    common: frozenset[int] | None = None
    for fragment in fragments:
        own = counters(fragment)
        common = own if common is None else common & own
        if not common:
            return True
    return False


class ValueNumbering:
    """The expressions of all fragments of microbatches at the top of a function, in its order."""

    def __init__(self, function: FuncOp) -> None:
        self._table: dict[Hashable, Expression] = {}
        self._shardings = ValueShardings(function)
        #: The fragments of microbatches, with these.
        self._counters = {op: own for op in function.body if isinstance(op, FragmentOp) and (own := counters(op))}
        self.fragments = list(self._counters)
        self._shared = self._read_by_several()
        self._of_value: dict[Value, Expression] = {}
        self._memo: dict[Hashable, KnownExpressions] = {}
        #: The same by operands instead of their expressions.
        self._known_like: dict[Hashable, KnownExpressions] = {}
        self._open: frozenset[Expression] = frozenset()
        self.known = {fragment: self._learn(fragment) for fragment in self.fragments}
        self._open = self._shared_slices()
        if self._open:  # more is known than was thought
            self._of_value.clear()
            self._memo = {k: one for k, one in self._memo.items() if self._open.isdisjoint(one.slices)}
            self._known_like.clear()
            self.known = {fragment: self._learn(fragment) for fragment in self.fragments}

    def _read_by_several(self) -> set[Value]:
        """Return the values that fragments of several microbatches read."""
        return self._of_several(
            (fragment, [use.value for use in fragment.operand_uses if use.prev is not None or use.next is not None])
            for fragment in self.fragments  # what has one use is read by one
        )

    def _shared_slices(self) -> frozenset[Expression]:
        """Return the slices that several microbatches read; others, such as of the batch, have nothing in common."""
        read = ((fragment, known.slices) for fragment, known in self.known.items() if known.slices)
        return frozenset(self._of_several(read))

    def _of_several(self, read: Iterable[tuple[FragmentOp, Iterable[T]]]) -> set[T]:
        """Return what is read by fragments as those of `are_of_several`."""
        common: dict[T, frozenset[int]] = {}
        nothing = frozenset[int]()
        for fragment, those in read:
            own = self._counters[fragment]
            for one in those:
                before = common.get(one)
                if before is None:
                    common[one] = own
                elif before is not own and before:
                    common[one] = before & own or nothing
        return {one for one, shared in common.items() if not shared}

    # Expressions of a fragment.

    def _learn(self, fragment: FragmentOp) -> KnownExpressions:
        body, shardings = fragment.regions[0], fragment.props.get("in_shardings")
        of_value, shared = self._of_value, self._shared
        values = [use.value for use in fragment.operand_uses[: len(body.block.args)]]
        # Other values are all the same: nothing is known of them.
        alike = tuple([value if value in shared or value in of_value else None for value in values])
        like = (body, alike, shardings, fragment.attrs.get(UNSET))
        known = self._known_like.get(like)
        if known is None:
            given = tuple([self._operand(fragment, i, value) for i, value in enumerate(values)])
            key = (body, given, shardings)
            if key not in self._memo:
                self._memo[key] = self._in_body(fragment, given)
            known = self._known_like[like] = self._memo[key]
        for i, expression in known.given:
            outside = per_value(fragment.out_shardings, i)
            if same_axes(outside, expression.sharding, expression.type.rank):
                self._of_value[fragment.results[i]] = expression
        return known

    def _operand(self, fragment: FragmentOp, index: int, value: Value) -> Expression | None:
        known = self._of_value.get(value)
        if known is None and value not in self._shared:
            return None
        type = local_type(value.type)
        if not isinstance(type, TensorType) or not type.is_ranked:
            return None
        inside = in_sharding(fragment, index)
        if known is not None:
            return known if inside is None or same_axes(inside, known.sharding, type.rank) else None
        sharding = inside or self._shardings.of(value)
        key = (value, sharding)
        if key not in self._table:
            self._table[key] = Expression(len(self._table), type, sharding, value=value)
        return self._table[key]

    def _in_body(self, fragment: FragmentOp, given: Sequence[Expression | None]) -> KnownExpressions:
        block = fragment.body.block
        values: dict[Value, Expression] = {
            arg: one for arg, one in zip(block.args, given, strict=True) if one is not None
        }
        uses: dict[tuple[Op, int], Expression] = {}
        slices: list[Expression] = []

        def of(value: Value) -> TensorShardingAttr | None:
            return values[value].sharding if value in values else body_sharding(fragment, value)

        for op in block:
            for use in op.operand_uses:  # most ops read nothing but activations
                if use.value in values:
                    break
            else:
                if op.operand_uses:
                    continue
            if op.is_terminator:
                continue
            operands = [self._use(op, i, values, uses, of) for i in range(op.num_operands)]
            if None not in operands and _may_move(op, block):
                results = self._results(op, cast("list[Expression]", operands), of)
                if op.name in SLICES:
                    slices += results.values()
                values.update({v: one for v, one in results.items() if op.name not in SLICES or one in self._open})
        returned = tuple(values.get(value) for value in fragment.body.returned)
        return KnownExpressions(values, uses, returned, tuple(slices))

    def _use(
        self,
        op: Op,
        index: int,
        values: dict[Value, Expression],
        uses: dict[tuple[Op, int], Expression],
        of: ShardingOf,
    ) -> Expression | None:
        """Return the expression of an operand, in the sharding that the op wants."""
        result = values.get(op.operand(index))
        if result is None or result.sharding is None:
            return result
        wanted = wanted_sharding(op, index, result.sharding, of)
        if wanted is None:
            return result
        uses[op, index] = self._resharded(result, wanted)
        return uses[op, index]

    def _resharded(self, one: Expression, sharding: TensorShardingAttr) -> Expression:
        key = ("reshard", one, sharding)
        if key not in self._table:
            self._table[key] = Expression(len(self._table), one.type, sharding, (one,))
        return self._table[key]

    def _results(self, op: Op, operands: list[Expression], of: ShardingOf) -> dict[Value, Expression]:
        key = (_op_key(op), tuple(operands))
        values: dict[Value, Expression] = {}
        for result in op.results:
            type = result.type
            if not isinstance(type, TensorType) or not type.is_ranked:
                continue
            own = (key, result.index)
            if own not in self._table:
                number = len(self._table)
                self._table[own] = Expression(number, type, of(result), tuple(operands), None, op, result.index)
            values[result] = self._table[own]
        return values


def _op_key(op: Op) -> Hashable:
    """Return what two ops have in common that compute the same of the same operands."""
    attributes = tuple(sorted((k, v.text) for k, v in (*op.props.items(), *op.attrs.items())))
    return op.name, attributes, tuple(r.type for r in op.results), tuple(map(fingerprint, op.regions))


def _may_move(op: Op, block: Block) -> bool:
    """Return whether the op computes the same wherever it is."""
    if op.name == CONSTRAINT:
        return True
    return is_pure(op) and bool(op.results) and not free_values(op)
