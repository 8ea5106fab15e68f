"""`MarkEqualDonation`: equal fragments donate the same, so that they stay one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from mpmd_trace.ir.attributes import DictAttr
from mpmd_trace.ir.bodies import effective_operands, remembers
from mpmd_trace.ir.core import BlockArg, Op, Region, Use
from mpmd_trace.ir.ops import FragmentOp, FuncOp
from mpmd_trace.ir.shardings import sharding_class
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.export.mark_aliasing_and_donation import DONOR, LateResults, MarkAliasingAndDonation
from mpmd_trace.passes.export.value_attrs import EMPTY, array_of, value_dicts
from mpmd_trace.passes.fragment_info import MERGED


@dataclasses.dataclass(frozen=True)
class MarkEqualDonation(MarkAliasingAndDonation):
    """Mark donation as `mpmd-mark-aliasing-and-donation`, but in the same way for equal fragments.

    The last fragment of equal ones does not donate operands that the others keep, and none of them donates scalars that
    another one keeps. Types that differ only in how they spell an unsharded dimension count as equal. An operand is
    aliased, if possible, to a result that XLA can only write after all readers of the operand have run; for other
    results, XLA would copy the operand first. In programs of two microbatches, no other aliasing is done: a result of
    one microbatch would wait for the readers of the operand in the other, whose collectives would then not be hidden.
    """

    name = "mpmd-mark-equal-donation"
    summary = "mpmd-mark-aliasing-and-donation with which equal fragments donate the same"

    def needed(self, function: FuncOp) -> Callable[[Use, FragmentOp], bool]:
        program = _programs([op for op in function.body if isinstance(op, FragmentOp)])

        def read_by_its_like(use: Use, op: FragmentOp) -> bool:
            """Return whether another fragment with an equal body reads the value: donation would make two programs."""
            others = [user for user in use.value.users if isinstance(user, FragmentOp) and user is not op]
            return any(program.get(other.body, other.body) is program[op.body] for other in others)

        return read_by_its_like

    def finish(self, fragments: Sequence[FragmentOp]) -> None:
        _keep_scalars(fragments, _programs(fragments))

    def kind(self, type: Type) -> Hashable:
        if isinstance(type, MeshTensorType):
            return type.tensor, sharding_class(type.sharding), type.memory_kind
        return type

    def alike(self, op: FragmentOp) -> Hashable:
        return op.body

    def late_results(self, op: FragmentOp) -> LateResults:
        return _late_results(op.body)._replace(only=MERGED in op.attrs)


def _programs(fragments: Iterable[FragmentOp]) -> Mapping[Region, Region]:
    """Return for each body the first one that is equal."""
    return first_equal(dict.fromkeys([op.regions[0] for op in fragments]))


@remembers
def _late_results(body: Region) -> LateResults:
    block = body.block
    ops = list(block)[:-1]
    #: The ops that an op depends on, itself among them, as bits.
    before: dict[Op, int] = {}
    read = [effective_operands(op) for op in ops]
    for i, op in enumerate(ops):
        bits = 1 << i
        for value in read[i]:
            if (maker := value.defining_op) is not None:
                bits |= before[maker]
        before[op] = bits
    makers_of_results = [value.defining_op for value in body.returned]
    counts = [0 if maker is None else before[maker].bit_count() for maker in makers_of_results]
    order = sorted(range(len(counts)), key=lambda k: -counts[k])
    #: The results that depend on an op.
    after: dict[Op, int] = dict.fromkeys(ops, 0)
    for rank, k in enumerate(order):
        if (maker := makers_of_results[k]) is not None:
            after[maker] |= 1 << rank
    every = (1 << len(order)) - 1
    of_args: list[int | None] = [None] * len(block.args)
    for op in reversed(ops):
        results = after[op]
        for value in read.pop():
            if (maker := value.defining_op) is not None:
                after[maker] |= results
            elif isinstance(value, BlockArg):
                known = of_args[value.index]
                of_args[value.index] = results & (every if known is None else known)
    return LateResults(tuple(order), tuple([known or 0 for known in of_args]))


def _keep_scalars(fragments: Iterable[FragmentOp], program: Mapping[Region, Region]) -> None:
    """Donate no scalar that another fragment with an equal body keeps, as where it is sent on to the next mesh."""
    alike: dict[Region, list[FragmentOp]] = {}
    for op in fragments:
        alike.setdefault(program[op.body], []).append(op)
    for members in alike.values():
        scalars = [i for i, arg in enumerate(members[0].body.block.args) if arg.type.is_scalar]
        given = [value_dicts(op, "arg_attrs") or [EMPTY] * op.num_operands for op in members] if scalars else []
        for i in scalars:
            marked = [op for op, dicts in zip(members, given, strict=True) if DONOR in dicts[i].entries]
            if 0 < len(marked) < len(members):
                for op in marked:
                    dicts = list(value_dicts(op, "arg_attrs") or ())
                    dicts[i] = DictAttr.get({k: v for k, v in dicts[i].entries.items() if k != DONOR})
                    op.attrs["arg_attrs"] = array_of(dicts)
