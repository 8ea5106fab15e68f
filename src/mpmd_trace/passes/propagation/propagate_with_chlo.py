"""`PropagateWithChlo`: Shardy's propagation in programs that keep ops of CHLO."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.settled import ByBody
from mpmd_trace.passes.sharding.chlo_rules import with_rules
from mpmd_trace.passes.sharding.propagate_without_shardings import drop_whole_shardings, propagate_in_bodies
from mpmd_trace.passes.sharding.shardy_propagation import ShardyPropagation

#: `whole_up_to` in pipelines of ours, where no one compares what Shardy makes of smaller programs with the reference.
WHOLE_UP_TO = 1_000


@dataclasses.dataclass(frozen=True)
class PropagateWithChlo(ShardyPropagation):
    """Propagate shardings with Shardy, and with rules for ops of CHLO, which Shardy does not have.

    Shardings without axes are dropped first, and without any shardings, users of a constant expression share it.
    """

    name = "mpmd-propagate-with-chlo"
    summary = "mpmd-shardy-propagation with rules for ops of CHLO"

    whole_up_to: int = WHOLE_UP_TO

    def prepare(self, module: Module, function: FuncOp) -> None:
        drop_whole_shardings(module, function)

    def propagate_in_bodies(
        self, module: Module, function: FuncOp, fragments: ByBody, diagnostics: Diagnostics
    ) -> bool:
        return propagate_in_bodies(module, function, fragments, diagnostics, chlo=True, split=False)

    def prepare_bodies(self, function: FuncOp) -> None:
        for op in function.body:
            if isinstance(op, FragmentOp):
                op.body = with_rules(op.body)
