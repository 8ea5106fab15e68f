"""Editing the attribute dictionaries that fragments carry per operand and per result."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

from mpmd_trace.ir.attributes import ArrayAttr, Attribute, DictAttr, StringAttr
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp

EMPTY = DictAttr.get({})
MEMORY_KIND = "mhlo.memory_kind"
LAYOUT_MODE = "mhlo.layout_mode"
PINNED_HOST = StringAttr.get("pinned_host")


@functools.lru_cache(maxsize=1 << 16)
def _array(dicts: tuple[DictAttr, ...]) -> ArrayAttr:
    return ArrayAttr.get(dicts)


def array_of(dicts: Sequence[DictAttr]) -> ArrayAttr:
    """Return the array of these dictionaries; cheap for a list that occurred before (one per microbatch)."""
    return _array(tuple(dicts))


def value_dicts(op: Op, which: str) -> Sequence[DictAttr] | None:
    """`arg_attrs` or `res_attrs` of a fragment; None when it has none."""
    dicts = op.attrs.get(which)
    return cast("tuple[DictAttr, ...]", dicts.elements) if isinstance(dicts, ArrayAttr) else None


@functools.lru_cache(maxsize=1 << 14)
def _with(old: DictAttr, key: str, value: Attribute) -> DictAttr:
    return old.with_(key, value)


def inserted(op: FragmentOp, old: DictAttr, key: str, value: Attribute, diagnostics: Diagnostics) -> DictAttr:
    """Return the dictionary with a new entry.  Fails when the entry exists, because somebody else decided it."""
    if key in old.entries:
        raise diagnostics.fatal(
            op,
            f"the fragment on mesh '{op.mesh}' has '{key}' = {old.entries[key].text} in its arg_attrs or "
            f"res_attrs already, but this pass is the one that decides it; remove the attribute",
        )
    return _with(old, key, value)


@functools.lru_cache(maxsize=1 << 16)
def none_of(count: int) -> ArrayAttr:
    """Return the array of `count` empty dictionaries."""
    return ArrayAttr.get([EMPTY] * count)


@functools.lru_cache(maxsize=1 << 16)
def mentions(dicts: ArrayAttr, key: str, value: Attribute | None = None) -> bool:
    """Return whether a dictionary of the array has an entry `key` (if given, with this value).

    Remembered, for few arrays serve many fragments.
    """
    entries = [cast(DictAttr, d).entries.get(key) for d in dicts.elements]
    return value in entries if value is not None else entries.count(None) < len(entries)


def memory_kind(attributes: DictAttr) -> Attribute | None:
    """Return the entry `mhlo.memory_kind`."""
    return attributes.entries.get(MEMORY_KIND)


def is_pinned_host(attributes: DictAttr) -> bool:
    """Return whether the value lives in host memory."""
    return attributes.entries.get(MEMORY_KIND) is PINNED_HOST
