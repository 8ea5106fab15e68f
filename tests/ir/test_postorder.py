"""`postorder` visits every node once, operands first, however deep and however shared the graph is."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.ir.postorder import postorder


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """Acyclic graphs: the operands of each node, which come before it."""
    n = draw(st.integers(1, 12))
    return [draw(st.lists(st.integers(0, i - 1), max_size=4)) if i else [] for i in range(n)]


@given(graphs(), st.data())
def test_each_node_once_and_operands_first(graph: list[list[int]], data: st.DataObject) -> None:
    roots = data.draw(st.lists(st.integers(0, len(graph) - 1)))
    walk = list(postorder(roots, graph.__getitem__))
    position = {node: i for i, node in enumerate(walk)}
    assert len(position) == len(walk)
    reached, pending = set(), list(roots)
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending += graph[node]
    assert set(walk) == reached
    assert all(position[operand] < position[node] for node in walk for operand in graph[node])


def test_a_deep_shared_graph_is_linear() -> None:
    asked: Counter[int] = Counter()

    def operands(node: int) -> list[int]:
        asked[node] += 1
        return [node - 1, node - 1, node - 2] if node > 1 else []

    assert len(list(postorder([20_000], operands))) == 20_001
    assert set(asked.values()) == {1}


def test_visited_is_shared_between_walks() -> None:
    visited: set[int] = {0}
    graph = {0: [], 1: [0], 2: [0, 1], 3: [2, 1]}
    assert list(postorder([2], graph.__getitem__, visited)) == [1, 2]
    assert list(postorder([3, 2], graph.__getitem__, visited)) == [3]
