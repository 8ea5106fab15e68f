"""The names of the functions that fragments become: what runs there, and for which microbatches."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from mpmd_trace.ir.attributes import UserOriginAttr
from mpmd_trace.ir.ops import FragmentOp, Module

__all__ = ["function_name", "is_forward_only", "module_suffix"]

_COUNTED = re.compile(r"(.*)_(-?[0-9]+)", re.S)
_LONGEST = 200
_CUT = 195


def is_forward_only(fragments: Sequence[FragmentOp]) -> bool:
    """Return whether nothing in the program is transposed."""
    return all(o.transpose_count == 0 for op in fragments for o in op.origin)


def module_suffix(module: Module) -> str:
    """Return the part behind the dot: the module's name without one `jit_` in front."""
    return (module.name or "main").removeprefix("jit_")


def function_name(group: int, members: Sequence[FragmentOp], forward_only: bool, suffix: str) -> str:
    """Return the name of the function of group number `group`, e.g. `p0_block_1:2_fwd_calls0to3.step`."""
    return f"{_truncated(f'p{group}_{_summary(members, forward_only)}')}.{suffix}"


def _truncated(name: str) -> str:
    data = name.encode("utf-8", "surrogateescape")
    if len(data) <= _LONGEST:
        return name
    return data[:_CUT].decode("utf-8", "surrogateescape") + "<...>"


def _summary(members: Sequence[FragmentOp], forward_only: bool) -> str:
    base = _member_name(members[0], forward_only)
    counters = [op.call_counter for op in members]
    if len(members) == 1:
        return base if counters[0] is None else f"{base}_call{counters[0]}"
    known = [c for c in counters if c is not None]
    if len(known) < len(counters):
        return base
    steps = {b - a for a, b in itertools.pairwise(known)}
    if steps not in ({1}, {-1}):
        return base
    names: dict[tuple[object, ...], str] = {}
    for op in members:
        key = (op.stage, op.props.get("origin"))
        if key not in names:
            names[key] = _member_name(op, forward_only)
        if names[key] != base:
            return base
    word = "to" if steps == {1} else "from"
    return f"{base}_calls{known[0]}{word}{known[-1]}"


def _member_name(op: FragmentOp, forward_only: bool) -> str:
    origins = op.origin
    if op.stage is not None:
        first = f"stage{op.stage}"
    elif not origins:
        first = "inferred"
    else:
        first = _frequent_name(origins)
    parts = [first]
    if not forward_only:
        for count in sorted({o.transpose_count for o in origins}):
            parts.append({0: "fwd", 1: "bwd"}.get(count, f"transpose{count}"))
    return "_".join(parts)


def _split(name: str) -> tuple[str, int | None]:
    """`block_7` is `block` and 7; a number that 64 bits cannot hold is part of the name."""
    match = _COUNTED.fullmatch(name)
    if match is None or not -(2**63) <= (number := int(match.group(2))) < 2**63:
        return name, None
    return match.group(1), number


def _frequent_name(origins: Sequence[UserOriginAttr]) -> str:
    """Return the name that most origins share, with the range of the numbers behind it."""
    heads: dict[str, list[int | None]] = {}
    for origin in origins:
        head, number = _split(origin.name)
        heads.setdefault(head, []).append(number)
    head = min(heads, key=lambda h: (-len(heads[h]), h.encode("utf-8", "surrogateescape")))
    numbers = sorted({n for n in heads[head] if n is not None})
    text = head
    if len(numbers) == 1:
        text += f"_{numbers[0]}"
    elif numbers:
        low, high = numbers[0], numbers[-1]
        backward = all(o.transpose_count == 1 for o in origins)
        text += f"_{high}:{low}" if backward else f"_{low}:{high}"
    return text + ("..." if len(heads) > 1 else "")
