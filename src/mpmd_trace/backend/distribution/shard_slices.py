"""Slices of an array that the devices of a mesh hold, and their overlaps with those of another mesh."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from mpmd_trace.ir.attributes import Axis, MeshAttr, TensorShardingAttr

#: Start and stop in each dimension.
ShardSlice = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SliceOverlap:
    """A part of an array, the device of the source mesh that gives it, and those of the target mesh that want it.

    Devices are positions in the order of their mesh.
    """

    box: ShardSlice
    source: int
    targets: tuple[int, ...]


def shard_slices(shape: Sequence[int], sharding: TensorShardingAttr | None, mesh: MeshAttr) -> tuple[ShardSlice, ...]:
    """Return the part of an array that each device of the mesh holds, in the order of the mesh."""
    sizes = dict(mesh.axes)
    result = []
    for coordinates in itertools.product(*(range(size) for size in sizes.values())):
        at = dict(zip(sizes, coordinates, strict=True))
        box = []
        for dim, length in enumerate(shape):
            index, parts = 0, 1
            for axis in sharding.dim_axes(dim) if sharding is not None else ():
                place, count = _along(axis, at[axis.name], sizes[axis.name])
                index, parts = index * count + place, parts * count
            step = -(-length // parts)
            box.append((min(index * step, length), min((index + 1) * step, length)))
        result.append(tuple(box))
    return tuple(result)


def _along(axis: Axis, coordinate: int, size: int) -> tuple[int, int]:
    """Return the place of a device along an axis or sub-axis, and how many places that has."""
    if axis.size is None:
        return coordinate, size
    assert axis.pre_size is not None
    return coordinate // (size // (axis.pre_size * axis.size)) % axis.size, axis.size


def is_empty(box: ShardSlice) -> bool:
    return any(stop <= start for start, stop in box)


def slice_overlaps(
    source: Sequence[ShardSlice], target: Sequence[ShardSlice], owners: Sequence[int], wanted: Sequence[int]
) -> list[SliceOverlap]:
    """Return the parts that make up, on the target mesh, an array of the source mesh; in the order of the target.

    A part is what one device holds and another one wants of it, so that no device has to ask its neighbors.  It
    goes once to each process, whose devices share it.  Where several devices hold it, one of the same process gives
    it, or they take turns.

    Args:
        source: what each device of the source mesh holds.
        target: what each device of the target mesh wants.
        owners: the process of each device of the source mesh.
        wanted: the process of each device of the target mesh.
    """
    holders: dict[ShardSlice, list[int]] = {}
    for position, box in enumerate(source):
        holders.setdefault(box, []).append(position)
    receivers: dict[tuple[int, ShardSlice], list[int]] = {}
    for position, (box, process) in enumerate(zip(target, wanted, strict=True)):
        receivers.setdefault((process, box), []).append(position)
    result: list[SliceOverlap] = []
    turns = dict.fromkeys(holders, 0)
    for (process, box), targets in receivers.items():
        for held, those in holders.items():
            part = common(held, box)
            if is_empty(part):
                continue
            near = [h for h in those if owners[h] == process]
            if near:
                giver = near[0]
            else:
                giver = those[turns[held] % len(those)]
                turns[held] += 1
            result.append(SliceOverlap(part, giver, tuple(targets)))
    return result


def by_process(
    source: Sequence[ShardSlice], target: Sequence[ShardSlice], owners: Sequence[int], wanted: Sequence[int]
) -> dict[tuple[int, int], tuple[SliceOverlap, ...]]:
    """Return `slice_overlaps` for each pair of processes (sender, receiver), in the order of their numbers."""
    parts: dict[tuple[int, int], list[SliceOverlap]] = {}
    for piece in slice_overlaps(source, target, owners, wanted):
        parts.setdefault((owners[piece.source], wanted[piece.targets[0]]), []).append(piece)
    return {pair: tuple(those) for pair, those in sorted(parts.items())}


def common(left: ShardSlice, right: ShardSlice) -> ShardSlice:
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
