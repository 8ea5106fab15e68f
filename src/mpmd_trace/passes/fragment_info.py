"""What a fragment stands for: phase, microbatch, stage, split part."""

from __future__ import annotations

import functools
from typing import Literal, cast

from mpmd_trace.ir.attributes import UNIT, ArrayAttr, Attribute, IntegerAttr, MeshAttr, TopologyAttr, UserOriginAttr
from mpmd_trace.ir.diagnostics import error_at
from mpmd_trace.ir.ops import FragmentOp

SplitType = Literal["kKeepTransferred", "kDropTransferred"]
_SPLIT_ATTRIBUTES: dict[SplitType, str] = {
    "kKeepTransferred": "split_keep_transferred",
    "kDropTransferred": "split_drop_transferred",
}
MERGED = "mpmd.merged_call_counters"
_MERGED_STAGES = "mpmd.merged_stages"


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


def merged_call_counters(fragment: FragmentOp) -> tuple[int, int] | None:
    """Return the microbatches of the backward and of the forward that were merged into the fragment."""
    merged = fragment.attrs.get(MERGED)
    return None if merged is None else two_numbers(merged)


def merged_stages(fragment: FragmentOp) -> tuple[int, int] | None:
    """Return the stages of the backward and of the forward that were merged into the fragment, if they differ."""
    merged = fragment.attrs.get(_MERGED_STAGES)
    return None if merged is None else two_numbers(merged)


def two_numbers(attribute: Attribute) -> tuple[int, int] | None:
    elements = attribute.elements if isinstance(attribute, ArrayAttr) else ()
    values = [e.value for e in elements if isinstance(e, IntegerAttr)]
    return (values[0], values[1]) if len(values) == 2 else None


def is_of_microbatch(fragment: FragmentOp) -> bool:
    """Return whether the fragment belongs to a microbatch, or was merged from fragments of two."""
    attrs = fragment.attrs
    return isinstance(attrs.get("call_counter"), IntegerAttr) or MERGED in attrs


def set_merged_call_counters(fragment: FragmentOp, counters: tuple[int, int]) -> None:
    """Say of which microbatches the backward and the forward are that the fragment was merged from."""
    fragment.attrs[MERGED] = ArrayAttr.get([IntegerAttr.get(value, "ui32") for value in counters])


def set_merged_stages(fragment: FragmentOp, stages: tuple[int, int]) -> None:
    """Say of which stages the backward and the forward are, where they differ."""
    fragment.attrs[_MERGED_STAGES] = ArrayAttr.get([IntegerAttr.get(value, "ui32") for value in stages])


def split_type(fragment: FragmentOp) -> SplitType | None:
    """Return which half of a split backward fragment it is."""
    return next((kind for kind, attribute in _SPLIT_ATTRIBUTES.items() if attribute in fragment.attrs), None)


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
