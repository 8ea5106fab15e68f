"""Splits a fragment in two: one part that runs first, and one that needs what the first leaves behind.

Shared by the two splitting passes.  The body is split by a remembered function, so that the microbatches of
a stage share both parts, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from mpmd_trace.ir.bodies import BodyBuilder, effective_operands, remembers
from mpmd_trace.ir.core import Block, Op, Region, Value, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.semantics import is_removable
from mpmd_trace.ir.types import TensorType, Type, mesh_tensor
from mpmd_trace.passes.common.body_rewrites import cover_transferred_results
from mpmd_trace.passes.fragment_info import SplitType, set_split_type
from mpmd_trace.passes.reachable import reachable


def backward_closure(body: Region, roots: Iterable[Value]) -> tuple[Op, ...]:
    """Return the ops of the body from which data flows into `roots`, in order; captured values count as operands."""

    def producers(values: Iterable[Value]) -> list[Op]:
        return [op for value in values if (op := value.defining_op) is not None]

    closure = reachable(producers(roots), lambda op: producers(effective_operands(op)))
    return tuple(op for op in body.block if op in closure)


@dataclasses.dataclass(frozen=True)
class SplitBody:
    """The two parts of a body.

    `first` returns the values that are not pulled, then the residuals; `second` has the residuals as its last
    arguments and returns the pulled values.
    """

    first: Region
    second: Region
    residual_types: tuple[Type, ...]


@remembers
def split_body(body: Region, pulled: tuple[bool, ...], stay: tuple[Op, ...]) -> SplitBody:
    """Split the body: `stay` are the ops of the first part, `pulled` the results of the second."""
    late = [v for v, p in zip(body.returned, pulled, strict=True) if p]
    second_ops, residuals = _second_part(body, late, set(stay))
    early = [v for v, p in zip(body.returned, pulled, strict=True) if not p]
    terminator = body.block.terminator
    first = _part(body, [op for op in stay if op is not terminator], (), [*early, *residuals])
    second = _part(body, second_ops, residuals, late)
    return SplitBody(first, second, tuple(r.type for r in residuals))


def _second_part(body: Region, returned: Sequence[Value], first_ops: set[Op]) -> tuple[list[Op], list[Value]]:
    """Return the ops of the second part and the values that it takes from the first one.

    The order of the residuals is depth first from the returned values, last operands first.
    """
    residuals: dict[Value, None] = {}
    live: set[Op] = set()

    def collect(roots: Sequence[Value], with_arguments: bool) -> None:
        seen: set[Value] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            op = value.defining_op
            if op in first_ops or (op is None and with_arguments):
                residuals.setdefault(value)
            elif op is not None:
                live.add(op)
                stack += effective_operands(op)

    collect(returned, with_arguments=True)
    terminator = body.block.terminator
    others = [op for op in body.block if op not in first_ops and op is not terminator]
    for op in others:  # effects without a use in what is returned
        if op not in live and not is_removable(op):
            live.add(op)
            collect(effective_operands(op), with_arguments=False)
    kept: list[Op] = []
    lost: set[Op] = set()
    for op in others:
        if op not in live:  # dead code may lack what it would need
            needs = [v for v in effective_operands(op) if v not in residuals]
            if any(v.defining_op in first_ops or v.defining_op in lost for v in needs):
                lost.add(op)
                continue
        kept.append(op)
    return kept, list(residuals)


def _part(body: Region, ops: Sequence[Op], extra: Sequence[Value], returned: Sequence[Value]) -> Region:
    builder = BodyBuilder()
    mapping: dict[Value, Value] = {a: builder.arg(a.type, a.loc) for a in body.block.args}
    for value in extra:
        mapping[value] = builder.arg(value.type, value.location)
    for op in ops:
        builder.add(op, mapping)
    return builder.finish([mapping[v] for v in returned])


class BlockSizes:
    """The number of ops of blocks, kept while fragments in them are split."""

    def __init__(self) -> None:
        self._sizes: dict[Block, int] = {}

    def of(self, block: Block) -> int:
        """Return the number of ops of the block."""
        if block not in self._sizes:
            self._sizes[block] = sum(1 for _ in block)
        return self._sizes[block]

    def grow(self, block: Block) -> None:
        """Count one op more in the block."""
        if block in self._sizes:
            self._sizes[block] += 1


def split_fragment(
    fragment: FragmentOp, pulled: Sequence[bool], stay: tuple[Op, ...], diagnostics: Diagnostics
) -> bool:
    """Replace the fragment by two; says whether it did."""
    parts = split_body(fragment.body, tuple(pulled), stay)
    residual_types: list[Type] = []
    for type in parts.residual_types:
        if not isinstance(type, TensorType):
            diagnostics.refuse(
                fragment,
                f"the fragment on mesh {fragment.mesh} cannot be split: a value of type {type} would go "
                "from one part to the other, and only tensors can",
            )
            return False
        residual_types.append(mesh_tensor(fragment.mesh, type))
    block = fragment.block
    assert block is not None
    early = [r for r, p in zip(fragment.results, pulled, strict=True) if not p]
    late = [r for r, p in zip(fragment.results, pulled, strict=True) if p]
    operands = fragment.operands

    def part(values: list[Value], types: list[Type], body: Region, kind: SplitType) -> FragmentOp:
        made = op_like(fragment, values, types, regions=[body])
        assert isinstance(made, FragmentOp)
        set_split_type(made, kind)
        return made

    first = part(operands, [r.type for r in early] + residual_types, parts.first, "kKeepTransferred")
    block.insert_after(fragment, first)
    rest: list[Value] = list(first.results[len(early) :])
    second = part(operands + rest, [r.type for r in late], parts.second, "kDropTransferred")
    block.insert_after(first, second)
    for old, new in zip([*early, *late], [*first.results[: len(early)], *second.results], strict=True):
        old.replace_all_uses_with(new)
    fragment.erase()
    for made in (first, second):
        cover_transferred_results(made)
    return True
