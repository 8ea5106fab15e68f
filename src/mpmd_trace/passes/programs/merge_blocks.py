"""`mpmd-merge-blocks` (ours): a block of the schedule becomes one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.fragment_info import Kind, block_of, call_counter, describe_fragment
from mpmd_trace.passes.programs.blocks import (
    Block,
    Cycle,
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
APART = "a block of the schedule is not one program"


@dataclasses.dataclass(frozen=True)
class MergeBlocks(FunctionPass):
    """Merge the fragments of each block of the schedule, such as a forward and a backward of another microbatch.

    `mpmd-follow-schedule` has marked them.  XLA then hides the collectives of each part behind the products of the
    others.  A block starts when the inputs of all its parts are available, and sends its results when all are done; ops
    between the fragments move in front of it or behind it.  If that is impossible, because a part has to wait for
    something that waits for another part, or for another block that waits for this one, a warning says so, and the
    parts stay apart.  Without `always`, blocks are merged only if a simulation says that the step becomes shorter, as
    in `mpmd-overlap-microbatches`, which leaves the parts of other blocks apart: they keep their marks until then.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p)
            {call_counter = 3 : ui32, mpmd.block = [0 : ui32, "F"]} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.transfer %0 : (!a) -> !b
        %2 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%p)
            {call_counter = 0 : ui32, mpmd.block = [0 : ui32, "I"]} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1, %2 : !b, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["f", "f"(1)]> (%p)
            {mpmd.merged_call_counters = [3 : ui32, 0 : ui32], mpmd.merged_kinds = ["F", "I"]} (%u: !t) {
          %2 = stablehlo.sine %u : !t
          %3 = stablehlo.negate %u : !t
          mpmd.return %2, %3 : !t, !t
        } : (!a) -> (!a, !a)
        %1 = mpmd.transfer %0#0 : (!a) -> !b
        return %1, %0#1 : !b, !a
    """

    name = "mpmd-merge-blocks"
    summary = "merge the fragments of each block of the schedule"
    mpmd_only = True
    entry_only = True
    always: bool = option(True, "also where the step does not become shorter")
    work: WorkOf | None = None

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        ops = function.body.ops[:-1]
        blocks = _blocks(ops)
        if not blocks:
            return False
        waits = ordered_dependencies(ops)
        order, kept, cycles = ordered_with_groups(waits, [places_of(block) for block in blocks])
        chosen = [blocks[k] for k in kept]
        if not self.always:
            step = Step(ops, waits, self.work, module)
            if not step.is_shorter(step.makespan(order, chosen)):
                return True
        if cycles:
            first, *others = sorted(cycles)
            text = _obstacle(function, blocks, first, cycles[first])
            if others:
                text += "; nor are these: " + ", ".join(_described(function, blocks[number]) for number in others)
            diagnostics.warning(ops[places_of(blocks[first])[0]], text)
        merge_blocks(function, ops, order, chosen)
        return True


def _blocks(ops: Sequence[Op]) -> list[Block]:
    """Return the blocks whose fragments are marked."""
    places: dict[int, dict[tuple[Kind, int, int | None], list[int]]] = {}
    for place, op in microbatch_fragments(ops):
        mark, counter = block_of(op), call_counter(op)
        if mark is not None and counter is not None:
            number, kind = mark
            places.setdefault(number, {}).setdefault((kind, counter, op.stage), []).append(place)
    blocks = [[Part(tuple(own), *key) for key, own in parts.items()] for parts in places.values()]
    return [block for block in blocks if len(block) > 1]


def _obstacle(function: FuncOp, blocks: Sequence[Block], number: int, cycle: Cycle) -> str:
    """Return why a block is not merged: it would wait for itself, by way of what the cycle says."""
    ops, block = function.body.ops, blocks[number]
    block_at = {place: one for one in blocks for place in places_of(one)}
    between = [place for _, place in cycle[:-1]]
    others = [block_at[place] for place in between if place in block_at]
    start = f"{APART}: {_described(function, block)}, since"
    if others:
        return f"{start} it and {_described(function, others[0])} would wait for each other"
    later, earlier = (
        _text(function, block, [part for part in block if place in part.places])
        for place in (cycle[0][0], cycle[-1][1])
    )
    fragments = [op for place in between if isinstance(op := ops[place], FragmentOp)]
    why = describe_fragment(fragments[0]) if fragments else "a transfer to another mesh and back"
    return f"{start} {later} waits for {why}, which waits for {earlier}"


def _described(function: FuncOp, block: Block) -> str:
    return f"{_text(function, block, block)} on mesh '{_mesh(function, block)}'"


def _text(function: FuncOp, block: Block, parts: Block) -> str:
    """Return parts of a block as schedules write them."""
    from mpmd_trace.schedules import Action, fused  # commands that list passes start without schedules

    assert function.topology is not None
    mesh = [*function.topology.meshes].index(_mesh(function, block))
    actions = [Action(mesh if part.stage is None else part.stage, part.kind, part.microbatch) for part in parts]
    return str(fused(*actions)) if len(actions) > 1 else str(actions[0])


def _mesh(function: FuncOp, block: Block) -> str:
    op = function.body.ops[block[0].places[0]]
    assert isinstance(op, FragmentOp)
    return op.mesh
