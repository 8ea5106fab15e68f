"""Merging two fragments of one mesh into one.

    %0 = mpmd.fragment<mesh="m", origin=["f"]> (%a) (%x) { y = f(x); return y }
    %1 = mpmd.fragment<mesh="m", origin=["g"]> (%0, %b) (%x, %y) { z = g(x, y); return z }
becomes
    %1 = mpmd.fragment<mesh="m", origin=["f", "g"]> (%a, %b) (%x, %y) { u = f(x); z = g(u, y); return z }

The merged body is remembered for the pair of bodies and the way they are wired, so that merging the same two
fragments of many microbatches makes one body.
"""

from __future__ import annotations

import logging

from mpmd_trace.diagnostics.location import fused
from mpmd_trace.diagnostics.messages import MpmdError, Note
from mpmd_trace.ir.attributes import ArrayAttr, Attribute, IntegerAttr
from mpmd_trace.ir.bodies import BodyBuilder, remembered
from mpmd_trace.ir.core import BlockArg, Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import error_at
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.control_dependencies import CONTROL_START
from mpmd_trace.passes.fragment_info import call_counter, describe_fragment, origin_union, stages_consistent
from mpmd_trace.passes.greedy import Rewriter

_log = logging.getLogger(__name__)


def data_operands(fragment: FragmentOp) -> list[Value]:
    """Return the operands that have a block argument; those behind them only express an order."""
    return [use.value for use in fragment.operand_uses[: len(fragment.body.block.args)]]


def merge_fragments(producer: FragmentOp, consumer: FragmentOp, rewriter: Rewriter | None = None) -> FragmentOp:
    """Merge the two into a new fragment at the place of `consumer` and give it.

    All users of `producer` must come at or behind `consumer`, unless the caller moves the result.  The new
    fragment has the origins of both, the mesh and the stage; every other attribute is dropped.
    Raises `MpmdError` when meshes or stages differ.
    """
    check_mergeable(producer, consumer)
    controls: list[Value] = []
    if _is_single_use(producer, consumer):
        at = next(u.index for u in consumer.operand_uses if u.value is producer.results[0])
        operands = consumer.operands
        operands[at] = producer.operand(0)
        own: tuple[int, ...] = (at,)
        given = tuple(-1 if i == at else i for i in range(len(operands)))
        kept: list[int] = []
    else:
        operands, own, given = _wire(producer, consumer)
        controls = _control_operands(producer, consumer) + _control_operands(consumer, producer)
        kept = [r.index for r in producer.results if not r.is_only_used_by((consumer,))]
    count = len(producer.results)
    returned = (*kept, *range(count, count + len(consumer.results)))
    body = merged_body((producer.body, consumer.body), (own, given), returned)
    props = {"mesh_name": producer.props["mesh_name"], "origin": origin_union(producer, consumer)}
    stage = producer.props.get("stage_id") or consumer.props.get("stage_id")
    if stage is not None:
        props["stage_id"] = stage
    attrs: dict[str, Attribute] = {CONTROL_START: IntegerAttr.get(len(operands), "i64")} if controls else {}
    loc = fused(producer.loc, consumer.loc)
    rewriter = Rewriter() if rewriter is None else rewriter
    types = [producer.results[i].type for i in kept] + [r.type for r in consumer.results]
    merged = make_op("mpmd.fragment", operands + controls, types, props=props, attrs=attrs, regions=[body], loc=loc)
    assert isinstance(merged, FragmentOp)
    rewriter.insert_before(consumer, merged)
    for new, old in enumerate(kept):
        rewriter.replace_all_uses(producer.results[old], merged.results[new])
    rewriter.replace_op(consumer, merged.results[len(kept) :])
    rewriter.erase(producer)
    return merged


def merged_call_counter(producer: FragmentOp, consumer: FragmentOp) -> int | None:
    """Return the microbatch number of the merged fragment: the one there is; the user's when two differ."""
    first, second = call_counter(producer), call_counter(consumer)
    if first is None or second is None or first == second:
        return second if first is None else first
    if _log.isEnabledFor(logging.INFO):
        pair = describe_fragment(producer), describe_fragment(consumer)
        _log.info("merging %s with %s: the call counters differ", *pair)
    if producer.is_user == consumer.is_user:
        return None
    return first if producer.is_user else second


