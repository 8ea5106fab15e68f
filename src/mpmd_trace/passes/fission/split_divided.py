"""`mpmd-split-bwd-fragments` as `mpmd_trace.jit` runs it: what is in loops, conditionals and `shard_map` is split."""

from __future__ import annotations

import dataclasses

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentOp, FuncOp
from mpmd_trace.passes.base import option
from mpmd_trace.passes.common.split_bwd_fragments import SplitBwdFragments, needed_ops
from mpmd_trace.passes.common.splitting import BlockSizes
from mpmd_trace.passes.fission.deferred_work import contracts, waits_for
from mpmd_trace.passes.fission.demand import BARRIER, CONDITIONALS, LOOP, MANUAL, demanded, is_divisible
from mpmd_trace.passes.fission.late_part import LatePart
from mpmd_trace.passes.fission.parts import divide_op, obstacle

_KINDS = {BARRIER: "barrier", LOOP: "loop", MANUAL: "shard_map", **dict.fromkeys(CONDITIONALS, "conditional")}


@dataclasses.dataclass(frozen=True)
class Whole:
    """An op that is needed early and computes what is not, too; and why it stays one."""

    kind: str
    location: Location
    reason: str
    #: Whether there are matrix products in it.
    contracts: bool


@dataclasses.dataclass(frozen=True)
class Divided:
    """A body that computes the same."""

    body: Region
    whole: tuple[Whole, ...]


@remembers
def divide(body: Region, late_results: tuple[bool, ...], mesh: MeshAttr) -> Divided:
    """Return the body after fission: what `late_results` alone need is computed by ops of its own.

    A loop is two, of which the first one stacks what the second one reads of each iteration; a conditional is two with
    the same predicate; a manual computation is two. The second ones compute again what costs nothing, such as rows of
    arrays that are there.
    """
    copy = body.clone()
    roots: tuple[list[Value], list[Value]] = ([], [])
    for value, is_late in zip(copy.returned, late_results, strict=True):
        roots[is_late].append(value)
    whole: dict[Op, str] = {}
    waiting: set[Op] = set()
    while True:
        early = demanded(roots[0], whole)
        # What no part of is early goes to the late part as it is, and takes all that its ops take.
        undivided = {op for op in copy.walk() if is_divisible(op) and not any(r in early for r in op.results)}
        late = demanded(roots[1], undivided.union(whole))
        mixed = [op for op in copy.walk() if op not in whole and is_divisible(op) and _is_mixed(op, early)]
        reasons = {op: reason for op in mixed if (reason := obstacle(op, early, late, mesh)) is not None}
        if not reasons:
            break
        whole.update(reasons)
        waiting.update(op for op in reasons if any(r in late and r not in early for r in op.results))
    for op in copy.walk():  # the others compute all of their results at once
        if (op in whole or not is_divisible(op)) and any(result in early for result in op.results):
            early.update(op.results)
    for op in mixed:
        divide_op(op, early, late, mesh)
    cheap = _compute_again(copy, early, late_results)
    kept = [Whole(_KINDS[op.name], op.loc, why, contracts(op)) for op, why in whole.items() if op in waiting]
    return Divided(freeze(copy) if mixed or cheap else body, tuple(kept))


def _is_mixed(op: Op, early: set[Value]) -> bool:
    """Return whether some results are needed early, and others later or never."""
    return any(r in early for r in op.results) and not all(r in early for r in op.results)


def _compute_again(body: Region, early: set[Value], late_results: tuple[bool, ...]) -> bool:
    """Copy the early ops that cost nothing for what is late; says if there are any."""
    block = body.block
    part = LatePart(block, early, given=block.args)
    part.collect(v for v, is_late in zip(body.returned, late_results, strict=True) if is_late and v not in early)
    ops = part.ops
    again = [op for op in ops if any(result in early for result in op.results)]
    copies: dict[Value, Value] = {}
    readers = set(ops).difference(again)
    for op in again:
        clone = block.insert_after(op, op.clone())
        readers.add(clone)
        copies.update(zip(op.results, clone.results, strict=True))
    for op in block:  # in this order, since barriers may follow each other
        for result in op.results:
            if result in part.same:
                operand = part.same[result]
                copies[result] = copies.get(operand, operand)
    for value, other in copies.items():
        value.replace_uses_if(other, lambda use: use.owner.ancestor_in(block) in readers)
    return bool(copies)


#: How warnings of ops that stay whole begin.
UNDIVIDED = "Gradients of parameters do not wait for those of activations"


@dataclasses.dataclass(frozen=True)
class SplitDividedBwdFragments(SplitBwdFragments):
    """Split backward fragments, dividing their loops, conditionals and manual computations first.

    The reference does not divide these, and compares sizes.
    """

    name = "mpmd-split-divided-bwd-fragments"
    summary = "mpmd-split-bwd-fragments that divides loops and conditionals first"

    meshes: tuple[str, ...] = option((), "the meshes whose backwards are split; all by default")

    def may_split(self, fragment: FragmentOp) -> bool:
        return super().may_split(fragment) and (not self.meshes or fragment.mesh in self.meshes)

    def ops_that_stay(
        self,
        fragment: FragmentOp,
        pulled: tuple[bool, ...],
        function: FuncOp,
        sizes: BlockSizes,
        diagnostics: Diagnostics,
    ) -> tuple[Op, ...] | None:
        topology = function.topology
        assert topology is not None
        divided = divide(fragment.body, pulled, topology.meshes[fragment.mesh])
        stay = needed_ops(divided.body, pulled)
        waits = waits_for(divided.body, stay)
        for op in divided.whole:
            if op.contracts:
                name = ", ".join(origin.name for origin in fragment.origin)
                diagnostics.warn_once(
                    f"{self.name} {op.location}",
                    op.location,
                    f"{UNDIVIDED}, as the schedule would have them: this {op.kind} in the backward pass of '{name}' "
                    f"computes both, and {op.reason}. {'The rest is split.' if waits else 'Nothing of it is split.'} "
                    "(docs/schedules.md)",
                )
        if not waits:
            return None
        fragment.regions[0] = divided.body
        return stay
