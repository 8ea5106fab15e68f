"""What a fragment is that is merged of two: its attributes and its body; `fragment_groups.py` merges them.

The merged body is remembered for the bodies and the way they are wired, so that merging the same fragments of many
microbatches makes one body.
"""

from __future__ import annotations

import logging

from mpmd_trace.diagnostics.messages import MpmdError, Note
from mpmd_trace.ir.attributes import ArrayAttr, IntegerAttr
from mpmd_trace.ir.bodies import BodyBuilder, remembered
from mpmd_trace.ir.core import BlockArg, Op, Region, Value
from mpmd_trace.ir.diagnostics import error_at
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.control_dependencies import CONTROL_START
from mpmd_trace.passes.fragment_info import call_counter, describe_fragment, stages_consistent

_log = logging.getLogger(__name__)


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
