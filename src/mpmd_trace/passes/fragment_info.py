"""What a fragment stands for: phase, microbatch, stage, split part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, TypeAlias, cast

from mpmd_trace.ir.attributes import (
    UNIT,
    ArrayAttr,
    Attribute,
    IntegerAttr,
    MeshAttr,
    StringAttr,
    TopologyAttr,
    UserOriginAttr,
    integer_in,
)
from mpmd_trace.ir.diagnostics import error_at
from mpmd_trace.ir.ops import OMITTED, FragmentOp, FuncOp

SplitType = Literal["kKeepTransferred", "kDropTransferred"]
_SPLIT_ATTRIBUTES: dict[SplitType, str] = {
    "kKeepTransferred": "split_keep_transferred",
    "kDropTransferred": "split_drop_transferred",
}
#: The letter of a forward, a whole backward, and the halves of a split one with the gradients of inputs and of weights.
Kind: TypeAlias = Literal["F", "B", "I", "W"]
MERGED = "mpmd.merged_call_counters"
_MERGED_STAGES = "mpmd.merged_stages"
_MERGED_KINDS = "mpmd.merged_kinds"
#: Of which block of the schedule a fragment is, and what it is in it.
BLOCK = "mpmd.block"


def transpose_counts(fragment: FragmentOp) -> list[int]:
    """Return the transpose counts of the origins, in order."""
    return [origin.transpose_count for origin in fragment.origin]


def single_transpose_count(fragment: FragmentOp) -> int | None:
    """Return the transpose count, when there are origins and all have the same one."""
    return _common_transpose_count(fragment.props.get("origin"))


@functools.lru_cache(maxsize=1 << 16)
def _common_transpose_count(origins: Attribute | None) -> int | None:
    """Remembered, for many fragments have the same origins."""
    elements = origins.elements if isinstance(origins, ArrayAttr) else ()
    counts = {cast(UserOriginAttr, origin).transpose_count for origin in elements}
    return counts.pop() if len(counts) == 1 else None


def max_transpose_count(fragment: FragmentOp) -> int | None:
    """Return the greatest transpose count; None for an inferred fragment."""
    return max(transpose_counts(fragment), default=None)


def fragment_transpose_count(fragment: FragmentOp) -> int | None:
    """Return the single transpose count or, for a rematerialized fragment, the greatest one."""
    count = single_transpose_count(fragment)
    return max_transpose_count(fragment) if count is None and has_remat(fragment) else count


def is_forward(fragment: FragmentOp) -> bool:
    """Return whether it is part of the forward pass only: every transpose count is 0."""
    return single_transpose_count(fragment) == 0


def is_backward(fragment: FragmentOp) -> bool:
    """Return whether it is part of the backward pass only: every transpose count is 1."""
    return single_transpose_count(fragment) == 1


def middle_microbatch(function: FuncOp) -> int:
    """Return the microbatch that is like those that are still missing."""
    return max(op.call_counter or 0 for op in function.body if isinstance(op, FragmentOp)) // 2


#: How often fragments run in a step.
Runs: TypeAlias = Callable[[Collection[FragmentOp]], int]


def runs_in_step(function: FuncOp) -> Runs:
    """Return a function of fragments: how often they run in a step, with those of microbatches still missing."""
    omitted = integer_in(function.attrs, OMITTED)
    if omitted is None:
        return len
    middle = middle_microbatch(function)
    return lambda fragments: len(fragments) + omitted * sum(op.call_counter == middle for op in fragments)


def has_remat(fragment: FragmentOp) -> bool:
    """Return whether it is the product of rematerialisation."""
    return "remat" in fragment.attrs


def call_counter(fragment: FragmentOp) -> int | None:
    """Return the number of the microbatch.  Raises `MpmdError` when the attribute is not a `ui32`."""
    counter = fragment.attrs.get("call_counter")
    if counter is None:
        return None
    if isinstance(counter, IntegerAttr) and counter.type == "ui32":
        return counter.value
    raise error_at(
        fragment,
        f"call_counter of a fragment on mesh '{fragment.mesh}' is {counter.text}; it must be a ui32 integer such as "
        "0 : ui32",
    )


def set_call_counter(fragment: FragmentOp, value: int | None) -> None:
    """Set or, for None, remove the microbatch number."""
    if value is None:
        fragment.attrs.pop("call_counter", None)
    else:
        fragment.attrs["call_counter"] = IntegerAttr.get(value, "ui32")


class MergedPart(NamedTuple):
    """What a fragment was merged from; without a stage if all parts have that of the fragment."""

    kind: Kind
    microbatch: int
    stage: int | None


def merged_parts(fragment: FragmentOp) -> tuple[MergedPart, ...]:
    """Return the parts of different microbatches that the fragment was merged from; nothing for others."""
    counters = numbers(fragment.attrs.get(MERGED))
    if not counters:
        return ()
    stages = numbers(fragment.attrs.get(_MERGED_STAGES)) or (fragment.stage,) * len(counters)
    kinds = fragment.attrs.get(_MERGED_KINDS)
    letters = [e.value for e in _elements(kinds) if isinstance(e, StringAttr)] or ["B", "F"]
    return tuple(MergedPart(cast(Kind, k), c, s) for k, c, s in zip(letters, counters, stages, strict=True))


def set_merged_parts(fragment: FragmentOp, parts: Sequence[MergedPart]) -> None:
    """Say what the fragment was merged from: by default a backward and a forward of one stage."""
    fragment.attrs[MERGED] = _array([part.microbatch for part in parts])
    stages = [part.stage for part in parts if part.stage is not None]
    if len(set(stages)) > 1 and len(stages) == len(parts):
        fragment.attrs[_MERGED_STAGES] = _array(stages)
    kinds = [part.kind for part in parts]
    if kinds != ["B", "F"]:
        fragment.attrs[_MERGED_KINDS] = ArrayAttr.get([StringAttr.get(kind) for kind in kinds])


def block_of(fragment: FragmentOp) -> tuple[int, Kind] | None:
    """Return the number of the block of the schedule that the fragment is of, and what it is in it."""
    mark = _elements(fragment.attrs.get(BLOCK))
    if len(mark) == 2 and isinstance(mark[0], IntegerAttr) and isinstance(mark[1], StringAttr):
        return mark[0].value, cast(Kind, mark[1].value)
    return None


def set_block(fragment: FragmentOp, number: int) -> None:
    """Say that the fragment is of a block of the schedule."""
    fragment.attrs[BLOCK] = ArrayAttr.get([IntegerAttr.get(number, "ui32"), StringAttr.get(kind_of(fragment))])


def take_over_block(copy: FragmentOp, backward: FragmentOp) -> None:
    """Say that what recomputes for a backward is in its part of a block, if it is in one; not where the forward is."""
    copy.attrs.pop(BLOCK, None)
    if BLOCK in backward.attrs:
        copy.attrs[BLOCK] = backward.attrs[BLOCK]


def numbers(attribute: Attribute | None) -> tuple[int, ...]:
    """Return the numbers of an array."""
    return tuple(e.value for e in _elements(attribute) if isinstance(e, IntegerAttr))


def _elements(attribute: Attribute | None) -> Sequence[Attribute]:
    return attribute.elements if isinstance(attribute, ArrayAttr) else ()


def _array(values: Sequence[int]) -> ArrayAttr:
    return ArrayAttr.get([IntegerAttr.get(value, "ui32") for value in values])


def is_of_microbatch(fragment: FragmentOp) -> bool:
    """Return whether the fragment belongs to a microbatch, or was merged from fragments of two."""
    attrs = fragment.attrs
    return isinstance(attrs.get("call_counter"), IntegerAttr) or MERGED in attrs


def split_type(fragment: FragmentOp) -> SplitType | None:
    """Return which half of a split backward fragment it is."""
    return next((kind for kind, attribute in _SPLIT_ATTRIBUTES.items() if attribute in fragment.attrs), None)


def kind_of(fragment: FragmentOp) -> Kind:
    """Return the letter of a scheduling unit."""
    part = split_type(fragment)
    return "F" if is_forward(fragment) else "B" if part is None else "I" if part == "kKeepTransferred" else "W"


def set_split_type(fragment: FragmentOp, kind: SplitType | None) -> None:
    """Mark the fragment as this half of a split, or as not split."""
    for other, attribute in _SPLIT_ATTRIBUTES.items():
        if other == kind:
            fragment.attrs[attribute] = UNIT
        else:
            fragment.attrs.pop(attribute, None)


def is_scheduling_unit(fragment: FragmentOp) -> bool:
    """Return whether it is a user fragment of one microbatch, wholly forward or wholly backward."""
    return fragment.is_user and call_counter(fragment) is not None and single_transpose_count(fragment) in (0, 1)


def stages_consistent(a: FragmentOp, b: FragmentOp) -> bool:
    """Return whether the two may be one fragment: a stage is missing or both are equal."""
    own, other = a.props.get("stage_id"), b.props.get("stage_id")
    return own is other or a.stage is None or b.stage is None or a.stage == b.stage


def origin_union(first: FragmentOp, second: FragmentOp) -> ArrayAttr:
    """Return the origins of the first, then those of the second that the first does not have."""
    return _union(first.props.get("origin"), second.props.get("origin"))


@functools.lru_cache(maxsize=1 << 10)
def _union(first: Attribute | None, second: Attribute | None) -> ArrayAttr:
    """Remembered, for many fragments have the same origins."""
    own, more = (origins.elements if isinstance(origins, ArrayAttr) else () for origins in (first, second))
    return ArrayAttr.get((*own, *(origin for origin in more if origin not in own)))


def is_executed_immediately_after(first: FragmentOp, second: FragmentOp) -> bool:
    """Return whether `second` is the next fragment on the mesh of `first` in the block of `first`."""
    op = first.next_op
    while op is not None:
        if isinstance(op, FragmentOp) and op.mesh == first.mesh:
            return op is second
        op = op.next_op
    return False


def describe_fragment(fragment: FragmentOp) -> str:
    """Return a short description for messages: origins, mesh, stage and microbatch."""
    origins = ", ".join(origin.short for origin in fragment.origin)
    text = f"fragment [{origins}]" if origins else "inferred fragment"
    text += f" on mesh '{fragment.mesh}'"
    if fragment.stage is not None:
        text += f", stage {fragment.stage}"
    if fragment.call_counter is not None:
        text += f", call_counter {fragment.call_counter}"
    return text


def is_homogeneous(topology: TopologyAttr) -> bool:
    """Return whether all meshes have the same device ids and the same axes, axes of size 1 aside."""

    def key(mesh: MeshAttr) -> tuple[object, ...]:
        return mesh.device_ids, tuple((name, size) for name, size in mesh.axes if size != 1)

    return len({key(mesh) for mesh in topology.meshes.values()}) <= 1
