"""Moves of values from one place to another: plain copies where the tiles are the same, else programs, too."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import jax
from jax.sharding import Mesh, NamedSharding

from mpmd_trace.backend.placement import Placement
from mpmd_trace.backend.plan import Place
from mpmd_trace.backend.steps import Call
from mpmd_trace.jax_compat import runtime as compat
from mpmd_trace.jax_compat.layouts import put

#: Where a value is copied to, and whether the copy must not share the buffer of its source.
Copy = tuple[NamedSharding, bool]
#: Where a value is, and where it goes.
Move = tuple[Place, Place]


def copying(copies: Sequence[Copy]) -> Call:
    """Return the function that makes these copies, in one call."""
    return compat.batched_copy([target for target, _ in copies], [fresh for _, fresh in copies])


class Movers:
    """The functions that move values; one and the same for equal moves."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.copy = functools.cache(self._copy)
        self.mover = functools.cache(self._mover)

    def sharding(self, place: Place) -> NamedSharding:
        type, memory_kind, _ = place
        return self._placement.sharding(type, memory_kind)

    def _copy(self, before: Place, after: Place) -> Copy | None:
        """Return where a value is copied to; None where it has other tiles or another layout there."""
        if before[2] is not None or after[2] is not None:
            return None  # a plain copy keeps the layout
        source, target = self.sharding(before), self.sharding(after)
        if not compat.same_tiles(before[0].tensor.shape or (), source, target):
            return None
        return target, bool(source.device_set & target.device_set)

    def copies(self, moves: Sequence[Move]) -> tuple[Copy, ...]:
        """Return where each value is copied to; empty where one of them needs more than that."""
        copies = tuple(self.copy(*move) for move in moves)
        return cast(tuple[Copy, ...], copies) if all(copies) else ()

    def _mover(self, moves: tuple[Move, ...]) -> Call:
        """Return the function that moves values, in one call if they are plain copies."""
        if copies := self.copies(moves):
            return copying(copies)
        movers = [self._one(*move) for move in moves]
        return lambda arrays: [mover([a])[0] for mover, a in zip(movers, arrays, strict=True)]

    def _one(self, before: Place, after: Place) -> Call:
        if before[2] is not None or after[2] is not None:
            return self._lay_out(before, after)
        copy = self.copy(before, after)
        return self._reshard(before, after) if copy is None else copying([copy])

    def _lay_out(self, before: Place, after: Place) -> Call:
        """Return a move between unusual layouts: by way of the usual one, of which there are plain copies."""
        usual, target = self._placement.spec(*before[:2]), self._placement.spec(*after)
        move = None if before[:2] == after[:2] else self._one((*before[:2], None), (*after[:2], None))

        def call(arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
            arrays = [put(arrays[0], usual)] if before[2] is not None else arrays
            if move is not None:
                arrays = move(arrays)
            return [put(arrays[0], target)] if after[2] is not None else arrays

        return call

    def _reshard(self, before: Place, after: Place) -> Call:
        """First to the target's tiles on the source mesh, by a program; then a plain copy.

        Between meshes of different size `jax.device_put` does it, through the host where it must.
        """
        source, target = self.sharding(before), self.sharding(after)
        if source.num_devices != target.num_devices:
            return lambda arrays: [jax.device_put(arrays[0], target, may_alias=False)]
        between, program = self.to_tiles(before, after)
        same_devices = list(between.mesh.devices.flat) == list(target.mesh.devices.flat)
        if same_devices and between.memory_kind == target.memory_kind:
            return program
        copy = copying([(target, bool(source.device_set & target.device_set))])
        return lambda arrays: copy(program(arrays))

    def to_tiles(self, before: Place, after: Place) -> tuple[NamedSharding, Call]:
        """Return the sharding on the source mesh with the tiles of the target, and a program that makes it."""
        source, target = self.sharding(before), self.sharding(after)
        devices = source.mesh.devices.reshape(target.mesh.devices.shape)
        between = NamedSharding(Mesh(devices, target.mesh.axis_names), target.spec)
        type = before[0].tensor.text
        text = f"module {{ func.func @main(%x: {type}) -> {type} {{ return %x : {type} }} }}"
        given = self._placement.spec(*before[:2])
        if source.memory_kind is not None:
            between = between.with_memory_kind(source.memory_kind)
        wanted = jax.ShapeDtypeStruct(given.shape, given.dtype, sharding=between)
        lowered = compat.lower_function(text, [given], [wanted], name="reshard")
        return between, compat.compile_lowered(lowered).call
