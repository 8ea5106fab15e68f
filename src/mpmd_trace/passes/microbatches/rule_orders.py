"""Orders that the user's rules ask for on top of a schedule, and what contradicts them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mpmd_trace.diagnostics.messages import shortened
from mpmd_trace.ir.attributes import integer_in
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.block_order import Join
from mpmd_trace.passes.fragment_info import is_scheduling_unit
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule, ScheduleRule
from mpmd_trace.passes.optimize.reference_schedules import Comparator

_DATA, _RULES = "the data flow", "a schedule rule"
#: The shortest explanation is the one with the least of what the user can change.
_WEIGHT = {_DATA: 1, _RULES: 1_000}
_SCHEDULE_WEIGHT = 1_000_000
#: So many orders of a schedule are looked at to tell why it cannot be followed.
_TRIED = 64


@dataclasses.dataclass(frozen=True)
class UserRules:
    """What a user asks of the optimize phase, knowing the imported program.

    merge: which fragments become one.
    order: what runs before what on a mesh, on top of the schedule.
    may_merge: whether a fragment and the next one on its mesh, once scheduled, become one.
    comparator: which of two scheduling units runs first, instead of a schedule.
    """

    merge: tuple[MergeRule, ...] = ()
    order: tuple[ScheduleRule, ...] = ()
    may_merge: Callable[[FragmentOp, FragmentOp], bool] | None = None
    comparator: Comparator | None = None


def _named_fragments(ops: Iterable[Op]) -> dict[FragmentInfo, list[int]]:
    """Return the places of the fragments of each identity; those without a name have none."""
    result: dict[FragmentInfo, list[int]] = {}
    for index, op in enumerate(ops):
        if isinstance(op, FragmentOp) and op.is_user:
            result.setdefault(FragmentInfo.of(op), []).append(index)
    return result


def ordered_pairs(rules: Sequence[ScheduleRule], ops: Sequence[Op]) -> list[tuple[int, int]]:
    """Return the places (first, second) that the rules order; what they name in vain is left out of its rule."""
    places = _named_fragments(ops) if rules else {}
    pairs: dict[tuple[int, int], None] = {}
    for rule in rules:
        groups = [places[info.canonical] for info in rule.ordered_fragments if info.canonical in places]
        for firsts, seconds in itertools.pairwise(groups):
            pairs.update(((a, b), None) for a in firsts for b in seconds if a != b and _on_one_mesh(ops, a, b))
    return list(pairs)


def _on_one_mesh(ops: Sequence[Op], a: int, b: int) -> bool:
    """Return whether the two fragments are on the same mesh."""
    first, second = ops[a], ops[b]
    return isinstance(first, FragmentOp) and isinstance(second, FragmentOp) and first.mesh == second.mesh


def contradictions(
    ops: Sequence[Op],
    preds: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int]],
    joins: Sequence[Join],
    pairs: Sequence[tuple[int, int]],
    schedule: str,
) -> Iterator[str]:
    """Yield which orders of rules have a cycle with the program, the schedule and other rules.

    Args:
        ops: the ops of the block.
        preds: for each the places of those that it uses.
        edges: what the schedule orders, as places; `joins` likewise.
        pairs: what the rules order.
        schedule: the schedule in words, as "the schedule '1F1B'".
    """
    wanted = _wanted(preds, edges, joins, pairs, len(ops), schedule)
    weights = {edge: _weight(why) for edge, why in wanted.items()}
    for a, b, path in _shortest_paths([(b, a) for a, b in pairs], weights):
        who, lines = _steps(wanted, ops, path)
        others = ["other schedule rules" if one == _RULES else one for one in who]
        text = f"a schedule rule wants {_show(ops[a])} before {_show(ops[b])}, but {' and '.join(others)} "
        text += f"{'want' if len(who) > 1 or who == [_RULES] else 'wants'} it the other way round:\n"
        text += "\n".join(shortened(lines, 6)) + "\nLeave the rule out"
        if schedule in who:
            text += ', or choose another schedule: pipeline_schedule="none" has the rules and the data flow alone'
        yield text


def obstacle(
    ops: Sequence[Op],
    preds: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int]],
    joins: Sequence[Join],
    schedule: str,
) -> tuple[str, int]:
    """Return what a schedule wants that the data flow does not allow, and the last microbatch that this is about.

    Arguments as for `contradictions`.

    Of the orders of the schedule that are part of a cycle (the first few of them), one is reported for which the data
    flow needs the least of the schedule to want it the other way round.
    """
    wanted = _wanted(preds, edges, joins, (), len(ops), schedule)
    weights = {edge: _weight(why) for edge, why in wanted.items()}
    part = _components(weights)
    orders = [*edges, *((a, b) for join in joins for a in join.sources for b in join.targets)]
    cyclic = sorted({(b, a) for a, b in orders if part[a] == part[b]}, key=lambda pair: (pair[1], pair[0]))[:_TRIED]
    paths = [path for _, _, path in _shortest_paths(cyclic, weights)]
    path = min(paths, key=lambda p: (sum(weights[step] for step in itertools.pairwise(p)), p))
    who, lines = _steps(wanted, ops, path)
    counters = [integer_in(ops[place].attrs, "call_counter") or 0 for place in path if place < len(ops)]
    text = (
        f"it wants {_show(ops[path[-1]])} before {_show(ops[path[0]])}, but {' and '.join(who)} "
        f"{'want' if len(who) > 1 else 'wants'} it the other way round:\n" + "\n".join(shortened(lines, 6))
    )
    return text, max(counters)


def _weight(why: str) -> int:
    return _WEIGHT.get(why, _SCHEDULE_WEIGHT)


def _wanted(
    preds: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int]],
    joins: Sequence[Join],
    pairs: Sequence[tuple[int, int]],
    count: int,
    schedule: str,
) -> dict[tuple[int, int], str]:
    """Return who wants the first of two places before the second; joins are places behind those of the `count` ops."""
    wanted: dict[tuple[int, int], str] = {}

    def add(a: int, b: int, why: str) -> None:
        if (a, b) not in wanted or _weight(wanted[a, b]) > _weight(why):
            wanted[a, b] = why

    for index, producers in enumerate(preds):
        for one in producers:
            add(one, index, _DATA)
    for a, b in pairs:
        add(a, b, _RULES)
    for a, b in edges:
        add(a, b, schedule)
    for number, join in enumerate(joins, count):
        for a in join.sources:
            add(a, number, schedule)
        for b in join.targets:
            add(number, b, schedule)
    return wanted


def _steps(
    wanted: Mapping[tuple[int, int], str], ops: Sequence[Op], path: Sequence[int]
) -> tuple[list[str], list[str]]:
    """Return who wants the path, and its steps; the inner nodes of joins are no ops."""
    who: dict[str, None] = {}
    lines: list[str] = []
    for a, b in itertools.pairwise(path):
        who[wanted[a, b]] = None
    real = [(place, wanted[place, after]) for place, after in itertools.pairwise(path) if place < len(ops)]
    ends = [place for place, _ in real[1:]] + [path[-1]]
    for (place, why), end in zip(real, ends, strict=True):
        lines.append(f"  {_show(ops[place])}, then {_show(ops[end])}: {why}")
    return list(who), lines


def _components(weights: Mapping[tuple[int, int], int]) -> Sequence[int]:
    """Return a number for each node, the same for those on a common cycle."""
    from scipy.sparse.csgraph import connected_components  # slow to import, and for messages only

    numbers: Sequence[int] = connected_components(_matrix(weights), directed=True, connection="strong")[1]
    return numbers


def _matrix(weights: Mapping[tuple[int, int], int]) -> Any:
    from scipy.sparse import coo_array  # slow to import, and for messages only

    size = 1 + max(itertools.chain.from_iterable(weights), default=0)
    sources, targets = zip(*weights, strict=True) if weights else ((), ())
    return coo_array((list(weights.values()), (sources, targets)), shape=(size, size)).tocsr()


def _shortest_paths(
    wanted: Sequence[tuple[int, int]], weights: Mapping[tuple[int, int], int]
) -> Iterator[tuple[int, int, list[int]]]:
    """(end, start, path) for each (start, end) of `wanted` between which there is a path, the one of least weight."""
    from scipy.sparse.csgraph import dijkstra  # slow to import, and for messages only

    graph = _matrix(weights)
    for start, end in wanted:
        _, before = dijkstra(graph, indices=start, return_predecessors=True)
        path = [end]
        while path[-1] != start and before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
        if path[-1] == start:
            yield end, start, path[::-1]


def _show(op: Op) -> str:
    if not isinstance(op, FragmentOp):
        return op.name
    text = ", ".join(origin.short for origin in op.origin) or "an unnamed fragment"
    if is_scheduling_unit(op):
        text += f" of microbatch {op.call_counter}"
    return f"{text} on '{op.mesh}'"
