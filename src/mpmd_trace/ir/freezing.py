"""Freezing of regions: every node gets the class that refuses changes (`ir/frozen.py`)."""

from __future__ import annotations

from mpmd_trace.ir.core import Block, BlockArg, Op, OpResult, Region, Use
from mpmd_trace.ir.frozen import NO_ATTRIBUTES, NO_ENTRIES, Frozen, FrozenDict, FrozenList


def freeze(region: Region) -> Region:
    """Make the region immutable and shareable.  Returns it."""
    if not region.frozen:
        region.frozen = True
        region.parent = None
        _freeze_blocks(region)
    return region


def _freeze_blocks(region: Region) -> None:
    # Regions of leaf ops in the body may capture its values, so they are not shareable by themselves.
    for block in region.blocks:
        for arg in block.args:
            arg.__class__ = _FrozenArg
        block.args = FrozenList(block.args)
        block.__class__ = _FrozenBlock
        op = block._first
        while op is not None:  # every op of a program comes by here: no calls
            for use in op.operand_uses:
                use.__class__ = _FrozenUse
            for result in op.results:
                result.__class__ = _FrozenResult
            op.results = FrozenList(op.results)
            op.props = FrozenDict(op.props) if op.props else NO_ATTRIBUTES
            op.attrs = FrozenDict(op.attrs) if op.attrs else NO_ATTRIBUTES
            if op.regions:
                for nested in op.regions:
                    if not nested.frozen:
                        _freeze_blocks(nested)
                op.regions = FrozenList(op.regions)
            else:
                op.regions = NO_ENTRIES
            cls = op.__class__
            op.__class__ = _FROZEN_CLASSES.get(cls) or _frozen_class(cls)
            op = op._next
    region.blocks = FrozenList(region.blocks)
    region.__class__ = _FrozenRegion


class _FrozenUse(Frozen, Use):
    __slots__ = ()


class _FrozenArg(Frozen, BlockArg):
    __slots__ = ()


class _FrozenResult(Frozen, OpResult):
    __slots__ = ()


class _FrozenRegion(Frozen, Region):
    __slots__ = ()


class _FrozenBlock(Frozen, Block):
    __slots__ = ()
    frozen = True

    def _renumber(self) -> None:  # the numbers only say where an op is, and are made when someone asks
        for number, op in enumerate(self):
            object.__setattr__(op, "_order", number)
        object.__setattr__(self, "_ordered", True)


def _frozen_class(cls: type[Op]) -> type[Op]:
    """Return the class of ops in frozen bodies that are instances of `cls` otherwise."""
    frozen = type(cls.__name__, (Frozen, cls), {"__slots__": (), "frozen": True, "_mutable_class": cls})
    return _FROZEN_CLASSES.setdefault(cls, frozen)


_FROZEN_CLASSES: dict[type[Op], type[Op]] = {}
