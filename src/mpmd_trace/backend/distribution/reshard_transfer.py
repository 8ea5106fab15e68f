"""What a process does to send its part of an array to other processes, and to put together what arrives.

Arrays go as blocks of one device each, so that meshes of different sizes and shapes are no different from others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding

from mpmd_trace.backend.distribution.shard_slices import ShardSlice, SliceOverlap, slice_overlaps
from mpmd_trace.jax_compat.runtime import from_shards, shards_of


def owners_of(sharding: NamedSharding) -> tuple[int, ...]:
    """Return the process of each device of a sharding, in the order of its mesh."""
    return tuple(d.process_index for d in sharding.mesh.devices.flat)


def shard_slices_of(shape: Sequence[int], sharding: NamedSharding) -> tuple[ShardSlice, ...]:
    """Return the part of an array that each device holds, in the order of the mesh."""
    indices = sharding.devices_indices_map(tuple(shape))
    return tuple(
        tuple(s.indices(n)[:2] for s, n in zip(indices[d], shape, strict=True)) for d in sharding.mesh.devices.flat
    )


def parts_of(
    shape: Sequence[int], source: NamedSharding, target: NamedSharding
) -> dict[tuple[int, int], tuple[SliceOverlap, ...]]:
    """For each pair of processes (sender, receiver) the pieces that go between them; see `boxes.pieces`."""
    owners, wanted = owners_of(source), owners_of(target)
    parts: dict[tuple[int, int], list[SliceOverlap]] = {}
    for piece in slice_overlaps(shard_slices_of(shape, source), shard_slices_of(shape, target), owners, wanted):
        parts.setdefault((owners[piece.source], wanted[piece.targets[0]]), []).append(piece)
    return {pair: tuple(those) for pair, those in sorted(parts.items())}


@dataclasses.dataclass(frozen=True)
class ReshardTransfer:
    """One process's part in moving arrays of one type from one sharding to another.

    Attributes:
        spec: shape, dtype and sharding where it arrives.
        source: the sharding where it is.
        sends: for each process that gets something of this one, the pieces.
        receives: for each process that this one gets something of, the pieces.
        own: the pieces that stay in this process.
        arrives: whether this process has a device of the target.
    """

    spec: jax.ShapeDtypeStruct
    source: NamedSharding
    sends: Mapping[int, tuple[SliceOverlap, ...]]
    receives: Mapping[int, tuple[SliceOverlap, ...]]
    own: tuple[SliceOverlap, ...]
    arrives: bool

    @property
    def target(self) -> NamedSharding:
        result = self.spec.sharding
        assert isinstance(result, NamedSharding)
        return result

    @functools.cached_property
    def _held(self) -> tuple[ShardSlice, ...]:
        return shard_slices_of(self.spec.shape, self.source)

    @functools.cached_property
    def _wanted(self) -> tuple[ShardSlice, ...]:
        return shard_slices_of(self.spec.shape, self.target)

    @functools.cached_property
    def _make(self) -> Callable[[list[jax.Array]], jax.Array]:
        return from_shards(self.spec)

    @functools.cached_property
    def _shard(self) -> dict[int, int]:
        """For each device of the source in this process, by its position on the mesh, which of them it is."""
        me = jax.process_index()
        mine = (i for i, device in enumerate(self.source.mesh.devices.flat) if device.process_index == me)
        return {position: number for number, position in enumerate(mine)}

    @functools.cached_property
    def _incoming(self) -> dict[int, list[jax.ShapeDtypeStruct]]:
        devices = self.target.mesh.devices.flat
        with jax.enable_x64(True):
            return {
                process: [
                    jax.ShapeDtypeStruct(
                        tuple(stop - start for start, stop in p.box),
                        self.spec.dtype,
                        sharding=SingleDeviceSharding(devices[p.targets[0]]),
                    )
                    for p in slice_overlaps
                ]
                for process, slice_overlaps in self.receives.items()
            }

    @functools.cached_property
    def _arrives_whole(self) -> int | None:
        """The process that sends all that this one holds of the array as one block, which then is the array's."""
        me = jax.process_index()
        mine = [(i, d) for i, d in enumerate(self.target.mesh.devices.flat) if d.process_index == me]
        slice_overlaps = [(process, p) for process, those in self.receives.items() for p in those]
        if self.own or len(mine) != 1 or len(slice_overlaps) != 1:
            return None
        [(position, device)], [(process, piece)] = mine, slice_overlaps
        usual = self.target.memory_kind in (None, device.default_memory().kind)
        return process if usual and piece.box == self._wanted[position] else None

    def blocks(self, array: jax.Array, which: Sequence[SliceOverlap], fresh: bool = False) -> list[jax.Array]:
        """Pieces of the array, each on the device that holds it; `fresh` ones share no buffer with it."""
        shards = shards_of(array)
        result = []
        for piece in which:
            block, held = shards[self._shard[piece.source]], self._held[piece.source]
            if held != piece.box:
                block = _cut(block, held, piece.box)
            elif fresh:
                block = jax.device_put(block, block.sharding, may_alias=False)
            result.append(block)
        return result

    def incoming(self, process: int) -> list[jax.ShapeDtypeStruct]:
        """Shape, dtype and device of the pieces that another process sends."""
        return self._incoming[process]

    def kept(self, array: jax.Array | None) -> list[jax.Array]:
        """Return the pieces that stay in this process, which share no buffer with the array."""
        if not self.own:
            return []
        assert array is not None
        return self.blocks(array, self.own, fresh=True)

    def assembled(self, own: Sequence[jax.Array], arrived: Mapping[int, Sequence[jax.Array]]) -> jax.Array:
        """Return the array where it is wanted, of the pieces that stayed and those that arrived from each process."""
        if self._arrives_whole is not None:
            return self._make(list(arrived[self._arrives_whole]))
        placed_blocks = list(zip(self.own, own, strict=True))
        for process, blocks in arrived.items():
            placed_blocks += zip(self.receives[process], blocks, strict=True)
        devices = self.target.mesh.devices.flat
        me = jax.process_index()
        made = []
        for position, device in enumerate(devices):
            if device.process_index == me:
                parts = [(p.box, block) for p, block in placed_blocks if position in p.targets]
                made.append(self._block(position, device, parts))
        return self._make(made)

    def nothing(self) -> jax.Array:
        """Return the array in a process that has none of its devices."""
        return self._make([])

    def _block(self, position: int, device: jax.Device, parts: list[tuple[ShardSlice, jax.Array]]) -> jax.Array:
        box = self._wanted[position]
        kind = self.target.memory_kind
        place = SingleDeviceSharding(device, memory_kind=kind)
        if not parts:  # nothing has no parts
            shape = tuple(stop - start for start, stop in box)
            return jax.device_put(np.zeros(shape, self.spec.dtype), place)
        here = [jax.device_put(block, place) for _, block in parts]
        if len(parts) == 1:
            return here[0]
        return jax.device_put(_joined(tuple(box for box, _ in parts), here), place)


