"""Walk a graph bottom-up, each node once, without recursion.

Programs are graphs of shared values as deep as their users make them: a walk that treats such a graph as a tree takes
exponential time, and one that recurses runs into Python's recursion limit.  Walks over operands use this one instead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def postorder(
    roots: Iterable[Node], operands: Callable[[Node], Iterable[Node]], visited: set[Node] | None = None
) -> Iterator[Node]:
    """Yield every node that `roots` reach, each once, all of its operands before it.

    Args:
      roots: the nodes to start from, visited in this order.
      operands: gives the nodes that a node depends on.  It is called once per node, and only once the walk gets there,
        so a caller stops at a node by giving it no operands.
      visited: nodes that are neither yielded nor entered.  The walk adds what it enters, so that several walks can
        share it.

    In a graph with cycles a node is yielded before the operand through which it is reached again.
    """
    seen = set() if visited is None else visited
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(operands(root)))]
        while path:
            node, pending = path[-1]
            for operand in pending:
                if operand not in seen:
                    seen.add(operand)
                    path.append((operand, iter(operands(operand))))
                    break
            else:
                path.pop()
                yield node
