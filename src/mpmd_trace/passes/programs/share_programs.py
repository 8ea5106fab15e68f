"""`mpmd-share-programs` (ours): microbatches that differ in repeated operands alone run the same program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from mpmd_trace.ir.bodies import BodyBuilder, remembers
from mpmd_trace.ir.core import Op, Region, Use, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, make_fragment
from mpmd_trace.ir.semantics import is_negligible
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.block_order import in_block_order
from mpmd_trace.passes.dedup_bodies import first_equal, same_ops
from mpmd_trace.passes.fragment_info import is_of_microbatch


class SharePrograms(FunctionPass):
    """Let the first microbatch of a stage run the same program as the others.

    The sums of a step start from zeros. All zeros of one type are one value, so the body of the first microbatch reads
    it once, where the others read several sums. The first microbatch gets the body of the others, and that value as
    several operands. Then each fragment of a microbatch that could overwrite such an operand with its result gets a
    constant of its own, which it may overwrite as the others do their sums.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=[]> () () {
          %c = stablehlo.constant dense<0.0> : !t
          mpmd.return %c : !t
        } : () -> !a
        %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%0) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          %w = stablehlo.negate %u : !t
          mpmd.return %v, %w : !t, !t
        } : (!a) -> (!a, !a)
        %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%1#0, %1#1) {call_counter = 1 : ui32} (%u: !t, %s: !t) {
          %v = stablehlo.sine %u : !t
          %w = stablehlo.negate %s : !t
          mpmd.return %v, %w : !t, !t
        } : (!a, !a) -> (!a, !a)
        return %2#0, %2#1 : !a, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=[]> () () {
          %cst = stablehlo.constant dense<0.000000e+00> : !t
          %cst_0 = stablehlo.constant dense<0.000000e+00> : !t
          mpmd.return %cst, %cst_0 : !t, !t
        } : () -> (!a, !a)
        %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%0#0, %0#1) {call_counter = 0 : ui32} (%arg1: !t, %arg2: !t) {
          %3 = stablehlo.sine %arg1 : !t
          %4 = stablehlo.negate %arg2 : !t
          mpmd.return %3, %4 : !t, !t
        } : (!a, !a) -> (!a, !a)
        %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%1#0, %1#1) {call_counter = 1 : ui32} (%arg1: !t, %arg2: !t) {
          %3 = stablehlo.sine %arg1 : !t
          %4 = stablehlo.negate %arg2 : !t
          mpmd.return %3, %4 : !t, !t
        } : (!a, !a) -> (!a, !a)
        return %2#0, %2#1 : !a, !a
    """

    name = "mpmd-share-programs"
    summary = "share programs of microbatches that differ only in repeated operands"
    mpmd_only = True
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        named: list[FragmentOp] = []
        others: list[FragmentOp] = []
        for op in function.body:
            if isinstance(op, FragmentOp):
                (named if op.is_user else others).append(op)
        changed = _share_bodies(named)
        for op in others:
            changed = _give_each_its_own(op) or changed
        return changed


def _share_bodies(fragments: Sequence[FragmentOp]) -> bool:
    bodies = dict.fromkeys([op.regions[0] for op in fragments])
    representative = first_equal(bodies)
    if len(set(representative.values())) < len(bodies):
        for op in fragments:
            op.body = representative[op.body]
    returned = Counter([tuple([value.type for value in body.returned]) for body in set(representative.values())])
    if not returned or max(returned.values()) == 1:
        return False
    alike: dict[Hashable, dict[Region, list[FragmentOp]]] = {}
    for op in fragments:
        if "arg_attrs" not in op.attrs and op.num_operands == len(op.body.block.args):
            key = op.mesh, op.stage, op.props.get("origin"), tuple([result.type for result in op.results])
            alike.setdefault(key, {}).setdefault(op.body, []).append(op)
    changed = False
    for by_body in alike.values():
        for body, members in by_body.items():
            for other, others in by_body.items():
                places = _places(other, body)
                if places is None:
                    continue
                types = [value.type for value in others[0].operands]
                for op in members:
                    operands = [op.operand(place) for place in places]
                    if [value.type for value in operands] == types:
                        _replace(op, operands, list(op.results), other)
                        changed = True
                break
    return changed


@remembers
def _places(large: Region, small: Region) -> list[int] | None:
    """For each argument of the larger body the one of the smaller body in its place, where they are equal then."""
    if len(large.block.args) <= len(small.block.args):
        return None
    images: dict[Value, Value] = {}
    if len(large.blocks) != 1 or not same_ops(large.block, small.block, images, bind=True):
        return None
    args: dict[Value, int] = {arg: i for i, arg in enumerate(small.block.args)}
    counterparts = [args.get(images[arg]) if arg in images else None for arg in large.block.args]
    places = [place for place in counterparts if place is not None]
    return places if len(places) == len(counterparts) else None


def _give_each_its_own(op: FragmentOp) -> bool:
    """Make a constant for each fragment of a microbatch that could have its result in the place of it.

    Those of a second loop over microbatches are made when it begins.
    """
    if not any(value.defining_op is not None and is_negligible(value.defining_op) for value in op.body.returned):
        return False
    loops = _loops(op)
    wanted: dict[int, list[tuple[int, Use]]] = {}
    for i, (value, result) in enumerate(zip(op.body.returned, op.results, strict=True)):
        if value.defining_op is None or not is_negligible(value.defining_op):
            continue
        uses = list(result.uses)
        overwriting = sorted((use for use in reversed(uses) if _may_overwrite(use)), key=lambda use: loops[use.owner])
        if len(overwriting) == len(uses):
            overwriting = overwriting[1:]  # the first has what is there
        for use in overwriting:
            wanted.setdefault(loops[use.owner], []).append((i, use))
    for loop, uses_of in wanted.items():
        copied = tuple([i for i, _ in uses_of])
        types = [op.results[i].type for i in copied]
        if loop:
            body = _only_copies(op.body, copied)
            first = next(user for user, number in loops.items() if number == loop)
            assert first.block is not None
            made = make_fragment(op.mesh, [], types, body, origin=op.origin, stage=op.stage, attrs=op.attrs, loc=op.loc)
            first.block.insert_before(first, made)
        else:
            body = _with_copies(op.body, copied)
            made = op = _replace(op, op.operands, [*op.results, *[op.results[i] for i in copied]], body)
        for (_, use), result in zip(uses_of, made.results[-len(copied) :], strict=True):
            use.set(result)
    return bool(wanted)


def _loops(op: FragmentOp) -> dict[Op, int]:
    """Return the users of a fragment, each with how many of its stage and kind are in front of it: one in a loop."""
    users = dict.fromkeys(user for result in op.results for user in result.users)
    seen: dict[Hashable, int] = {}
    results: dict[Op, int] = {}
    for user in in_block_order(users):
        key = (user.stage, user.props.get("origin")) if isinstance(user, FragmentOp) else user
        results[user] = seen[key] = seen.get(key, -1) + 1
    return results


def _may_overwrite(use: Use) -> bool:
    op = use.owner
    return (
        isinstance(op, FragmentOp)
        and is_of_microbatch(op)
        and any(result.type is use.value.type for result in op.results)
    )


@remembers
def _with_copies(body: Region, copied: tuple[int, ...]) -> Region:
    """Return the body that also returns copies of the constants among its results, which are results of their own."""
    builder = BodyBuilder()
    args = [builder.arg(arg.type, arg.loc) for arg in body.block.args]
    returned = builder.inline(body, args)
    return builder.finish([*returned, *_copies(builder, returned, copied)])


@remembers
def _only_copies(body: Region, copied: tuple[int, ...]) -> Region:
    builder = BodyBuilder()
    return builder.finish(list(_copies(builder, body.returned, copied)))


def _copies(builder: BodyBuilder, returned: Sequence[Value], copied: Sequence[int]) -> Iterator[Value]:
    for i in copied:
        op = returned[i].defining_op
        assert op is not None
        yield builder.add(op, {}).result


def _replace(op: FragmentOp, operands: Sequence[Value], results: Sequence[Value], body: Region) -> FragmentOp:
    """Return the fragment with other operands and body; the first results of these types replace its own."""
    output = make_fragment(
        op.mesh,
        operands,
        [result.type for result in results],
        body,
        origin=op.origin,
        stage=op.stage,
        attrs=op.attrs,
        loc=op.loc,
    )
    assert op.block is not None
    op.block.insert_before(op, output)
    op.replace_all_uses_with(output.results[: len(op.results)])
    op.erase()
    return output