def merged_inferred_by(producer: FragmentOp, consumer: FragmentOp) -> ArrayAttr | None:
    """Return the passes that inferred either of two inferred fragments, each once; None for user fragments."""
    if producer.is_user or consumer.is_user:
        return None
    return union_inferred_by(producer, consumer)


def union_inferred_by(first: Op, second: Op) -> ArrayAttr | None:
    """Return the entries of `mpmd.inferred_by` of both, each once; None when neither has the attribute."""
    arrays = [op.attrs.get("mpmd.inferred_by") for op in (first, second)]
    lists = [array for array in arrays if isinstance(array, ArrayAttr)]
    if not lists:
        return None
    return ArrayAttr.get(dict.fromkeys(entry for array in lists for entry in array.elements))


def check_mergeable(producer: FragmentOp, consumer: FragmentOp, counts: tuple[int, int] | None = None) -> None:
    """Raise `MpmdError` unless the two are on one mesh, of one stage, and well-formed.

    `counts` are the numbers of arguments of their bodies, when those are not built yet.
    """
    if producer.mesh != consumer.mesh:
        raise _refused(producer, consumer, "they are on different meshes")
    if not stages_consistent(producer, consumer):
        raise _refused(
            producer,
            consumer,
            "their stages differ; give the computations the same stage in the assignment, or keep them apart",
        )
    if CONTROL_START not in producer.attrs and CONTROL_START not in consumer.attrs:
        return
    for i, fragment in enumerate((producer, consumer)):
        start = fragment.attrs.get(CONTROL_START)
        if start is None:
            continue
        count = len(fragment.body.block.args) if counts is None else counts[i]
        if not (isinstance(start, IntegerAttr) and start.value == count):
            raise _refused(producer, consumer, f"{CONTROL_START} is {start.text}, but the body has {count} arguments")


def _refused(producer: FragmentOp, consumer: FragmentOp, why: str) -> MpmdError:
    message = f"cannot merge {describe_fragment(producer)} with {describe_fragment(consumer)}: {why}"
    return error_at(consumer, message, Note("the other fragment is here", producer.loc))


def _is_single_use(producer: FragmentOp, consumer: FragmentOp) -> bool:
    """Return whether the producer has one argument and one result, and the consumer is the only use of that."""
    if len(producer.results) != 1 or len(producer.body.block.args) != 1:
        return False
    if CONTROL_START in producer.attrs or CONTROL_START in consumer.attrs:
        return False
    result = producer.results[0]
    return result.has_one_use and result.users[0] is consumer


def _wire(producer: FragmentOp, consumer: FragmentOp) -> tuple[list[Value], tuple[int, ...], tuple[int, ...]]:
    """Return the operands of the merged fragment and what the arguments of both bodies stand for."""
    position: dict[Value, int] = {}
    own = tuple([position.setdefault(v, len(position)) for v in data_operands(producer)])
    made = dict.fromkeys(producer.results)
    given = tuple(
        [-1 - v.index if v in made else position.setdefault(v, len(position)) for v in data_operands(consumer)]
    )
    return list(position), own, given


def _control_operands(fragment: FragmentOp, other: FragmentOp) -> list[Value]:
    uses = fragment.operand_uses[len(fragment.body.block.args) :]
    return [use.value for use in uses if use.value.defining_op is not other]


def merged_body(bodies: tuple[Region, ...], sources: tuple[tuple[int, ...], ...], returned: tuple[int, ...]) -> Region:
    """Return the body that runs `bodies` one after the other; made once for equal arguments.

    `sources` says per body what its arguments stand for: n >= 0 is argument n of the merged body, n < 0 is
    value -1 - n of those that the bodies return, numbered throughout.  `returned` are numbers of such values.
    """

    def make() -> Region:
        builder = BodyBuilder()
        stand_ins: dict[int, BlockArg] = {}
        for body, row in zip(bodies, sources, strict=True):
            for arg, source in zip(body.block.args, row, strict=True):
                if source >= 0:
                    stand_ins.setdefault(source, arg)
        args = [builder.arg(stand_ins[i].type, stand_ins[i].loc) for i in range(len(stand_ins))]
        values: list[Value] = []
        for body, row in zip(bodies, sources, strict=True):
            given = [args[s] if s >= 0 else values[-1 - s] for s in row]
            values += builder.inline(body, given)
        return builder.finish([values[i] for i in returned])

    return remembered(bodies[0], ("merge", bodies, sources, returned), make)
