"""Stacks of a result of all iterations of a loop: in a fragment, the concatenation of its operands, each expanded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import BlockArg, Op, Value
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.types import TensorType, tensor


class Stack(NamedTuple):
    """A stack in a fragment, of which the last part stands for several iterations."""

    fragment: FragmentOp
    #: The operands of the fragment, one for each part.
    operands: tuple[int, ...]
    #: The concatenation.
    joined: Op


def stack_of(fragment: FragmentOp, joined: Op, repeats: int) -> Stack | None:
    """Return the stack that an op is, whose last part stands for `repeats` iterations; None if it is none.

    The operands of the fragment and the parts are there for the stack alone.
    """
    if joined.name != "stablehlo.concatenate" or joined.num_operands < 2:
        return None
    type, last = joined.operands[-1].type, joined.operands[-1].defining_op
    if last is None or last.name != "stablehlo.broadcast_in_dim":
        return None
    if not isinstance(type, TensorType) or not type.shape or type.shape[0] != repeats:
        return None
    operands = []
    for part in joined.operands:
        expand = part.defining_op
        if expand is None or expand.num_operands != 1 or len(part.users) != 1:
            return None
        argument = expand.operand(0)
        if not isinstance(argument, BlockArg) or len(argument.users) != 1:
            return None
        operands.append(argument.index)
    return Stack(fragment, tuple(operands), joined)


def set_parts(stacks: Mapping[Stack, Sequence[Value]], repeats: int = 1) -> None:
    """Let stacks have these parts, of which the last one stands for `repeats` iterations.

    A barrier behind a stack goes.  New fragments take the places of theirs.
    """
    for fragment in dict.fromkeys(stack.fragment for stack in stacks):
        own = {stack: values for stack, values in stacks.items() if stack.fragment is fragment}
        _set_parts(fragment, own, repeats)


def _set_parts(fragment: FragmentOp, stacks: Mapping[Stack, Sequence[Value]], repeats: int) -> None:
    by_joined = {stack.joined: stack for stack in stacks}
    by_operand = {stack.operands[0]: stack for stack in stacks}
    others = {operand for stack in stacks for operand in stack.operands[1:]}
    parts = {part.defining_op for joined in by_joined for part in joined.operands}
    builder = BodyBuilder()
    operands: list[Value] = []
    mapping: dict[Value, Value] = {}
    given: dict[Stack, list[Value]] = {}
    for argument, operand in zip(fragment.body.block.args, fragment.operands, strict=True):
        if argument.index in by_operand:
            stack = by_operand[argument.index]
            operands += stacks[stack]
            given[stack] = [builder.arg(argument.type, argument.location) for _ in stacks[stack]]
        elif argument.index not in others:
            operands.append(operand)
            mapping[argument] = builder.arg(argument.type, argument.location)
    whole = {joined.result for joined in by_joined}
    for op in fragment.body.block.ops[:-1]:
        if op in by_joined:
            expanded = _expanded(op, given[by_joined[op]], repeats, builder)
            mapping[op.result] = builder.block.append(op.clone(operands=expanded)).result
        elif op.name == "stablehlo.optimization_barrier" and op.num_operands == 1 and op.operand(0) in whole:
            mapping[op.result] = mapping[op.operand(0)]
        elif op not in parts:
            copy = builder.add(op, mapping)
            mapping.update(zip(op.results, copy.results, strict=True))
    new = fragment.clone(operands=operands)
    assert isinstance(new, FragmentOp) and fragment.block is not None
    new.body = builder.finish([mapping[value] for value in fragment.body.returned])
    fragment.block.insert_before(fragment, new)
    fragment.replace_all_uses_with(new.results)
    fragment.erase()


def _expanded(joined: Op, values: Sequence[Value], repeats: int, builder: BodyBuilder) -> list[Value]:
    """Return the parts of a stack of these values, expanded like its first and its last one."""
    expand, repeat = (joined.operands[i].defining_op for i in (0, -1))
    assert expand is not None and repeat is not None
    parts: list[Value] = [builder.add(expand, {expand.operand(0): value}).result for value in values[:-1]]
    if repeats == 1:
        return [*parts, builder.add(expand, {expand.operand(0): values[-1]}).result]
    type = repeat.result.type
    assert isinstance(type, TensorType) and type.shape is not None
    shape = (repeats, *type.shape[1:])
    type = tensor(shape, type.element, type.encoding)
    return [*parts, builder.op(repeat.name, [values[-1]], [type], props=repeat.props, attrs=repeat.attrs).result]
