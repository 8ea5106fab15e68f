"""Functions from bodies to bodies.

A body is the frozen region of a fragment or a named computation.  Whoever needs a different body derives it
here; the result is remembered on the body it was derived from, so that the same change on the bodies of many
microbatches is made once and yields the same object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar, TypeVarTuple

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.printer import print_region
from mpmd_trace.ir.semantics import is_removable
from mpmd_trace.ir.types import Type

T = TypeVar("T")
Others = TypeVarTuple("Others")
#: In the place of what is not known yet.
_MISSING: Any = object()


def remembered(region: Region, key: Hashable, make: Callable[[], T]) -> T:
    """Return `make()`, computed once for this body and key.  `key` may contain other bodies."""
    assert region.frozen, "only frozen bodies remember"
    memo = region.memo
    result: T = memo.get(key, _MISSING)
    if result is _MISSING:
        result = memo[key] = make()
    return result


def remembers(make: Callable[[Region, *Others], T]) -> Callable[[Region, *Others], T]:
    """Decorate a function of a frozen body and other arguments: its result is remembered on the body."""

    @functools.wraps(make)
    def made(body: Region, *others: *Others) -> T:
        # What `remembered` does: this is asked of every op of a program again and again.
        assert body.frozen, "only frozen bodies remember"
        key = (make, *others)
        result: T = body.memo.get(key, _MISSING)
        if result is _MISSING:
            result = body.memo[key] = make(body, *others)
        return result

    return made


def copied_ops(block: Block, args: Sequence[Value]) -> tuple[list[Op], list[Value]]:
    """Detached copies of the ops of a block, for these arguments, and what they would return; no terminator."""
    mapping: dict[Value, Value] = dict(zip(block.args, args, strict=True))
    terminator = block.terminator
    copies = [op.clone(mapping) for op in block if op is not terminator]
    return copies, [mapping.get(value, value) for value in terminator.operands]


class BodyBuilder:
    """Builds a new body.

    builder = BodyBuilder()
    x = builder.arg(type)
    y, = builder.inline(other_body, [x])     # the ops of `other_body`; gives the values it returns
    z = builder.op("stablehlo.add", [x, y], [type]).result
    body = builder.finish([z])               # frozen
    """

    def __init__(self) -> None:
        self.block = Block()

    def arg(self, type: Type, loc: Location = UNKNOWN) -> Value:
        """Return a new block argument."""
        return self.block.add_arg(type, loc=loc)

    def op(self, name: str, operands: Sequence[Value], result_types: Sequence[Type], **kwargs: object) -> Op:
        """Append a new op (keyword arguments as for `Op`)."""
        return self.block.append(make_op(name, operands, result_types, **kwargs))

    def add(self, op: Op, mapping: dict[Value, Value]) -> Op:
        """Append a copy of `op`, its operands (also inside its regions) replaced by `mapping`."""
        return self.block.append(op.clone(mapping))

    def inline(self, body: Region, args: Sequence[Value]) -> list[Value]:
        """Append copies of the ops of `body` for these arguments; returns the values it would return."""
        ops, returned = copied_ops(body.block, args)
        self.block.append_all(ops)
        return returned

    def finish(self, returned: Sequence[Value], terminator: str = "mpmd.return") -> Region:
        """Return the frozen body that returns these values."""
        self.block.append(make_op(terminator, returned))
        return freeze(Region([self.block]))


def effective_operands(op: Op) -> list[Value]:
    """Return the operands of the op, then the values that its regions capture, each once."""
    own = [use.value for use in op.operand_uses]
    return list(dict.fromkeys(own + free_values(op) if op.regions else own))


def free_values(op: Op) -> list[Value]:
    """Values used inside the regions of `op` but defined outside of it, in order of first use.

    The order is that of a post-order walk, operands left to right; frozen bodies have no free values.
    """
    if not op.regions:
        return []
    used: dict[Value, None] = {}
    inside: set[Block | None] = set()

    def visit(op: Op) -> None:
        for region in op.regions:
            if not region.frozen:
                inside.update(region.blocks)
                for block in region.blocks:
                    for nested in block:
                        if nested.regions:
                            visit(nested)
                        used.update(dict.fromkeys(nested.operands))

    visit(op)
    return [value for value in used if value.block not in inside]


def region_dce(region: Region) -> bool:
    """Remove the unused removable ops of a mutable region, at any depth, in one sweep.  Says if it did.

    Frozen bodies in it are replaced by their cleaned version.  What an op inside a region returns counts as
    used even when the op around the region is not, as in MLIR: what such an op captures stays for this time.
    """
    gone = _dead_ops(region)
    for op in gone:
        op.erase()
    return replace_bodies(region, dce) or bool(gone)


def _dead_ops(region: Region) -> dict[Op, None]:
    """Return the ops that `region_dce` removes, users before producers; frozen bodies inside are not looked into."""
    dead: dict[Op, None] = {}

    def visit(region: Region) -> None:
        for block in reversed(region.blocks):
            for op in reversed(block):
                for nested in op.regions:
                    if not nested.frozen:
                        visit(nested)
                for result in op.results:  # of most ops the first one is used
                    if not result.is_only_used_by(dead):
                        break
                else:
                    if not op.is_terminator and is_removable(op):
                        dead[op] = None

    visit(region)
    return dead


def bodies_in(region: Region) -> Iterator[tuple[Op, int, Region]]:
    """Yield the frozen bodies directly in a region, or in regions of leaf ops: op, number of the region, body."""
    for block in region.blocks:
        for op in block:
            for i, nested in enumerate(op.regions):
                if nested.frozen:
                    yield op, i, nested
                else:
                    yield from bodies_in(nested)


def replace_bodies(region: Region, derive: Callable[[Region], Region]) -> bool:
    """Replace the frozen bodies in a region, each distinct one by what is derived from it; say whether any changed."""
    derived: dict[Region, Region] = {}
    changed = False
    for op, i, body in bodies_in(region):
        new = derived.get(body)
        if new is None:
            new = derived[body] = derive(body)
        if new is not body:
            op.regions[i] = new
            changed = True
    return changed


@remembers
def dce(body: Region) -> Region:
    """Return the body after `region_dce`; the same object when that changes nothing.  Arguments stay."""
    if not _dead_ops(body) and all(dce(inner) is inner for _, _, inner in bodies_in(body)):
        return body
    copy = body.clone()
    region_dce(copy)
    return freeze(copy)


@remembers
def without_dead_ops(body: Region) -> Region:
    """Return the body after `dce` as often as it changes something."""
    cleaned = dce(body)
    return body if cleaned is body else without_dead_ops(cleaned)


def map_ops(
    body: Region, key: Hashable, rewrite: Callable[[Region], bool], *, only: Callable[[Op], bool] | None = None
) -> Region:
    """Return the body after `rewrite` worked on a mutable copy of it; the same body when it says nothing changed.

    Nor is a copy made of a body that has no op for which `only` holds.
    """

    def make() -> Region:
        if only is not None and not any(map(only, body.walk())):
            return body
        copy = body.clone()
        return freeze(copy) if rewrite(copy) else body

    return remembered(body, key, make)


def rewrite_bodies(op: Op, rewritten: dict[Region, Region], rewrite: Callable[[Region], bool]) -> bool:
    """Replace the frozen bodies of an op by what `rewrite` makes of mutable copies; return whether any changed.

    `rewritten` holds the result for each body of an earlier call, since ops share bodies.
    """
    changed = False
    for i, body in enumerate(op.regions):
        if body.frozen:
            if body not in rewritten:
                copy = body.clone()
                rewritten[body] = freeze(copy) if rewrite(copy) else body
            op.regions[i] = rewritten[body]
            changed = changed or op.regions[i] is not body
    return changed


def fingerprint(region: Region) -> str:
    """Return a text that two regions share iff they print the same (up to value names).  Frozen ones remember it."""
    if region.frozen:
        return remembered(region, "fingerprint", lambda: print_region(region))
    return print_region(region)


def equivalent(a: Region, b: Region) -> bool:
    """Return whether the two bodies consist of the same ops in the same order."""
    return a is b or fingerprint(a) == fingerprint(b)
