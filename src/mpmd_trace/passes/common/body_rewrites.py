"""Changes of fragments that several passes make; those of bodies are remembered on the body they start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from mpmd_trace.ir.attributes import ArrayAttr, DictAttr
from mpmd_trace.ir.bodies import dce, region_dce, remembers
from mpmd_trace.ir.core import Op, OpResult, Region, Value, op_like
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentOp, TransferOp
from mpmd_trace.ir.types import Type

SomeOp = TypeVar("SomeOp", bound=Op)


def cover_transferred_results(fragment: FragmentOp) -> None:
    """Lengthen `res_attrs`, if there is one, by empty entries, so that each transferred result has an entry.

    MLIR verifies a transfer by the entry of its operand and reads past the end of a list that is too short.
    """
    listed = fragment.attrs.get("res_attrs")
    if isinstance(listed, ArrayAttr):
        transferred = [r.index for r in fragment.results if any(isinstance(user, TransferOp) for user in r.users)]
        missing = max(transferred, default=-1) + 1 - len(listed.elements)
        entries = [*listed.elements, *[DictAttr.get({})] * missing]
        fragment.attrs["res_attrs"] = ArrayAttr.get(entries)


@remembers
def prune(body: Region, keep_results: tuple[bool, ...]) -> tuple[Region, tuple[bool, ...]]:
    """Return the body that returns only some values and holds no dead op and no unused argument.

    Also says which arguments it kept.
    """
    gone = [i for i, kept in enumerate(keep_results) if not kept]
    if not gone and dce(body) is body and all(a.has_uses for a in body.block.args):
        return body, (True,) * len(body.block.args)
    copy = body.clone()
    block = copy.block
    block.terminator.erase_operands(gone)
    region_dce(copy)
    used = tuple(a.has_uses for a in block.args)
    block.erase_args([i for i, u in enumerate(used) if not u])
    return freeze(copy), used


def alias_arguments(body: Region, first: Sequence[int]) -> Region:
    """Return the body in which argument `first[i]` stands for argument i; arguments stay."""
    args = body.block.args
    changes = tuple((i, j) for i, j in enumerate(first) if i != j and args[i].has_uses)
    return _aliased(body, changes) if changes else body


@remembers
def _aliased(body: Region, changes: tuple[tuple[int, int], ...]) -> Region:
    copy = body.clone()
    for i, j in changes:
        copy.block.args[i].replace_all_uses_with(copy.block.args[j])
    return freeze(copy)


def replace_op(
    op: SomeOp,
    operands: Sequence[Value],
    results: Sequence[OpResult],
    more: Sequence[Type] = (),
    *,
    regions: Sequence[Region] = (),
) -> SomeOp:
    """Return a new op in the place of `op`, which is gone: with its attributes, but these operands and frozen regions.

    Of its results it has `results`, all others being unused, and behind them some of the types `more`.
    """
    types = [*[result.type for result in results], *more]
    new = op_like(op, operands, types, regions=regions)
    new.move_before(op)
    for old, result in zip(results, new.results, strict=False):
        old.replace_all_uses_with(result)
    op.erase()
    return cast(SomeOp, new)
