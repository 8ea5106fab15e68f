"""The order of meshes in a pipeline, and which of them hold pipeline stages."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from mpmd_trace.ir.attributes import TopologyAttr

T = TypeVar("T")
_DIGITS = re.compile(r"[0-9]+$")
_LARGEST = 2**31 - 1


@functools.cache
def _number(mesh: str) -> int | None:
    """Return the integer at the end of the name, unless it is too large for 32 bits."""
    match = _DIGITS.search(mesh)
    if match is None:
        return None
    number = int(match.group())
    return number if number <= _LARGEST else None


def before(a: str, b: str) -> bool:
    """Return whether mesh `a` comes before mesh `b`: by trailing numbers if both have one, else by name.

    `m2` is before `m10`; `a1` and `b1` are not ordered.
    """
    left, right = _number(a), _number(b)
    if left is not None and right is not None:
        return left < right
    return a.encode() < b.encode()


def sort_by_mesh_order(items: Iterable[T], mesh_of: Callable[[T], str]) -> list[T]:
    """Return the items in the order of their meshes; those whose meshes are not ordered keep their places."""

    def compare(a: T, b: T) -> int:
        left, right = mesh_of(a), mesh_of(b)
        return -1 if before(left, right) else 1 if before(right, left) else 0

    return sorted(items, key=functools.cmp_to_key(compare))


def in_topology_order(names: Iterable[str], topology: TopologyAttr | None) -> list[str]:
    """Distinct mesh names in the order of the topology; unknown ones behind them, as given."""
    wanted = dict.fromkeys(names)
    known = [name for name in topology.meshes if name in wanted] if topology is not None else []
    return known + [name for name in wanted if topology is None or name not in topology.meshes]


def first_mesh(topology: TopologyAttr) -> str:
    """Return the mesh with the smallest name, which takes everything that could be anywhere."""
    return min(topology.meshes, key=str.encode)


def is_cpu_mesh(name: str) -> bool:
    """Return whether the mesh is a host mesh, which is never a pipeline stage."""
    return name.endswith("/cpu")


def device_meshes(names: Iterable[str]) -> list[str]:
    """Return the meshes that can be pipeline stages."""
    return [name for name in names if not is_cpu_mesh(name)]


def schedulable_meshes(topology: TopologyAttr) -> list[str]:
    """Return the meshes that can be pipeline stages, in the order of the topology."""
    return device_meshes(topology.meshes)


def mesh_index(topology: TopologyAttr, mesh: str) -> int:
    """Return the number of `mesh` among the schedulable meshes.  Raises `ValueError` when it is not one of them."""
    return schedulable_meshes(topology).index(mesh)
