"""Rules by users: which fragments of a program run in a given order, and which become one.

A rule is made of the program's own fragments, by a function in the configuration that gets them (`Fragments`):

    def forwards_first(fragments):
        return rules.order(fragments.where(mesh="m0", kind="F"), fragments.where(mesh="m0", kind="B"))

    config = make_config(..., fragment_schedule_rules=[forwards_first])

`str` of a rule is the text form of the reference, which `parse` reads back.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from mpmd_trace.frontend.errors import mistake
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule, ScheduleRule, parse_rule
from mpmd_trace.scheduling.fragments import Fragment, Fragments
from mpmd_trace.scheduling.user_rules import MergeNeighbours

__all__ = [
    "Fragment",
    "FragmentInfo",
    "Fragments",
    "MergeNeighbours",
    "MergeRule",
    "ScheduleRule",
    "merge",
    "merge_neighbours",
    "order",
    "parse",
]

#: A fragment, its identity, or several of them.
Some = Fragment | FragmentInfo | Iterable[Fragment | FragmentInfo]


def order(*groups: Some) -> list[ScheduleRule]:
    """Return rules by which each group runs before the next one, on each mesh separately.

    `order(a, b, c)` with single fragments of one mesh is one rule; groups (such as `Fragments`) give a rule for each
    pair.  Groups without a fragment on a mesh are skipped there.

    Raises:
        MpmdError: for groups that have no mesh in common: meshes only wait for each other's values.
    """
    listed = [_infos(group) for group in groups]
    _check_distinct([info for group in listed for info in group], "order")
    if all(len(group) == 1 for group in listed) and len({group[0].mesh_name for group in listed}) == 1 < len(listed):
        return [ScheduleRule(tuple(group[0] for group in listed))]
    result: list[ScheduleRule] = []
    for mesh in dict.fromkeys(info.mesh_name for group in listed for info in group):
        here = [[info for info in group if info.mesh_name == mesh] for group in listed]
        for firsts, seconds in itertools.pairwise(group for group in here if group):
            result += [ScheduleRule((a, b)) for a in firsts for b in seconds]
    if not result and sum(map(bool, listed)) > 1:
        meshes = " and ".join(sorted({f"'{info.mesh_name}'" for group in listed for info in group}))
        raise mistake(f"order is about fragments of one mesh; these are on {meshes}, which run on their own")
    return result


def merge(
    *fragments: Some, into: str | Iterable[str] | None = None, stage: int | None = None, microbatch: int | None = None
) -> list[MergeRule]:
    """Return the rule that merges these fragments of one mesh into one program; no rule for fewer than two of them.

    Args:
        *fragments: fragments or groups of them.
        into: the names of the result; by default all names of the fragments.
        stage: its stage; by default theirs, if they are of one stage, phase and microbatch.
        microbatch: its microbatch; by default theirs, if it is the same.

    Raises:
        MpmdError: for fragments of several meshes.
    """
    infos = [info for group in fragments for info in _infos(group)]
    _check_distinct(infos, "merge")
    meshes = sorted({info.mesh_name for info in infos})
    if len(meshes) > 1:
        raise mistake(f"merge is about fragments of one mesh; these are on {', '.join(map(repr, meshes))}")
    if len(infos) < 2:
        return []
    origins = {origin for info in infos for origin in info.origins}
    counts = {count for _, count in origins}
    if into is not None:
        names = (into,) if isinstance(into, str) else tuple(into)
        origins = {(name, count) for name in names for count in counts}
    counters, stages, parts = ({getattr(i, f) for i in infos} for f in ("call_counter", "stage", "split_type"))
    same = len(counters) == 1 and len(counts) == 1
    target = FragmentInfo(
        tuple(origins),
        _common(stages) if stage is None and same else stage,
        _common(counters) if microbatch is None else microbatch,
        _common(parts) if same else None,
        meshes[0],
    ).canonical
    return [MergeRule(tuple(infos), target)]


def merge_neighbours(may_merge: Callable[[Fragment, Fragment], bool]) -> MergeNeighbours:
    """Return a rule for `fragment_merge_rules` that merges adjacent fragments if `may_merge(first, second)`.

    After scheduling, `may_merge` is called for each fragment and the next one on its mesh, and again for the merged
    fragment and the next one.  If another op has to run in between, nothing is merged.
    """
    if not callable(may_merge):
        raise mistake(f"merge_neighbours takes a function of two fragments, not {may_merge!r}")
    return MergeNeighbours(may_merge)


def parse(text: str) -> MergeRule | ScheduleRule:
    """Parse the text of a rule, in the reference's form, as `str` of a rule returns it.  Raises `MpmdError`."""
    return parse_rule(text)


def _infos(group: Some) -> list[FragmentInfo]:
    infos = list(group) if isinstance(group, Iterable) and not isinstance(group, str) else [group]
    for one in infos:
        if not isinstance(one, Fragment | FragmentInfo):
            raise mistake(f"a rule is made of fragments (or FragmentInfo), not of {one!r}")
    return [one.info if isinstance(one, Fragment) else one for one in infos]


def _check_distinct(infos: list[FragmentInfo], what: str) -> None:
    counts = collections.Counter(infos)
    twice = [info for info in dict.fromkeys(infos) if counts[info] > 1]
    if twice:
        raise mistake(
            f"{what} got {twice[0]} more than once. A fragment is there once; where several have this identity, rules "
            "cannot tell them apart: give their computations different names"
        )


def _common(values: set[Any]) -> Any:
    """Return the value that is the only one; None where there are several."""
    return next(iter(values)) if len(values) == 1 else None
