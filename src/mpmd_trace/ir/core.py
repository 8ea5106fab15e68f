"""Ops; with `ir/values.py` and `ir/blocks.py` the whole model of a program.

The model is MLIR's, because the results of passes depend on it: every value keeps the list of its uses,
newest first (an op's last operand is newer than its first), blocks are ordered op lists, ops may hold regions.

One thing differs.  The body of a fragment or of a named computation is *frozen* once built: ops refer to it,
many ops may share it, and nobody changes it.  A pass that needs another body builds a new one
(`ir/bodies.py`), so that equal changes on many microbatches are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.blocks import Block as Block
from mpmd_trace.ir.blocks import Region as Region
from mpmd_trace.ir.blocks import has_order as has_order
from mpmd_trace.ir.types import Type
from mpmd_trace.ir.values import BlockArg as BlockArg
from mpmd_trace.ir.values import OpResult as OpResult
from mpmd_trace.ir.values import Use as Use
from mpmd_trace.ir.values import Value as Value

__all__ = [
    "Block",
    "BlockArg",
    "Op",
    "OpResult",
    "Region",
    "Use",
    "Value",
    "has_order",
    "make_op",
    "make_unary",
    "op_class",
]


class Op:
    """An operation.

    `props` are its inherent attributes (MLIR properties), `attrs` the discardable ones.  `results` is a
    list; results are dropped only by `replace_op_dropping_results` of the rewriting helpers.
    """

    __slots__ = (
        "_capacity",
        "_next",
        "_operands",
        "_order",
        "_prev",
        "attrs",
        "block",
        "loc",
        "name",
        "props",
        "regions",
        "results",
        "successors",
    )
    #: The op name that this class models; None for the generic class.
    op_name: ClassVar[str | None] = None

    def __init__(
        self,
        name: str,
        operands: Sequence[Value] = (),
        result_types: Sequence[Type] = (),
        *,
        props: Mapping[str, Attribute] | None = None,
        attrs: Mapping[str, Attribute] | None = None,
        regions: Sequence[Region] = (),
        successors: Sequence[Block] = (),
        loc: Location = UNKNOWN,
    ) -> None:
        self.name = name
        self.props: dict[str, Attribute] = dict(props) if props else {}
        self.attrs: dict[str, Attribute] = dict(attrs) if attrs else {}
        # Loops, not comprehensions, and no work for what most ops do not have: ops are made by the ten thousand.
        self.results: list[OpResult] = []
        for type in result_types:
            self.results.append(OpResult(type, len(self.results), self))
        self.regions: list[Region] = list(regions)
        self.successors: list[Block] = list(successors)
        self.loc = loc
        self.block: Block | None = None
        self._prev: Op | None = None
        self._next: Op | None = None
        self._order = -1
        self._operands: list[Use] = []
        for value in operands:
            self._operands.append(Use(self, len(self._operands), value))
        self._capacity = len(self._operands)
        for region in self.regions:
            if not region.frozen:
                region.parent = self

    # Operands.

    @property
    def operands(self) -> list[Value]:
        """The operand values (a fresh list)."""
        return [use.value for use in self._operands]

    @property
    def operand_uses(self) -> list[Use]:
        """The operands as uses, in order (a fresh list)."""
        return list(self._operands)

    @property
    def num_operands(self) -> int:
        return len(self._operands)

    def operand(self, index: int) -> Value:
        return self._operands[index].value

    def set_operand(self, index: int, value: Value) -> None:
        self._check_mutable()
        self._operands[index].set(value)

    def set_operands(self, values: Sequence[Value]) -> None:
        """Replace the whole operand list; every operand becomes a new use, in order."""
        self._check_mutable()
        values = list(values)
        self._resize(len(values))
        for use, value in zip(self._operands, values, strict=True):
            use.set(value)

    def append_operands(self, values: Sequence[Value]) -> None:
        """Add operands at the end."""
        self._check_mutable()
        old = len(self._operands)
        values = list(values)
        self._resize(old + len(values), values)
        for use, value in zip(self._operands[old:], values, strict=True):
            if use.value is not value:
                use.set(value)

    def _resize(self, size: int, fill: Sequence[Value] = ()) -> None:
        old = len(self._operands)
        if size <= old:
            for use in self._operands[size:]:
                use._unlink()
            del self._operands[size:]
            return
        if size > self._capacity:  # MLIR moves the operands to new storage: they become newer uses
            self._capacity = max(1 << self._capacity.bit_length(), size)
            for use in self._operands:
                use.set(use.value)
        placeholder = self._operands[0].value if self._operands else None
        for i in range(old, size):
            value = fill[i - old] if i - old < len(fill) else placeholder
            if value is None:
                value = _PLACEHOLDER
            self._operands.append(Use(self, i, value))

    def erase_operands(self, indices: Iterable[int]) -> None:
        """Remove operands; those behind the first removed one become newer uses, as in MLIR."""
        self._check_mutable()
        gone = set(indices)
        if not gone:
            return
        first = min(gone)
        tail = self._operands[first:]
        del self._operands[first:]
        for i, use in enumerate(tail, first):
            if i in gone:
                use._unlink()
                continue
            use.index = len(self._operands)
            use.set(use.value)
            self._operands.append(use)

    @property
    def operand_capacity(self) -> int:
        """How many operands there is room for before all of them move and become newer uses."""
        return self._capacity

    def release_operands(self) -> list[Use]:
        """Let go of the operands, whose uses stay linked: for another op, which then owns them."""
        self._check_mutable()
        uses, self._operands = self._operands, []
        return uses

    def take_operand_uses(self, uses: list[Use], capacity: int) -> None:
        """Make these uses, linked and numbered already, the operands; for passes that keep book of them."""
        self._check_mutable()
        self._operands, self._capacity = uses, capacity

    def _check_mutable(self) -> None:
        if self.block is not None and self.block.frozen:
            raise RuntimeError(f"'{self.name}' is part of a frozen body; build a new body instead")

    # Results.

    @property
    def result(self) -> OpResult:
        """The only result."""
        if len(self.results) != 1:
            raise ValueError(f"'{self.name}' has {len(self.results)} results, not one")
        return self.results[0]

    @property
    def has_uses(self) -> bool:
        for result in self.results:  # noqa: SIM110 (a generator costs more than the question)
            if result._first is not None:
                return True
        return False

    @property
    def users(self) -> list[Op]:
        """The users of result 0 (newest first), then of result 1, ..."""
        return [user for r in self.results for user in r.users]

    @property
    def distinct_users(self) -> list[Op]:
        return list(dict.fromkeys(self.users))

    def replace_all_uses_with(self, values: Sequence[Value]) -> None:
        """Redirect the uses of each result to the value of the same number."""
        for result, value in zip(self.results, values, strict=True):
            result.replace_all_uses_with(value)

    # Attributes: discardable ones win over inherent ones of the same name.

    def attr(self, name: str) -> Attribute | None:
        """The attribute of that name, discardable or inherent."""
        found = self.attrs.get(name)
        return found if found is not None else self.props.get(name)

    # Position.

    @property
    def next_op(self) -> Op | None:
        return self._next

    @property
    def prev_op(self) -> Op | None:
        return self._prev

    @property
    def parent_op(self) -> Op | None:
        """The op whose region holds this one; None at the top and inside a frozen body."""
        if self.block is None or self.block.parent is None:
            return None
        return self.block.parent.parent

    def is_before(self, other: Op) -> bool:
        """Whether this op comes before `other`, which must be in the same block."""
        block = self.block
        assert block is not None and block is other.block, "ops of different blocks have no order"
        if self._order < 0 or other._order < 0 or not block._ordered:
            block._renumber()
        return self._order < other._order

    def ancestor_in(self, block: Block) -> Op | None:
        """This op, or the op around it, that lies directly in `block`; None if there is none."""
        op: Op | None = self
        while op is not None and op.block is not block:
            op = op.parent_op
        return op

    def move_before(self, other: Op) -> None:
        """Move this op directly before `other`."""
        if other is self:
            return
        assert other.block is not None
        self._detach()
        other.block._insert(self, other._prev, other)

    def move_after(self, other: Op) -> None:
        """Move this op directly behind `other`."""
        if other is self:
            return
        assert other.block is not None
        self._detach()
        other.block._insert(self, other, other._next)

    def _detach(self) -> None:
        if self.block is not None:
            self.block._remove(self)

    def erase(self) -> None:
        """Remove the op from its block and drop its operands.  Raises if a result still has uses."""
        for result in self.results:
            if result._first is not None:
                raise RuntimeError(
                    f"'{self.name}' still has users: {result._first.owner.name} uses result {result.index}"
                )
        self._check_mutable()
        self._detach()
        self.drop_all_references()

    def drop_all_references(self) -> None:
        """Take this op, and everything in its regions that is not frozen, off all use lists."""
        for use in self._operands:
            use._unlink()
        self._operands = []
        for region in self.regions:
            if not region.frozen:
                for block in region.blocks:
                    for op in block:
                        op.drop_all_references()

    # Structure.

    @property
    def is_terminator(self) -> bool:
        return self.name in _TERMINATORS or bool(self.successors)

    def walk(self, *, post_order: bool = True, reverse: bool = False) -> Iterator[Op]:
        """This op and everything nested in it, frozen bodies included."""
        if not post_order:
            yield self
        for region in reversed(self.regions) if reverse else self.regions:
            for block in reversed(region.blocks) if reverse else region.blocks:
                for op in reversed(block) if reverse else block:
                    yield from op.walk(post_order=post_order, reverse=reverse)
        if post_order:
            yield self

    def clone(
        self, mapping: dict[Value, Value] | None = None, *, operands: Sequence[Value] | None = None
    ) -> Op:
        """A detached copy; `mapping` (old value -> new value) is read for operands and extended by results.

        Frozen bodies are shared, other regions copied.
        """
        mapping = {} if mapping is None else mapping
        regions = [r if r.frozen else r.clone(mapping) for r in self.regions] if self.regions else ()
        copy = self.__class__.__new__(self.__class__)
        # What `__init__` does, without the detours.
        copy.name, copy.loc = self.name, self.loc
        copy.props, copy.attrs = self.props.copy(), self.attrs.copy()
        copy.regions, copy.successors = list(regions), self.successors.copy()
        copy.block = copy._prev = copy._next = None
        copy._order = -1
        copy.results = results = []
        for old in self.results:
            mapping[old] = result = OpResult(old.type, old.index, copy)
            results.append(result)
        uses: list[Use] = []
        copy._operands = uses
        if operands is None:
            for use in self._operands:
                value = use.value
                uses.append(Use(copy, len(uses), mapping.get(value, value)))
        else:
            for value in operands:
                uses.append(Use(copy, len(uses), value))
        copy._capacity = len(uses)
        for region in regions:
            if not region.frozen:
                region.parent = copy
        return copy

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def __str__(self) -> str:
        from mpmd_trace.ir.printer import print_op

        return print_op(self)


_PLACEHOLDER = Value(Type("none"), 0)
_TERMINATORS = frozenset(
    {"func.return", "mpmd.return", "stablehlo.return", "sdy.return", "cf.br", "cf.cond_br"}
)
_CLASSES: dict[str, type[Op]] = {}
_SomeOp = TypeVar("_SomeOp", bound=Op)


def op_class(cls: type[Op]) -> type[Op]:
    """Class decorator: ops named `cls.op_name` are instances of `cls`."""
    assert cls.op_name is not None
    _CLASSES[cls.op_name] = cls
    return cls


def make_unary(
    cls: type[_SomeOp],
    value: Value,
    result_type: Type,
    props: dict[str, Attribute],
    loc: Location,
    use: Use | None = None,
) -> _SomeOp:
    """An op with one operand and one result, as `make_op`, but made faster; `props` is taken, not copied.

    `use`, a use of `value`, becomes that of the op, wherever it is in the list.
    Mesh inference makes an assign and an unassign for every value that calls pass, and removes them again.
    """
    op = cls.__new__(cls)
    assert cls.op_name is not None
    op.name, op.loc = cls.op_name, loc
    op.props, op.attrs, op.regions, op.successors = props, {}, [], []
    op.block = op._prev = op._next = None
    op._order = -1
    op.results = [OpResult(result_type, 0, op)]
    if use is None:
        use = Use(op, 0, value)
    else:
        use.owner, use.index = op, 0
    op._operands = [use]
    op._capacity = 1
    return op


def make_op(name: str, *args: Any, **kwargs: Any) -> Op:
    """An op of the class that models `name` (the generic class if none does); arguments as `Op`."""
    cls = _CLASSES.get(name)
    if cls is None:
        return Op(name, *args, **kwargs)
    op = cls.__new__(cls)
    Op.__init__(op, name, *args, **kwargs)
    return op
