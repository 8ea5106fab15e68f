"""Values, ops, blocks and regions: the model of a program.

The model is MLIR's, because the results of passes depend on it: every value keeps the list of its uses,
newest first (an op's last operand is newer than its first), blocks are ordered op lists, ops may hold regions.

One thing differs.  The body of a fragment or of a named computation is *frozen* once built: ops refer to it,
many ops may share it, and it cannot change.  A pass that needs another body builds a new one
(`ir/bodies.py`), so that equal changes on many microbatches are made once.

What does not depend on each other is elsewhere: lists of uses (`ir/use_lists.py`), of operands
(`ir/operand_lists.py`) and of ops (`ir/op_lists.py`) below, freezing (`ir/freezing.py`) above.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.frozen import refuse
from mpmd_trace.ir.op_lists import OpList
from mpmd_trace.ir.operand_lists import OperandList
from mpmd_trace.ir.printer import print_op
from mpmd_trace.ir.types import Type
from mpmd_trace.ir.use_lists import Link, UseList
from mpmd_trace.ir.walk import walk_regions

_ORDERED_DIALECTS = frozenset({"func", "mpmd", "stablehlo", "chlo", "sdy", "scf", "affine"})


class Use(Link["Value"]):
    """Operand number `index` of `owner`; a node of the use list of `value`."""

    __slots__ = ("owner",)
    prev: Use | None
    next: Use | None

    def __init__(self, owner: Op, index: int, value: Value) -> None:
        self.owner = owner
        self.index = index
        self.value = value
        self.prev = None
        self.next = first = value.first_use
        if first is not None:
            first.prev = self
        value.first_use = self

    def __repr__(self) -> str:
        return f"<Use {self.index} of {self.owner.name}>"


class Value(UseList[Use]):
    """An SSA value: a block argument or an op result."""

    __slots__ = ("index", "type")

    def __init__(self, type: Type, index: int) -> None:
        self.type = type
        self.index = index
        self.first_use = None

    @property
    def users(self) -> list[Op]:
        """The owners of the uses, newest first; an op that uses the value twice is there twice."""
        result, use = [], self.first_use
        while use is not None:
            result.append(use.owner)
            use = use.next
        return result

    def is_only_used_by(self, owners: Container[Op]) -> bool:
        """Return whether no other op uses it; so is a value that nothing uses."""
        use = self.first_use
        while use is not None:
            if use.owner not in owners:
                return False
            use = use.next
        return True

    @property
    def distinct_users(self) -> list[Op]:
        """The owners of the uses, newest first, each once."""
        return list(dict.fromkeys(self.users))

    @property
    def defining_op(self) -> Op | None:
        """The op that produces it; None for a block argument."""
        return None

    @property
    def block(self) -> Block | None:
        """The block in which it is defined."""
        raise NotImplementedError

    @property
    def location(self) -> Location:
        raise NotImplementedError


class BlockArg(Value):
    __slots__ = ("loc", "owner")

    def __init__(self, type: Type, index: int, owner: Block, loc: Location = UNKNOWN) -> None:
        self.type = type
        self.index = index
        self.first_use = None
        self.owner = owner
        self.loc = loc

    @property
    def block(self) -> Block | None:
        return self.owner

    @property
    def location(self) -> Location:
        return self.loc

    def __repr__(self) -> str:
        return f"<argument {self.index} : {self.type}>"


class OpResult(Value):
    __slots__ = ("op",)

    def __init__(self, type: Type, index: int, op: Op) -> None:
        self.type = type
        self.index = index
        self.first_use = None
        self.op = op

    @property
    def defining_op(self) -> Op | None:
        return self.op

    @property
    def block(self) -> Block | None:
        return self.op.block

    @property
    def location(self) -> Location:
        return self.op.loc

    def __repr__(self) -> str:
        return f"<result {self.index} of {self.op.name} : {self.type}>"


class Op(OperandList["Use", "Value"]):
    """An operation.

    `props` are its inherent attributes (MLIR properties), `attrs` the discardable ones.  The number of `results`
    stays; a pass that drops some makes another op.
    """

    __slots__ = ("attrs", "loc", "name", "props", "regions", "results", "successors")
    #: The op name that this class models; None for the generic class.
    op_name: ClassVar[str | None] = None
    #: The class of a copy of the op that may change, if that is not its own.
    _mutable_class: ClassVar[type[Op] | None] = None
    block: Block | None

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
        results: list[OpResult] = []
        self.results = results
        for type in result_types:
            results.append(OpResult(type, len(results), self))
        self.regions: list[Region] = list(regions)
        self.successors: tuple[Block, ...] = tuple(successors)
        self.loc = loc
        self.block: Block | None = None
        self._prev: Op | None = None
        self._next: Op | None = None
        self._order = -1
        uses: list[Use] = []
        self.operand_uses = uses
        for value in operands:
            uses.append(Use(self, len(uses), value))
        self._capacity = len(uses)
        for region in self.regions:
            if not region.frozen:
                region.parent = self

    def _new_use(self, index: int, value: Value) -> Use:
        return Use(self, index, value)

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
            if result.first_use is not None:
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
        """Return the attribute of that name, discardable or inherent."""
        attribute = self.attrs.get(name)
        return attribute if attribute is not None else self.props.get(name)

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

    def ancestor_in(self, block: Block) -> Op | None:
        """Return this op, or the op around it, that lies directly in `block`; None if there is none."""
        op: Op | None = self
        while op is not None and op.block is not block:
            op = op.parent_op
        return op

    def erase(self) -> None:
        """Remove the op from its block and drop its operands.  Raises if a result still has uses."""
        self._check_mutable()
        for result in self.results:
            if result.first_use is not None:
                raise RuntimeError(
                    f"'{self.name}' still has users: {result.first_use.owner.name} uses result {result.index}"
                )
        self._detach()
        self.drop_all_references()

    def drop_all_references(self) -> None:
        """Take this op, and everything in its regions that is not frozen, off all use lists."""
        self._check_mutable()
        for use in self.operand_uses:
            use._unlink()
        self.operand_uses = []
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
        """Yield this op and everything nested in it, frozen bodies included."""
        if not post_order:
            yield self
        if self.regions:
            yield from walk_regions(self.regions, post_order=post_order, reverse=reverse)
        if post_order:
            yield self

    def clone(self, mapping: dict[Value, Value] | None = None, *, operands: Iterable[Value] | None = None) -> Self:
        """Return a detached copy; `mapping` (old value -> new value) is read for operands and extended by results.

        Frozen bodies are shared, other regions copied.
        """
        mapping = {} if mapping is None else mapping
        regions = [r if r.frozen else r.clone(mapping) for r in self.regions] if self.regions else ()
        cls = self._mutable_class or self.__class__
        copy = cls.__new__(cls)
        # What `__init__` does, without the detours.
        copy.name, copy.loc = self.name, self.loc
        copy.props, copy.attrs = self.props.copy(), self.attrs.copy()
        copy.regions, copy.successors = list(regions), self.successors
        copy.block = copy._prev = copy._next = None
        copy._order = -1
        copy.results = results = []
        for old in self.results:
            mapping[old] = result = OpResult(old.type, old.index, copy)
            results.append(result)
        uses: list[Use] = []
        copy.operand_uses = uses
        if operands is None:
            for use in self.operand_uses:
                value = use.value
                uses.append(Use(copy, len(uses), mapping.get(value, value)))
        else:
            for value in operands:
                uses.append(Use(copy, len(uses), value))
        copy._capacity = len(uses)
        for region in regions:
            if not region.frozen:
                region.parent = copy
        return copy  # type: ignore[return-value]  # a frozen op has the class of `self` as a base

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def __str__(self) -> str:
        return print_op(self)


class Block(OpList[Op]):
    """An ordered list of ops with arguments.  Iteration fixes the next op before it hands out one."""

    __slots__ = ("args", "parent")

    def __init__(self, arg_types: Iterable[Type] = ()) -> None:
        self.args: list[BlockArg] = [BlockArg(t, i, self) for i, t in enumerate(arg_types)]
        self.parent: Region | None = None
        self._first = self._last = None
        self._ordered = True

    @property
    def parent_op(self) -> Op | None:
        return None if self.parent is None else self.parent.parent

    def add_arg(self, type: Type, *, loc: Location = UNKNOWN) -> BlockArg:
        """Add an argument at the end."""
        self.check_mutable()
        arg = BlockArg(type, len(self.args), self, loc)
        self.args.append(arg)
        return arg

    def erase_args(self, indices: Iterable[int]) -> None:
        """Remove arguments.  Raises if one still has uses."""
        self.check_mutable()
        gone = set(indices)
        for i in gone:
            if self.args[i].has_uses:
                raise RuntimeError(f"block argument {i} still has uses")
        self.args = [a for i, a in enumerate(self.args) if i not in gone]
        for i, arg in enumerate(self.args):
            arg.index = i


class Region:
    """The blocks that an op holds.

    `frozen`: the region is immutable and may be shared by many ops; then `parent` is None.  `memo` lets
    functions from bodies to bodies remember their results (`ir/bodies.py`).
    """

    __slots__ = ("blocks", "frozen", "memo", "parent")

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self.blocks: list[Block] = list(blocks)
        self.parent: Op | None = None
        self.frozen = False
        self.memo: dict[Any, Any] = {}
        for block in self.blocks:
            block.parent = self

    @property
    def block(self) -> Block:
        """The only block.  Raises `ValueError` when there are none or several."""
        if len(self.blocks) != 1:
            raise ValueError(f"the region has {len(self.blocks)} blocks, not one")
        return self.blocks[0]

    @property
    def returned(self) -> list[Value]:
        """The operands of the terminator of the only block."""
        return self.block.terminator.operands

    def add_block(self, block: Block) -> Block:
        if self.__class__ is not Region:
            refuse(repr(self))
        block.parent = self
        self.blocks.append(block)
        return block

    def walk(self, *, post_order: bool = True, reverse: bool = False) -> Iterator[Op]:
        """Yield every op in the region."""
        return walk_regions([self], post_order=post_order, reverse=reverse)

    def clone(self, mapping: dict[Value, Value] | None = None) -> Region:
        """Return an unfrozen copy; values defined outside are mapped by `mapping` or kept."""
        mapping = {} if mapping is None else mapping
        blocks: dict[Block, Block] = {}
        for old in self.blocks:
            new = Block()
            for arg in old.args:
                mapping[arg] = new.add_arg(arg.type, loc=arg.loc)
            blocks[old] = new
        copy = Region(blocks.values())
        later: dict[Value, Value] = {}
        if self._may_refer_ahead:  # until the definition is copied, something else stands for its results
            later = {result: Value(result.type, 0) for block in self.blocks for op in block for result in op.results}
            mapping.update(later)
        for old, new in blocks.items():
            clones = [op.clone(mapping) for op in old]
            for clone in clones:
                if clone.successors:
                    clone.successors = tuple([blocks.get(b, b) for b in clone.successors])
            new.append_all(clones)
        if later:
            copy._refer_to_copies({stand_in: mapping[result] for result, stand_in in later.items()})
        return copy

    @property
    def is_graph(self) -> bool:
        """True if order means nothing to the op around it, so that values may be used above their definition."""
        return self.parent is not None and self.parent.name.partition(".")[0] not in _ORDERED_DIALECTS

    @property
    def _may_refer_ahead(self) -> bool:
        """True if values may be used above their definition: between blocks, or where order means nothing."""
        return len(self.blocks) > 1 or self.is_graph

    def __repr__(self) -> str:
        return f"<Region of {self.parent.name if self.parent is not None else 'blocks'}: {len(self.blocks)}>"

    def _refer_to_copies(self, mapping: Mapping[Value, Value]) -> None:
        for block in self.blocks:
            for op in block:
                for use in op.operand_uses:
                    ahead = mapping.get(use.value)
                    if ahead is not None:
                        use.set(ahead)
                if op.name != "func.func":  # sees nothing of what is around it
                    for region in op.regions:
                        if not region.frozen:
                            region._refer_to_copies(mapping)


_TERMINATORS = frozenset({"func.return", "mpmd.return", "stablehlo.return", "sdy.return", "cf.br", "cf.cond_br"})
_CLASSES: dict[str, type[Op]] = {}


def op_class(cls: type[Op]) -> type[Op]:
    """Class decorator: ops named `cls.op_name` are instances of `cls`."""
    assert cls.op_name is not None
    _CLASSES[cls.op_name] = cls
    return cls


def make_op(name: str, *args: Any, **kwargs: Any) -> Op:
    """Return an op of the class that models `name` (the generic class if none does); arguments as `Op`."""
    cls = _CLASSES.get(name)
    if cls is None:
        return Op(name, *args, **kwargs)
    op = cls.__new__(cls)
    Op.__init__(op, name, *args, **kwargs)
    return op


def op_like(
    op: Op,
    operands: Sequence[Value],
    types: Sequence[Type] | None = None,
    *,
    name: str | None = None,
    regions: Sequence[Region] = (),
) -> Op:
    """Return a detached op with the attributes and location of `op`, and with its name and types by default."""
    types = [result.type for result in op.results] if types is None else types
    return make_op(name or op.name, operands, types, props=op.props, attrs=op.attrs, regions=regions, loc=op.loc)