def sample(array: jax.Array) -> jax.Array:
    """An element of an array, or of its part here: it comes with it, and is still there when the buffer is reused.

    Of an array without elements it is one without elements.
    """
    block = array.addressable_data(0)
    if block.ndim == 0:
        return jax.device_put(block, block.sharding, may_alias=False)
    with jax.enable_x64(True), jax.disable_jit(False):
        result: jax.Array = _slice(block, (0,) * block.ndim, tuple(min(1, size) for size in block.shape))
    return result


def _cut(block: jax.Array, held: ShardSlice, box: ShardSlice) -> jax.Array:
    """Return the part `box` of a block that is the part `held` of an array."""
    start = tuple(a - h for (a, _), (h, _) in zip(box, held, strict=True))
    stop = tuple(b - h for (_, b), (h, _) in zip(box, held, strict=True))
    with jax.enable_x64(True), jax.disable_jit(False):
        result: jax.Array = _slice(block, start, stop)
    return result


@functools.partial(jax.jit, static_argnums=(1, 2))
def _slice(block: Any, start: tuple[int, ...], stop: tuple[int, ...]) -> Any:
    return jax.lax.slice(block, start, stop)


def _joined(places: tuple[ShardSlice, ...], blocks: Sequence[jax.Array]) -> jax.Array:
    """Return the blocks, which lie in a grid, as one."""
    with jax.enable_x64(True), jax.disable_jit(False):
        result: jax.Array = _join(places, list(blocks))
    return result


@functools.partial(jax.jit, static_argnums=0)
def _join(places: tuple[ShardSlice, ...], blocks: list[Any]) -> Any:
    def along(dim: int, parts: list[tuple[ShardSlice, Any]]) -> Any:
        if len(parts) == 1:
            return parts[0][1]
        rows: dict[tuple[int, int], list[tuple[ShardSlice, Any]]] = {}
        for part in parts:
            rows.setdefault(part[0][dim], []).append(part)
        made = [along(dim + 1, rows[row]) for row in sorted(rows)]
        return made[0] if len(made) == 1 else jax.lax.concatenate(made, dim)

    return along(0, list(zip(places, blocks, strict=True)))
