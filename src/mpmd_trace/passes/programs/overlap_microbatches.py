"""`mpmd-overlap-microbatches` (ours): a forward and a backward of two microbatches become one program."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.fragment_info import BLOCK, MERGED, call_counter, is_scheduling_unit, kind_of, transpose_counts
from mpmd_trace.passes.programs.blocks import (
    Block,
    Part,
    Step,
    WorkOf,
    merge_blocks,
    microbatch_fragments,
    ordered_dependencies,
    ordered_with_groups,
    places_of,
)

#: How the warning begins.
NO_PAIRS = "no mesh runs a forward and a backward of different microbatches one after the other"


@dataclasses.dataclass(frozen=True)
class OverlapMicrobatches(FunctionPass):
    """Merge consecutive forwards and backwards of different microbatches of a mesh, to hide collectives.

    XLA then hides the collectives of one (the all-to-all of experts, gathers of weights, sums over tensor-parallel
    devices) behind the products of the other. A pair starts when the inputs of both are available, and sends its
    results when both are done, so pairs can delay other meshes. The pass therefore simulates the step, with the work of
    each fragment, its collectives, and how much of them is hidden: without pairs, with each forward paired with the
    next backward, with each backward paired with the next forward, and with any two neighbors. It takes the shortest;
    `always` pairs even if nothing is gained.

    Ops between the two fragments move in front of or behind the pair. If one fragment waits for the other, they are not
    merged.  Nothing is done if the schedule has blocks: `mpmd-merge-blocks` has merged those that may be merged.
    With `always`, a warning says if a program with backwards has no pairs.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.transfer %0 : (!a) -> !b
        %2 = mpmd.fragment<mesh="a", origin=["g"], stage=2> (%p) {call_counter = 3 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1, %2 : !b, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"(1), "g"]> (%p)
            {mpmd.merged_call_counters = [0 : ui32, 3 : ui32], mpmd.merged_stages = [0 : ui32, 2 : ui32]} (%u: !t) {
          %2 = stablehlo.negate %u : !t
          %3 = stablehlo.sine %u : !t
          mpmd.return %2, %3 : !t, !t
        } : (!a) -> (!a, !a)
        %1 = mpmd.transfer %0#0 : (!a) -> !b
        return %1, %0#1 : !b, !a
    """

    name = "mpmd-overlap-microbatches"
    summary = "merge a forward and a backward of two microbatches that meet on a mesh"
    mpmd_only = True
    entry_only = True
    always: bool = option(True, "also where the step does not become shorter")
    #: The work of a fragment; without it all are alike, and nothing is hidden.
    work: WorkOf | None = None

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        ops = function.body.ops[:-1]
        marked = [op for op in ops if op.attrs.pop(BLOCK, None)]
        if marked or any(MERGED in op.attrs for op in ops):
            return bool(marked)
        rows = _rows(ops)
        choices = dict.fromkeys(tuple(_pairs(rows, first)) for first in ("F", "B", ""))
        choices.pop((), None)
        waits = ordered_dependencies(ops)
        step = Step(ops, waits, self.work, module)
        best: tuple[float, list[int], list[Block]] | None = None
        for pairs in choices:
            order, kept, _ = ordered_with_groups(waits, [places_of(pair) for pair in pairs])
            chosen = [pairs[k] for k in kept]
            time = step.makespan(order, chosen)
            if chosen and (best is None or time < best[0] * (1 - 1e-9)):
                best = time, order, chosen
        if best is None and self.always and any(isinstance(op, FragmentOp) and any(transpose_counts(op)) for op in ops):
            diagnostics.warning(function, f"{NO_PAIRS}, where neither waits for the other")
        if best is None or not (self.always or step.is_shorter(best[0])):
            return False
        _, order, chosen = best
        merge_blocks(function, ops, order, chosen)
        return True


def _rows(ops: Sequence[Op]) -> dict[str, list[Part]]:
    """Return what each mesh runs for microbatches; a part without a number of a microbatch is none to be paired."""
    rows: dict[str, list[Part]] = {}
    for place, op in microbatch_fragments(ops):
        row = rows.setdefault(op.mesh, [])
        counter = call_counter(op)
        if not is_scheduling_unit(op) or counter is None:
            row.append(Part((place,), "B", -1, None))
            continue
        part = Part((place,), kind_of(op), counter, op.stage)
        before = row[-1] if row else None
        if before is not None and before[2:] == part[2:] and before.is_forward == part.is_forward:
            kind = part.kind if part.kind == before.kind else "B"
            row[-1] = part._replace(places=(*before.places, place), kind=kind)
        else:
            row.append(part)
    return rows


def _pairs(rows: dict[str, list[Part]], first: str) -> Iterator[Block]:
    """Yield a forward and a backward that follow each other, in the order that `first` says, or any; each part once."""
    for row in rows.values():
        free = True
        for a, b in itertools.pairwise(row):
            fits = a.is_forward != b.is_forward and first in ("", "F" if a.is_forward else "B")
            free = not (free and fits and -1 != a.microbatch != b.microbatch != -1)
            if not free:
                yield a, b
