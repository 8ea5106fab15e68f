"""`mpmd-split-bwd-fragments` as `mpmd_trace.jit` runs it: what is in loops, conditionals and `shard_map` is split."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp
from mpmd_trace.passes.common.split_bwd_fragments import SplitBwdFragments, needed_ops
from mpmd_trace.passes.common.splitting import BlockSizes
from mpmd_trace.passes.fission.divide import divide
from mpmd_trace.passes.fission.waiting import waits_for

__all__ = ["UNDIVIDED", "SplitDividedBwdFragments"]

#: How warnings of ops that stay whole begin.
UNDIVIDED = "Gradients of parameters do not wait for those of activations"


@dataclasses.dataclass(frozen=True)
class SplitDividedBwdFragments(SplitBwdFragments):
    """Loops, conditionals and manual computations are divided first; a fragment is split if that leaves work for later.

    The reference keeps them whole, and compares sizes.
    """

    name: ClassVar[str] = "mpmd-split-divided-bwd-fragments"
    summary: ClassVar[str] = "mpmd-split-bwd-fragments that divides loops and conditionals first"

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
