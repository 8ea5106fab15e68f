"""Bodies without the middle of their long sums, for sharding propagation.

The last backward fragment of a stage may add up the gradients of all microbatches.  In the small program of
`reduced_program.py` most of them are one value, and what is between the first and the last of its additions is left
out of the body that Shardy sees:

    s1 = add(s0, g1); s2 = add(s1, g2); .. s9 = add(s8, g9)     becomes     s1 = add(s0, g1); s9 = add(s1, g9)

Where both have the same shardings afterwards, so has all that was left out.
"""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import IntegerAttr, TensorShardingPerValueAttr
from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Block, BlockArg, Op, Region, Value
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentOp

#: Temporary attribute of the last addition of a sum: which sum it is.
_SUM = "mpmd_trace.sum"
#: Sums of fewer additions stay as they are.
_LEAST_ADDITIONS = 6


@dataclasses.dataclass(frozen=True, eq=False)
class ShortSums:
    """What is left of the body `whole`."""

    whole: Region
    body: Region
    #: The arguments of `whole` that `body` has, too.
    kept: list[int]
    #: For each argument of `whole`, the one of `body` that stands for it.
    stand_ins: list[int]
    #: The additions in `whole` of which `body` has the first and the last one, sum by sum.
    sums: list[list[Op]]

    def restore(self, fragment: FragmentOp) -> bool:
        """Give a fragment with `body` after propagation what was left out.

        Changes nothing and gives False where the ends of a sum have different shardings.
        """
        whole = _restored(fragment.body, self)
        if whole is None:
            return False
        if fragment.in_shardings is not None:
            shardings = [fragment.in_shardings.shardings[i] for i in self.stand_ins]
            if any(shardings[_added(ops[0]).index] != shardings[_added(ops[-1]).index] for ops in self.sums):
                return False
            fragment.props["in_shardings"] = TensorShardingPerValueAttr.get(shardings)
        fragment.body = whole
        return True


@remembers
def short_sums(body: Region, operands: tuple[int, ...]) -> ShortSums | None:
    """Return the body without the middle of its long sums of equal operands; None if it has none.

    `operands` has equal numbers for equal ones.
    """
    sums = _sums(body, operands)
    if not sums:
        return None
    args = body.block.args
    left_out = {op: ops[0] for ops in sums for op in ops[1:-1]}
    arg_of = {_added(op): _added(first) for op, first in left_out.items()}
    number_of = {ops[-1]: IntegerAttr.get(number, "i64") for number, ops in enumerate(sums)}
    block = Block()
    mapping: dict[Value, Value] = {arg: block.add_arg(arg.type, loc=arg.loc) for arg in args if arg not in arg_of}
    kept = [arg.index for arg in args if arg in mapping]
    for op in body.block:
        if op in left_out:
            mapping[op.results[0]] = mapping[op.operand(0)]
            continue
        copy = block.append(op.clone(mapping))
        if op in number_of:
            copy.attrs[_SUM] = number_of[op]
    stand_ins = [kept.index(arg_of.get(arg, arg).index) for arg in args]
    return ShortSums(body, freeze(Region([block])), kept, stand_ins, sums)


def _sums(body: Region, operands: tuple[int, ...]) -> list[list[Op]]:
    """Return runs of additions, each of the result of the one before and of an argument with an equal operand."""
    sums: list[list[Op]] = [[]]
    for op in body.block:
        if op.name != "stablehlo.add" or not (isinstance(op.operand(1), BlockArg) and op.operand(1).has_one_use):
            continue
        last = sums[-1][-1] if sums[-1] else None
        if (
            last is not None
            and last is op.prev_op
            and last.results == [op.operand(0)]
            and last.results[0].has_one_use
            and last.attrs == op.attrs
            and operands[_added(last).index] == operands[_added(op).index]
        ):
            sums[-1].append(op)
        else:
            sums.append([op])
    return [ops for ops in sums if len(ops) >= _LEAST_ADDITIONS]


def _added(addition: Op) -> BlockArg:
    arg = addition.operand(1)
    assert isinstance(arg, BlockArg)
    return arg


@remembers
def _restored(after: Region, short: ShortSums) -> Region | None:
    """Return what the whole body is after propagation, if the short one is `after`; None if that is not clear."""
    block = Block()
    args = [block.add_arg(arg.type, loc=arg.loc) for arg in short.whole.block.args]
    mapping: dict[Value, Value] = dict(zip(after.block.args, [args[i] for i in short.kept], strict=True))
    for op in after.block:
        copy = op.clone(mapping)
        number = copy.attrs.pop(_SUM, None)
        if isinstance(number, IntegerAttr):
            first = op.operand(0).defining_op
            if first is None or first.name != op.name or first.attrs != copy.attrs:
                return None
            for addition in short.sums[number.value][1:-1]:
                new = first.clone(operands=[copy.operand(0), args[_added(addition).index]])
                new.loc = addition.loc
                copy.set_operand(0, block.append(new).results[0])
        block.append(copy)
    return freeze(Region([block]))
