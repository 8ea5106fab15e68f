"""Resharding transfers: a process sends its part of an array to others, and puts together what arrives.

Arrays go as blocks of one device each, so that meshes of different sizes and shapes are no different from others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding, SingleDeviceSharding

from mpmd_trace.backend.distribution.shard_slices import ShardSlice, SliceOverlap, by_process
from mpmd_trace.jax_compat.runtime import from_shards, shards_of


def owners_of(mesh: Mesh | AbstractMesh) -> tuple[int, ...]:
    """Return the process of each device of a mesh, in its order."""
    return tuple(d.process_index for d in mesh.devices.flat)


def shard_slices_of(shape: Sequence[int], sharding: Sharding) -> dict[jax.Device, ShardSlice]:
    """Return the part of an array that each device holds, in the order of the mesh."""
    indices = sharding.devices_indices_map(tuple(shape))
    return {d: tuple(s.indices(n)[:2] for s, n in zip(i, shape, strict=True)) for d, i in indices.items()}


def parts_of(
    shape: Sequence[int], source: NamedSharding, target: NamedSharding
) -> dict[tuple[int, int], tuple[SliceOverlap, ...]]:
    """For each pair of processes (sender, receiver) the pieces that go between them; see `by_process`."""
    held, wanted = shard_slices_of(shape, source), shard_slices_of(shape, target)
    return by_process(tuple(held.values()), tuple(wanted.values()), owners_of(source.mesh), owners_of(target.mesh))


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
        return tuple(shard_slices_of(self.spec.shape, self.source).values())

    @functools.cached_property
    def _wanted(self) -> tuple[ShardSlice, ...]:
        return tuple(shard_slices_of(self.spec.shape, self.target).values())

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
                    for p in pieces
                ]
                for process, pieces in self.receives.items()
            }

    @functools.cached_property
    def _places(self) -> dict[int, SingleDeviceSharding]:
        """For each device of the target in this process, by its position on the mesh, where its part is to be."""
        me, kind = jax.process_index(), self.target.memory_kind
        devices = enumerate(self.target.mesh.devices.flat)
        return {i: SingleDeviceSharding(d, memory_kind=kind) for i, d in devices if d.process_index == me}

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
        placed_blocks = list(zip(self.own, own, strict=True))
        for process, blocks in arrived.items():
            placed_blocks += zip(self.receives[process], blocks, strict=True)
        made = []
        for position, place in self._places.items():
            parts = [(p.box, block) for p, block in placed_blocks if position in p.targets]
            made.append(self._block(self._wanted[position], place, parts))
        return self._make(made)

    def nothing(self) -> jax.Array:
        """Return the array in a process that has none of its devices."""
        return self._make([])

    def _block(
        self, box: ShardSlice, place: SingleDeviceSharding, parts: list[tuple[ShardSlice, jax.Array]]
    ) -> jax.Array:
        if not parts:  # nothing has no parts
            return jax.device_put(np.zeros([stop - start for start, stop in box], self.spec.dtype), place)
        here = [block if block.sharding == place else jax.device_put(block, place) for _, block in parts]
        if len(parts) == 1:
            return here[0]
        return jax.device_put(_joined(tuple(box for box, _ in parts), here), place)


def sample(array: jax.Array) -> jax.Array:
    """Return an element of an array, or of its part here: it comes with it, and outlives a reuse of the buffer.

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
