"""Depth-first search in any directed graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reachable(starts: Iterable[Node], successors: Callable[[Node], Iterable[Node]]) -> dict[Node, None]:
    """Return the nodes that `starts` reach, these included, in depth-first preorder with last successors first."""
    result: dict[Node, None] = {}
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node not in result:
            result[node] = None
            stack += successors(node)
    return result
