"""`mpmd-scheduling-units-verifier`."""

from __future__ import annotations

import logging
from collections import Counter

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.fragment_info import call_counter, is_scheduling_unit, single_transpose_count
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.mesh_order import schedulable_meshes

_log = logging.getLogger(__name__)


class SchedulingUnitsVerifier(FunctionPass):
    """Warn of each mesh that does not have one forward and one backward unit per microbatch.

    The number of microbatches is the largest call counter plus one, if there is a zero. Host meshes are skipped.

    Refused:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %0 : !a

    Says: Number of backward scheduling units in mesh a does not match expected number for 1 microbatches. Got 0. A
      pipeline schedule needs one backward fragment per microbatch: check that no inferred computation or
      transfer splits the backward pass on this mesh, and that every named computation is inside a call
    """

    name = "mpmd-scheduling-units-verifier"
    summary = "warn unless each mesh has one forward and one backward unit per microbatch"
    mpmd_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        counters = [
            counter
            for op in walk_mutable(function.regions[0])
            if isinstance(op, FragmentOp) and (counter := call_counter(op)) is not None
        ]
        microbatches = max(counters, default=0) + (0 in counters)
        if microbatches == 0:
            _log.info("@%s is not microbatched: no scheduling units to verify", function.sym_name)
            return False
        units = Counter(
            (op.mesh, single_transpose_count(op))
            for op in function.body
            if isinstance(op, FragmentOp) and is_scheduling_unit(op)
        )
        assert function.topology is not None
        for mesh in schedulable_meshes(function.topology):
            for count, phase in ((0, "forward"), (1, "backward")):
                unit = units[mesh, count]
                if unit != microbatches:
                    diagnostics.warning(
                        function,
                        f"Number of {phase} scheduling units in mesh {mesh} does not match expected number for "
                        f"{microbatches} microbatches. Got {unit}. A pipeline schedule needs one {phase} fragment "
                        f"per microbatch: check that no inferred computation or transfer splits the {phase} pass on "
                        "this mesh, and that every named computation is inside a call",
                    )
        return False
