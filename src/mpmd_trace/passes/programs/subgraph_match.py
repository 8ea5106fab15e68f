"""Finding a body inside of a larger one, and what remains of that then."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from mpmd_trace.ir.bodies import BodyBuilder, effective_operands, remembers
from mpmd_trace.ir.core import BlockArg, Op, OpResult, Region, Value
from mpmd_trace.ir.semantics import is_removable
from mpmd_trace.passes.dedup_bodies import look_alike, same_regions
from mpmd_trace.passes.sharding.edges import CONSTRAINT

#: So often an op of the whole is compared, on average.
_LOOKS = 4


@dataclasses.dataclass(frozen=True)
class Division:
    """A body as a part, which is another body, and a rest (None if nothing is left).

    Operands of the part: (True, i) is the i-th result of the rest, (False, i) the i-th argument of the whole.
    Operands of the rest: (True, i) is the i-th result of the part, (False, i) the i-th argument of the whole.
    Results of the whole: (True, i) is the i-th result of the part, (False, i) the i-th of the rest.
    """

    rest: Region | None
    rest_first: bool
    operands: tuple[tuple[bool, int], ...]
    rest_operands: tuple[tuple[bool, int], ...]
    results: tuple[tuple[bool, int], ...]


@remembers
def moving_ops(body: Region) -> list[Op]:
    """Return the ops that depend on arguments, in order, without cheap ones: all others are where they are needed."""
    moving, cheap = _moving(body), _cheap_ops(body)
    return [op for op in body.block if op not in cheap and not moving.isdisjoint(op.results)]


@remembers
def _cheap_ops(body: Region) -> set[Op]:
    """Return the ops that make scalars of only scalar arguments and constants, or fill arrays with such scalars."""
    result: set[Op] = set()
    for op in body.block:
        if _is_cheap(op) and all(v.defining_op is None or v.defining_op in result for v in op.operands):
            result.add(op)
    return result


@remembers
def _moving(body: Region) -> set[Value]:
    """Return the values that depend on arguments."""
    result: set[Value] = set(body.block.args)
    for op in body.block:
        if not result.isdisjoint(effective_operands(op)):
            result.update(op.results)
    return result


@remembers
def _can_be_divided(whole: Region) -> bool:
    """Return whether the ops of a body may run in another order, in two programs."""
    return all(
        (is_removable(op) and (op.results or op.is_terminator))
        or (op.name == CONSTRAINT and op.result.first_use is not None)
        for op in whole.block
    )


@remembers
def divided(whole: Region, part: Region) -> Division | None:
    """Return how `whole` is `part` and a rest; None when it is not, or when neither could run first.

    Ops of both are compared in order: those of the part are a subsequence of those of the whole.  Where the part might
    begin at many ops that are alike, the first of them are tried.
    """
    if not _can_be_divided(whole):
        return None
    ops, wanted = moving_ops(whole), moving_ops(part)
    looks = _LOOKS * len(ops)
    for start in range(len(ops) - len(wanted) + 1):
        if wanted and look_alike(wanted[0], ops[start]):
            if looks < 0:
                return None
            walk = _Walk(_moving(whole), _cheap_ops(part))
            if walk.finds(wanted, ops[start:]) and walk.images.keys() >= set(part.block.args):
                return _Divider(whole, part, walk.images).division()
            looks -= walk.looks
    return None


class _Walk:
    """Looks for ops among others, in order.

    `images`: for each value of the part the value of the whole in its place; `alike`: pairs of values besides that
    are equal; `looks`: how often ops were compared.
    """

    def __init__(self, moving: set[Value], cheap: set[Op]) -> None:
        self.moving = moving
        self.cheap = cheap
        self.images: dict[Value, Value] = {}
        self.alike: set[tuple[Value, Value]] = set()
        self.looks = 0

    def finds(self, wanted: Sequence[Op], ops: Sequence[Op]) -> bool:
        rest = iter(ops)
        return all(any(self._fits(op, other) for other in rest) for op in wanted)

    def _fits(self, a: Op, b: Op) -> bool:
        """Return whether the ops are equal for the images so far and those of more arguments, which are kept then."""
        self.looks += 1
        if not look_alike(a, b):
            return False
        more: dict[Value, Value] = {}
        alike: set[tuple[Value, Value]] = set()
        if not self._same(zip(a.operands, b.operands, strict=True), more, alike):
            return False
        if a.regions:
            inside = {**self.images, **more}
            if not all(same_regions(x, y, inside) for x, y in zip(a.regions, b.regions, strict=True)):
                return False
        self.images.update(more)
        self.images.update(zip(a.results, b.results, strict=True))
        self.alike |= alike
        return True

    def _same(
        self, pairs: Iterable[tuple[Value, Value]], more: dict[Value, Value], alike: set[tuple[Value, Value]]
    ) -> bool:
        """Return whether values are equal, pair by pair; gets images of more arguments, and pairs of other values."""
        pending = list(pairs)
        while pending:
            pair = mine, other = pending.pop()
            if pair in self.alike or pair in alike:
                continue
            known = self.images.get(mine) or more.get(mine)
            if known is other:
                continue
            if known is not None or mine.type is not other.type:
                return False
            if isinstance(mine, BlockArg):
                if other not in self.moving:
                    return False
                more[mine] = other
                continue
            # What is cheap, or a constant, is in no order.
            if not isinstance(mine, OpResult) or not isinstance(other, OpResult) or mine.index != other.index:
                return False
            if not look_alike(mine.op, other.op) or not (mine.op in self.cheap or other not in self.moving):
                return False
            if mine.op.regions:
                return False
            alike.add(pair)
            pending += zip(mine.op.operands, other.op.operands, strict=True)
        return True


class _Divider:
    """Makes a division of the images of the values of the part."""

    def __init__(self, whole: Region, part: Region, images: dict[Value, Value]) -> None:
        self.whole = whole
        self.part = part
        self.images = images
        self.cheap = _cheap_ops(whole)
        self.taken = {images[r].defining_op for op in moving_ops(part) for r in op.results}
        #: The results of the part, which it returns at that place.
        self.made: dict[Value, int] = {}
        for i, value in enumerate(part.returned):
            if isinstance(image := images.get(value), OpResult):
                self.made.setdefault(image, i)

    def division(self) -> Division | None:
        given = [self.images[arg] for arg in self.part.block.args]
        if any(value.defining_op in self.taken for value in given if isinstance(value, OpResult)):
            return None
        fed = [value for value in given if isinstance(value, OpResult)]
        returned = self.whole.returned
        own = list(dict.fromkeys([*[value for value in returned if value not in self.made], *fed]))
        needed = self._needed(own)
        if needed is None:
            return None
        late = [value for value in needed if self._is_late(value)]
        if fed and late:
            return None
        outside: dict[Value, int] = {arg: i for i, arg in enumerate(self.whole.block.args)}
        operands = [*[v for v in needed if isinstance(v, BlockArg)], *late]
        ops = {value.defining_op for value in needed if not self._is_late(value)}
        builder = BodyBuilder()
        mapping = {value: builder.arg(value.type, value.location) for value in operands}
        for op in self.whole.block:
            if op in ops:
                builder.add(op, mapping)
        numbers = {value: i for i, value in enumerate(own)}
        return Division(
            rest=builder.finish([mapping[value] for value in own]) if own else None,
            rest_first=not late,
            operands=tuple([(True, numbers[v]) if isinstance(v, OpResult) else (False, outside[v]) for v in given]),
            rest_operands=tuple([(False, outside[v]) if v in outside else (True, self.made[v]) for v in operands]),
            results=tuple([(True, self.made[v]) if v in self.made else (False, numbers[v]) for v in returned]),
        )

    def _needed(self, own: Sequence[Value]) -> list[Value] | None:
        """Return the values that those of the rest depend on, and these; None if too much would be computed twice."""
        result: dict[Value, None] = {}
        stack = list(reversed(own))
        while stack:
            value = stack.pop()
            if value in result:
                continue
            result[value] = None
            op = value.defining_op
            if op is None or self._is_late(value):
                continue
            if op in self.taken and op not in self.cheap:
                return None
            stack += effective_operands(op)
        return list(result)

    def _is_late(self, value: Value) -> bool:
        """Return whether the rest takes the value from the part."""
        return value in self.made and value.defining_op not in self.cheap


def _is_cheap(op: Op) -> bool:
    """Return whether it makes a scalar of scalars, or fills an array with one."""
    values = op.operands if op.name == "stablehlo.broadcast_in_dim" else [*op.operands, *op.results]
    return not op.regions and all(v.type.is_scalar for v in values)
