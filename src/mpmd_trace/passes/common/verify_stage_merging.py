"""`mpmd-verify-stage-merging`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable

from mpmd_trace.diagnostics.messages import Note
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.fragment_info import (
    call_counter,
    describe_fragment,
    fragment_transpose_count,
    has_remat,
    split_type,
)
from mpmd_trace.passes.greedy import walk_mutable

#: Said where a stage runs forwards once, and backwards twice.
_BACKWARDS = (
    "the first backward is here; the stage runs forwards once. Products with the Hessian have one backward when they "
    "are forward over reverse: jax.jvp(jax.grad(loss), (weights,), (direction,)). jax.checkpoint around several "
    "stages that is differentiated twice has one when each stage has its own checkpoint, or when what is computed "
    "between the stages is computed inside of them"
)


@dataclasses.dataclass(frozen=True)
class VerifyStageMerging(FunctionPass):
    """Check that no two fragments run the same stage, phase, microbatch and part on the same mesh.

    A recomputed forward in a backward (marked `remat`) counts as backward. A fragment without `call_counter` stands for
    every microbatch. All violations are reported before the pass fails.

    Refused:

        %0 = mpmd.fragment<mesh="a", origin=["f"], stage=0> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["g"], stage=0> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %0, %1 : !a, !a

    Says: stage 0 runs twice on mesh 'a' for the same microbatch: the fragment of "g" is a second one with stage_id=0,
      transpose_count=0, call_counter=-1, split_type=none, remat=no, beside the fragment ["f"] on mesh 'a',
      stage 0. They could not be merged into one: most often the stages form a cycle, where something on another
      mesh needs the first and feeds the second. Give them different stages, or move the computation in between
      into one of them. If the second one belongs to another loop over microbatches, give its calls counters of
      their own (mpmd_trace.call with call_counter), or its computations other names, or leave the stages out
    """

    name = "mpmd-verify-stage-merging"
    summary = "reject two fragments for the same stage, phase and microbatch"

    def loop_of(self, function: FuncOp) -> Callable[[FragmentOp, int | None, int | None], int]:
        """Return a function from fragments, their phase and their microbatch to the loop that may run a stage."""
        return lambda fragment, count, counter: 0

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        recorded: dict[Hashable, dict[int | None, FragmentOp]] = {}
        loop_of = self.loop_of(function)
        twice: set[tuple[str, int]] = set()  # forwards
        for fragment in walk_mutable(function.regions[0]):
            if not isinstance(fragment, FragmentOp) or (stage := fragment.stage) is None:
                continue
            count = fragment_transpose_count(fragment)
            if count is None:
                raise diagnostics.fatal(
                    fragment,
                    f"{describe_fragment(fragment)} has a stage but no phase: its origins "
                    f"{'have different transpose counts' if fragment.origin else 'are missing'}",
                )
            mesh, split, remat = fragment.mesh, split_type(fragment), has_remat(fragment)
            counter = call_counter(fragment)
            loop = loop_of(fragment, count, counter)
            recorded_here = recorded.setdefault((mesh, stage, count, split, remat, loop), {})
            other = next(iter(recorded_here.values()), None) if counter is None else None
            other = other or recorded_here.get(counter) or recorded_here.get(None)
            if other is None:
                recorded_here[counter] = fragment
                continue
            if not count:
                twice.add((mesh, stage))
            again = count > 0 and (mesh, stage) not in twice
            origins = ", ".join(origin.short for origin in fragment.origin)
            diagnostics.refuse(
                fragment,
                f"stage {stage} runs twice on mesh '{mesh}' for the same microbatch: the fragment of {origins} is a "
                f"second one with stage_id={stage}, transpose_count={count}, "
                f"call_counter={-1 if counter is None else counter}, split_type={split or 'none'}, "
                f"remat={'yes' if remat else 'no'}, beside the {describe_fragment(other)}. They could not "
                "be merged into one: most often the stages form a cycle, where something on another mesh needs the "
                "first and feeds the second. Give them different stages, or move the computation in between into one "
                "of them. If the second one belongs to another loop over microbatches, give its calls counters of "
                "their own (mpmd_trace.call with call_counter), or its computations other names, or leave the stages "
                "out",
                [Note(_BACKWARDS, other.loc)] if again else [],
            )
        return False
