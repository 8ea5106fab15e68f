"""The greedy pattern driver: applies patterns until nothing changes, in the order of MLIR's driver.

Ops are kept on a work stack, so visits go from the last op to the first, and an op that a pattern creates
or touches comes next.  Unused ops without effects are erased on the way.  The frozen bodies of
fragments and named computations are units here: their dead ops and constants are cleaned by remembered
functions from bodies to bodies when a round starts; patterns are not tried inside of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from mpmd_trace.ir.bodies import region_dce as remove_dead_code
from mpmd_trace.ir.bodies import without_dead_ops
from mpmd_trace.ir.core import Block, Op, OpResult, Region, Value
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.semantics import is_constant_like, trivially_dead
from mpmd_trace.ir.walk import walk_regions
from mpmd_trace.passes.constants import ConstantUniquer, home_of, with_unique_constants


class Pattern(Protocol):
    """A rewrite of ops called `op_name` (any op when it is None).

    A pattern with a true attribute `needs_constant` is tried only on ops that read a constant: nearly all ops of
    a program do not, and folding has many patterns.
    """

    op_name: str | None

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        """Rewrite `op` through `rewriter` and say whether that succeeded."""
        raise NotImplementedError


@dataclasses.dataclass(eq=False, slots=True)
class OpPattern:
    """A pattern without attributes of its own."""

    op_name: str | None
    match_and_rewrite: Callable[[Op, Rewriter], bool]


def rewrites(op_name: str) -> Callable[[Callable[[Op, Rewriter], bool]], OpPattern]:
    """Decorate a function that is the pattern for ops of this name."""
    return functools.partial(OpPattern, op_name)


@dataclasses.dataclass(frozen=True)
class GreedyResult:
    """`changed`: some rewrite happened.  `converged`: the last round changed nothing."""

    changed: bool
    converged: bool


def walk_mutable(region: Region) -> Iterator[Op]:
    """Yield every op of a mutable region in post-order, frozen bodies left out."""
    return walk_regions([region], post_order=True, enters_frozen=False)


class Rewriter:
    """What a pattern changes the program with; each method schedules the visits that MLIR's driver schedules.

    Setting operands, bodies or attributes directly schedules nothing; call `modified(op)` where MLIR would.
    A rewriter without scope schedules nothing at all: code that is also used outside of the driver takes one.
    """

    def __init__(self, scope: Region | None = None) -> None:
        self._scope = scope
        # A stack that holds an op at most once: a dict, since `popitem` takes the newest key.
        self._stack: dict[Op, None] = {}
        self._stands_for: dict[Op, Op] = {}
        #: Bodies that `_fill` leaves as they are: many ops have one.
        self._settled: set[Region] = set()
        self.changed = False
        #: Whether constants were unified or moved, which is no reason for another round.
        self.moved_constants = False

    # Ops that are to become one, but are not yet.

    def retire(self, op: Op, leader: Op) -> None:
        """From now on, until the round ends, `leader` stands for `op`, which is visited no more."""
        self._stack.pop(op, None)
        self._stands_for[op] = leader

    def leader(self, op: Op) -> Op:
        """Return the op that stands for `op`; usually itself."""
        result = self._stands_for.get(op)
        if result is None:
            return op
        while (above := self._stands_for.get(result)) is not None:
            result = above
        self._stands_for[op] = result
        return result

    def is_waiting(self, op: Op) -> bool:
        """Return whether a visit of `op` is scheduled."""
        return op in self._stack

    # Notifications.

    def push(self, op: Op) -> None:
        """Put `op`, then the ops around it, on top of the stack, unless they are on it."""
        scope = self._scope
        if scope is None:
            return
        if self._stands_for:
            op = self.leader(op)
        region = None if op.block is None else op.block.parent
        if region is scope:  # most ops lie at the top, or in a function there
            self._stack.setdefault(op)
            return
        around: list[Op] = [op]
        while region is not None and (current := region.parent) is not None and current.block is not None:
            around.append(current)
            region = current.block.parent
            if region is scope:
                for one in around:
                    self._stack.setdefault(one)
                return

    def _push_first(self, op: Op) -> None:
        """`push` while nothing was visited: around an op that is on the stack, all are."""
        stack, scope = self._stack, self._scope
        current: Op | None = op
        while current is not None and current not in stack:
            stack[current] = None
            region = None if current.block is None else current.block.parent
            current = None if region is None or region is scope else region.parent

    def modified(self, op: Op) -> None:
        """`op` was changed in place."""
        self.push(op)

    # Changes.

    def insert_before(self, anchor: Op, op: Op) -> Op:
        """Insert a new op, or move one, directly before `anchor`."""
        op.move_before(anchor)
        self.push(op)
        return op

    def insert_after(self, anchor: Op, op: Op) -> Op:
        """Insert a new op, or move one, directly after `anchor`."""
        op.move_after(anchor)
        self.push(op)
        return op

    def insert_front(self, block: Block, op: Op) -> Op:
        """Insert a new op, or move one, at the start of `block`."""
        block.insert_front(op)
        self.push(op)
        return op

    def move_before(self, op: Op, anchor: Op) -> None:
        self.insert_before(anchor, op)

    def move_after(self, op: Op, anchor: Op) -> None:
        self.insert_after(anchor, op)

    def replace_all_uses(self, old: Value, new: Value) -> None:
        """Redirect the uses of `old`, newest first; the users are visited again."""
        if old is new:
            return
        for use in old.uses:
            use.set(new)
            self.push(use.owner)

    def replace_uses_if(self, old: Value, new: Value, accept: Callable[[Op], bool]) -> None:
        """Redirect the uses whose owner is accepted, newest first."""
        for use in old.uses:
            if accept(use.owner):
                use.set(new)
                self.push(use.owner)

    def replace_op(self, op: Op, values: Sequence[Value]) -> None:
        """Redirect the uses of each result to the value of the same number, then erase `op`."""
        for result, value in zip(op.results, values, strict=True):
            self.replace_all_uses(result, value)
        self.erase(op)

    def erase(self, op: Op) -> None:
        """Erase `op`, which must be unused, and what is nested in it."""
        self._forget(op)
        op.erase()

    def _forget(self, op: Op) -> None:
        if self._scope is None:
            return
        for region in reversed(op.regions) if op.regions else ():
            if not region.frozen:
                for block in reversed(region.blocks):
                    for nested in reversed(block):
                        self._forget(nested)
        for use in op.operand_uses:
            operand = use.value
            if isinstance(operand, OpResult) and self._few_other_users(operand, op):
                self.push(operand.op)
        self._stack.pop(op, None)

    def _few_other_users(self, value: OpResult, op: Op) -> bool:
        """Return whether at most one op other than `op` uses the value."""
        definer, other, use = value.op, None, value.first_use
        if use is not None and use.next is None:  # as it is nearly always
            return True
        if self._stands_for:
            definer = self.leader(definer)
        while use is not None:
            user = self.leader(use.owner) if self._stands_for else use.owner
            if user is not op and user is not other and user is not definer:
                if other is not None:
                    return False
                other = user
            use = use.next
        return True

    # The driver.

    def _fill(self, unique_constants: bool) -> None:
        scope = self._scope
        assert scope is not None
        self._stack = {}
        uniquer = ConstantUniquer(lambda op, known: self.replace_op(op, known.results))
        homes: dict[Region, Region] = {}
        for op in list(walk_mutable(scope)):
            for i, region in enumerate(op.regions) if op.regions else ():
                if region.frozen and region not in self._settled:
                    if unique_constants:
                        op.regions[i] = with_unique_constants(region)
                        self.moved_constants |= op.regions[i] is not region
                    self._clean(op, i)
                    if op.regions[i] is region:
                        self._settled.add(region)
            if unique_constants and is_constant_like(op):
                assert op.block is not None and op.block.parent is not None
                region = op.block.parent
                home = homes.get(region)
                if home is None:
                    home = homes[region] = home_of(region, scope)
                if not uniquer.visit(op, home):
                    continue
            self._push_first(op)
        self.moved_constants |= uniquer.changed

    def _clean(self, op: Op, i: int) -> None:
        cleaned = without_dead_ops(op.regions[i])
        if cleaned is not op.regions[i]:
            op.regions[i] = cleaned
            self.changed = True

    def _drain(self, choices: Choices, settle: Callable[[], None] | None) -> None:
        stack = self._stack
        while stack:
            op, _ = stack.popitem()
            if trivially_dead(op):
                self.erase(op)
                self.changed = True
                continue
            for pattern in choices.of(op):
                if pattern.match_and_rewrite(op, self):
                    self.changed = True
                    break
        if settle is not None:
            settle()
            self._stands_for.clear()
        if self.changed:  # before constants move again: dead ops between them are gone by then
            assert self._scope is not None
            for op in walk_mutable(self._scope):
                for i, region in enumerate(op.regions) if op.regions else ():
                    if region.frozen and region not in self._settled:
                        self._clean(op, i)


class Choices:
    """Which of some patterns are worth trying on an op."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        #: Per op name all patterns, and those for ops that read no constant.
        self._by_name: dict[str, tuple[list[Pattern], list[Pattern]]] = {}

    def of(self, op: Op) -> list[Pattern]:
        """Return the patterns, in order."""
        patterns = self._by_name.get(op.name)
        if patterns is None:
            every = [p for p in self._patterns if p.op_name in (None, op.name)]
            plain = [p for p in every if not getattr(p, "needs_constant", False)]
            patterns = self._by_name[op.name] = every, every if len(plain) == len(every) else plain
        every, plain = patterns
        if every is plain:
            return every
        for use in op.operand_uses:
            value = use.value
            if isinstance(value, OpResult) and is_constant_like(value.op):
                return every
        return plain


def apply_greedily(
    root: FuncOp | Module | Region,
    patterns: Sequence[Pattern] | Choices,
    *,
    unique_constants: bool = False,
    region_dce: bool = False,
    max_rounds: int = 10,
    settle: Callable[[], None] | None = None,
) -> GreedyResult:
    """Apply `patterns` to everything below `root` until a round changes nothing, at most `max_rounds` times.

    For an op the patterns are tried in order; the first that succeeds ends the visit.  `unique_constants`
    unifies and hoists constants when a round starts; `region_dce` removes unused code after each round.
    `settle` is called when a round has nothing more to visit, for changes that patterns have put off.
    """
    if isinstance(root, Region):
        scope = root
    else:
        scope = (root.op if isinstance(root, Module) else root).regions[0]
    rewriter = Rewriter(scope)
    choices = patterns if isinstance(patterns, Choices) else Choices(patterns)
    changed = False
    for _ in range(max_rounds):
        rewriter.changed = False
        rewriter._fill(unique_constants)
        rewriter._drain(choices, settle)
        if region_dce and remove_dead_code(scope):
            rewriter.changed = True
        if not rewriter.changed:
            return GreedyResult(changed or rewriter.moved_constants, True)
        changed = True
    return GreedyResult(changed, False)
