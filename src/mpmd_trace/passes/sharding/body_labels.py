"""What propagation can see of a body: everything but the values of constants and the places of slices.

Two microbatches often differ only in these.  The labels here let the reduction of a program
(`reduction.py`) see that they are alike.
"""

from __future__ import annotations

import re

from mpmd_trace.ir.bodies import fingerprint, remembered
from mpmd_trace.ir.core import BlockArg, OpResult, Region, Value

__all__ = ["abstract_text", "operand_labels", "result_labels"]

_HIDDEN = re.compile(r'("(?:stablehlo\.constant|sdy\.constant)"\(\)|"stablehlo\.slice"\([^()]*\)) <\{.*\}>(?= )')
_HIDDEN_OPS = frozenset({"stablehlo.constant", "sdy.constant", "stablehlo.slice"})


def abstract_text(body: Region) -> str:
    """Return the text of the body without the values of constants and the positions of slices."""
    return remembered(body, "abstract text", lambda: _HIDDEN.sub(r"\1", fingerprint(body)))


def result_labels(body: Region) -> tuple[int, ...]:
    """Per returned value a number; equal ones are computed alike, up to constants and positions of slices."""
    return remembered(body, "result labels", lambda: _labels(body))


def _labels(body: Region) -> tuple[int, ...]:
    numbers: dict[object, int] = {}
    known: dict[Value, int] = {}

    def number(key: object) -> int:
        return numbers.setdefault(key, len(numbers))

    def of(value: Value) -> int:
        if value not in known:  # an argument, or a value of an op with regions
            known[value] = number(("other", len(known)))
        return known[value]

    for arg in body.block.args:
        known[arg] = number(("argument", arg.index))
    for op in body.block:
        props = () if op.name in _HIDDEN_OPS else tuple(sorted((k, v.text) for k, v in op.props.items()))
        attrs = tuple(sorted((k, v.text) for k, v in op.attrs.items()))
        unique = len(known) if op.regions else -1
        operands = tuple(of(v) for v in op.operands)
        for result in op.results:
            key = (op.name, props, attrs, operands, unique, result.index, result.type)
            known[result] = number(key)
    return tuple(known[v] if isinstance(v, BlockArg | OpResult) else -1 for v in body.returned)


_LOOK_AHEAD = 2


def operand_labels(body: Region) -> tuple[int, ...]:
    """Per argument a number; those with equal ones are read alike for the next few ops.

    A fragment that adds up the gradients of all microbatches reads each of them at another place of a long
    chain.  All but the ends of the chain look the same from a few ops away.
    """
    return remembered(body, "operand labels", lambda: _operand_labels(body))


def _operand_labels(body: Region) -> tuple[int, ...]:
    numbers: dict[object, int] = {}
    block = body.block
    terminator = block.terminator
    looks = {
        op: (op.name, tuple(sorted((k, v.text) for k, v in op.props.items())))
        for op in block
        if op is not terminator and op.name not in _HIDDEN_OPS
    }
    values: list[Value] = [*block.args, *(r for op in block for r in op.results)]
    labels: dict[Value, int] = {v: numbers.setdefault(v.type, len(numbers)) for v in values}
    for _ in range(_LOOK_AHEAD):
        fresh: dict[Value, int] = {}
        for value in values:
            readers = set()
            for use in value.uses:
                op = use.owner
                if op is terminator:
                    readers.add(("return", use.index, 0))
                    continue
                results = tuple(labels.get(r, -1) for r in op.results)
                readers.add((looks.get(op, op.name), use.index, results))  # type: ignore[arg-type]
            key = (value.type, frozenset(readers))
            fresh[value] = numbers.setdefault(key, len(numbers))
        labels = fresh
    return tuple(labels[a] for a in block.args)
