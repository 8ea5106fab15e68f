"""`mpmd-merge-parts-of-stages` (ours)."""

from __future__ import annotations

from collections.abc import Hashable

from mpmd_trace.ir.core import Block
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.block_order import apply_order, block_dependencies, ranked_order
from mpmd_trace.passes.common.merge_neighbours import merge_neighbours
from mpmd_trace.passes.fragment_info import call_counter, has_remat, is_forward, single_transpose_count, split_type
from mpmd_trace.passes.loop_numbers import LoopNumbers


class MergePartsOfStages(FunctionPass):
    """Merge all fragments of a stage, phase and microbatch, even if they do not depend on each other.

    For example, the backwards of `h = f(x); y = h + g(tokens)` both read the gradient of `y` and do not depend on each
    other. The reference merges only fragments of which one reads the other, and rejects a stage that runs twice for a
    microbatch. This pass moves such fragments next to each other and merges neighbors (docs/rewriting.md) sideways.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["g"(1)], stage=0> (%p) {call_counter = 4 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"(1)], stage=0> (%p) {call_counter = 4 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %0, %1 : !a, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["g"(1), "f"(1)], stage=0> (%p) {call_counter = 4 : ui32} (%u: !t) {
          %1 = stablehlo.negate %u : !t
          %2 = stablehlo.sine %u : !t
          mpmd.return %1, %2 : !t, !t
        } : (!a) -> (!a, !a)
        return %0#0, %0#1 : !a, !a
    """

    name = "mpmd-merge-parts-of-stages"
    summary = "merge user fragments of one stage, phase and microbatch that do not need each other"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        units = [unit for op in function.body if isinstance(op, FragmentOp) and (unit := _unit(op)) is not None]
        if len(set(units)) == len(units):
            return False
        moved = _bring_together(function.body)
        return merge_neighbours(function, _of_one_unit, "sideways") or moved


def _bring_together(block: Block) -> bool:
    """Make neighbors of the parts of each stage, where no part needs something that needs another part.

    A discriminator judges data, then something is generated on its meshes, then it judges that.
    """
    ops = block.ops[:-1]
    loops = LoopNumbers()
    parts: dict[Hashable, list[int]] = {}
    for place, op in enumerate(ops):
        if isinstance(op, FragmentOp) and (unit := _unit(op)) is not None:
            forward = op.stage if is_forward(op) else None
            parts.setdefault((unit, loops.of(op.mesh, forward, call_counter(op))), []).append(place)
        else:
            parts[op] = [place]
    nodes = sorted(parts.values(), key=lambda places: places[-1])
    node_of = {place: node for node, places in enumerate(nodes) for place in places}
    uses = block_dependencies(ops)
    preds = [
        list(dict.fromkeys(node_of[p] for place in places for p in uses[place] if node_of[p] != node))
        for node, places in enumerate(nodes)
    ]
    order = ranked_order(preds, range(len(nodes)))
    return len(order) == len(nodes) and apply_order(block, [ops[place] for node in order for place in nodes[node]])


def _unit(fragment: FragmentOp) -> Hashable | None:
    """Mesh, stage, phase, microbatch and kind of a user fragment that has a stage; None for others."""
    phase = single_transpose_count(fragment) if fragment.is_user and fragment.stage is not None else None
    if phase is None:
        return None
    return fragment.mesh, fragment.stage, phase, call_counter(fragment), has_remat(fragment), split_type(fragment)


def _of_one_unit(first: FragmentOp, second: FragmentOp, is_next: bool) -> bool:
    unit = _unit(first)
    return unit is not None and unit == _unit(second)
