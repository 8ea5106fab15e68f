"""The multiway cut: exact for two labels, against all labellings for more."""

from __future__ import annotations

import itertools
import random

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mpmd_trace.passes.placement.cut import _Contraction, cost, cut
from util import max_examples

_SETTINGS = max_examples(100, suppress_health_check=[HealthCheck.too_slow])
Problem = tuple[int, int, list[tuple[int, list[int]]]]


@st.composite
def problems(draw: st.DrawFn, labels: int) -> Problem:
    nodes = labels + draw(st.integers(1, 5))
    pins = st.lists(st.integers(0, nodes - 1), min_size=2, max_size=4, unique=True)
    weight = st.sampled_from([0, 1, 2, 3, 5, 10])
    return nodes, labels, draw(st.lists(st.tuples(weight, pins), max_size=10))


def best(problem: Problem) -> int:
    """The cost of the cheapest of all labellings."""
    nodes, labels, edges = problem
    free = itertools.product(range(labels), repeat=nodes - labels)
    return min(cost(edges, [*range(labels), *chosen]) for chosen in free)


@_SETTINGS
@given(problems(2))
def test_two_labels_are_exact(problem: Problem) -> None:
    found = cut(*problem)
    assert found[:2] == [0, 1]
    assert cost(problem[2], found) == best(problem)


@_SETTINGS
@given(problems(3))
def test_three_labels_keep_the_bound(problem: Problem) -> None:
    """Where values have one consumer the cost is at most twice the best; the documentation proves it."""
    nodes, labels, edges = problem
    found = cut(*problem)
    assert found[:3] == [0, 1, 2]
    assert cost(edges, found) >= best(problem)
    pairs = [(weight, pins[:2]) for weight, pins in edges]
    assert cost(pairs, cut(nodes, labels, pairs)) <= 2 * best((nodes, labels, pairs))


@_SETTINGS
@given(problems(3))
def test_clusters_keep_an_optimum(problem: Problem) -> None:
    nodes, labels, edges = problem
    graph = _Contraction(nodes, labels, edges)
    graph.join_clusters()
    roots = [graph.root(node) for node in range(nodes)]
    free = [node for node in range(labels, nodes) if roots[node] == node]
    costs = []
    for chosen in itertools.product(range(labels), repeat=len(free)):
        found = [*range(labels), *[0] * (nodes - labels)]
        for node, label in zip(free, chosen, strict=True):
            found[node] = label
        costs.append(cost(edges, [found[root] for root in roots]))
    assert min(costs) == best(problem)


def updates(labels: int, arrays: int) -> tuple[int, list[tuple[int, list[int]]]]:
    """Clipping and adam: what several ops make of each gradient, all of them with the same scalars."""
    edges: list[tuple[int, list[int]]] = []
    total, count = labels, labels + 1
    scaled = [total]
    for label in range(labels):
        for _ in range(arrays):
            square, divided, first, second = range(count, count + 4)
            count += 4
            edges += [(4112, [label, square, divided]), (8208, [divided, first, second])]
            edges += [(4112, [second, first]), (20, [square, total])]
            scaled += [divided, first]
    return count, [*edges, (20, scaled)]


def test_flows_are_left_with_the_scalars() -> None:
    nodes, edges = updates(labels=8, arrays=12)
    graph = _Contraction(nodes, 8, edges)
    graph.contract(range(8, nodes))
    assert sum(map(len, graph.parts())) > 2 * 8 * 12
    graph.join_clusters()
    assert sum(map(len, graph.parts())) == 1
    assert cost(edges, cut(nodes, 8, edges)) == 20 * (7 * 12 + 7)


def test_nearly_all_of_three_labels_are_exact() -> None:
    rng = random.Random(0)
    exact = 0
    for _ in range(300):
        nodes = rng.randint(4, 8)
        edges = [
            (rng.choice([1, 2, 3, 5, 10]), rng.sample(range(nodes), rng.randint(2, 4)))
            for _ in range(rng.randint(1, 10))
        ]
        problem = (nodes, 3, edges)
        exact += cost(edges, cut(*problem)) == best(problem)
    assert exact >= 295


def test_what_nothing_ties_gets_the_first_label() -> None:
    assert cut(5, 2, []) == [0, 1, 0, 0, 0]
    assert cut(5, 2, [(3, [2, 3])]) == [0, 1, 0, 0, 0]


def test_a_tie_goes_to_the_first_label() -> None:
    assert cut(3, 2, [(4, [1, 2]), (4, [2, 0])])[2] == 0


def test_weights_of_any_size() -> None:
    huge = 1 << 50
    assert cut(4, 2, [(huge, [0, 2]), (huge + 1, [2, 1]), (huge, [1, 3]), (1, [3, 0]), (1, [2, 3, 0])])[2:] == [1, 1]
