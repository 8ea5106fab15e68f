"""The walk over all ops of regions, in one order or another.  `ir/core.py` has the types, and uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def walk_regions(
    regions: Sequence[Any], *, post_order: bool = True, reverse: bool = False, enters_frozen: bool = True
) -> Iterator[Any]:
    """Yield every op in some regions and those nested in them; `enters_frozen`: frozen ones, too."""
    path: list[tuple[Any, Iterator[Any]]] = [(None, _ops_in(regions, reverse, enters_frozen))]
    while path:
        around, ops = path[-1]
        for op in ops:
            if not post_order:
                yield op
            if op.regions:
                path.append((op, _ops_in(op.regions, reverse, enters_frozen)))
                break
            if post_order:
                yield op
        else:
            path.pop()
            if post_order and around is not None:
                yield around


def _ops_in(regions: Sequence[Any], reverse: bool, enters_frozen: bool) -> Iterator[Any]:
    for region in reversed(regions) if reverse else regions:
        if enters_frozen or not region.frozen:
            for block in reversed(region.blocks) if reverse else region.blocks:
                yield from reversed(block) if reverse else block
