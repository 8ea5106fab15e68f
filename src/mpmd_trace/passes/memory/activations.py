"""What the forwards of a stage leave for their backwards, and what can be done about it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Literal

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.core import Value
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.fragment_info import call_counter, is_backward, is_forward
from mpmd_trace.passes.memory.liveness import Change, Liveness
from mpmd_trace.passes.memory.recompute import Recomputed, cheap_results, has_checkpoint, recomputed, work_of
from mpmd_trace.passes.sharding.reduced_program import is_plain_fragment

How = Literal[
    "keep",
    "recompute cheap",
    "recompute",
    "offload",
    "offload, fetch late",
    "recompute cheap, offload",
    "recompute cheap, offload, fetch late",
]
HOW: dict[How, str] = {
    "keep": "is kept",
    "recompute cheap": "is recomputed where that takes no product",
    "recompute": "is recomputed",
    "offload": "is in host memory in between, and comes back while the program before its backward runs",
    "offload, fetch late": "is in host memory in between, for which its backward waits",
    "recompute cheap, offload": (
        "is recomputed where that takes no product, and else in host memory in between; that comes back while the "
        "program before its backward runs"
    ),
    "recompute cheap, offload, fetch late": (
        "is recomputed where that takes no product, and else in host memory in between, for which its backward waits"
    ),
}
#: A byte that goes to the host or comes back costs as much as so many of memory traffic: what PCIe 5 is to HBM3.
PER_HOST_BYTE = 50.0
#: Values of at most so many bytes are not worth a transfer.
_SMALL = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Forward:
    """A forward fragment, and the backward fragments of its microbatch that read what it leaves."""

    fragment: FragmentOp
    backwards: tuple[FragmentOp, ...]

    @property
    def left(self) -> frozenset[int]:
        """The results that backwards read."""
        readers = set(self.backwards)
        return frozenset(r.index for r in self.fragment.results if any(u in readers for u in r.users))


@dataclasses.dataclass(frozen=True, eq=False)
class Option:
    """What may be done with what the forwards of a stage leave.

    dropped: for each forward the results that are made again, with the body that does it; offloaded: those that go to
    the host; fetched: the fragment before which they are sent back, where that is not the one that reads them; copied:
    the part of the cost that is copies to the host and back.
    """

    how: How
    cost: float
    change: Change
    dropped: Mapping[Forward, tuple[tuple[int, ...], Recomputed]] = dataclasses.field(default_factory=dict)
    offloaded: Mapping[Forward, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    fetched: Mapping[Forward, FragmentOp] = dataclasses.field(default_factory=dict)
    copied: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """The forwards of a stage on a mesh; the first of its options changes nothing.

    has_checkpoint: whether the program says itself what is recomputed.
    """

    names: tuple[str, ...]
    forwards: tuple[Forward, ...]
    has_checkpoint: bool
    options: tuple[Option, ...]
    #: The bytes that a forward leaves on a device.
    bytes: float


def stages_of(mesh: str, shape: MeshAttr, held: Liveness, *, remat: bool, offload: bool) -> list[Stage]:
    """The stages of a mesh, whose devices are laid out as `shape`, whose forwards leave something, with options."""
    groups: dict[object, list[Forward]] = {}
    fragments = [op for op in held.ops if isinstance(op, FragmentOp)]
    place = {fragment: i for i, fragment in enumerate(fragments)}
    for fragment in fragments:
        if fragment.mesh != mesh or not is_plain_fragment(fragment):
            continue
        if is_forward(fragment) and call_counter(fragment) is not None:
            backwards = tuple(sorted(_backwards(fragment), key=place.__getitem__))
            # What is read directly afterwards is gone before anything else is made.
            if backwards and place[backwards[0]] > place[fragment] + 1:
                key = fragment.stage if fragment.stage is not None else fragment.origin
                groups.setdefault(key, []).append(Forward(fragment, backwards))
    devices = math.prod(size for _, size in shape.axes)
    result = []
    for forwards in groups.values():
        checkpointed = any(has_checkpoint(b.body) for one in forwards for b in one.backwards)
        options = [Option("keep", 0.0, Change())]
        if remat and not checkpointed:
            options += _recomputing(forwards, held, devices)
        if offload:
            before = {one: fragments[place[one.backwards[0]] - 1] for one in forwards}
            early = {one: op for one, op in before.items() if op is not one.fragment}
            for option in [one for one in options if one.how != "recompute"]:
                for fetched in [early, {}] if early else [{}]:
                    options.append(_offloading(option, forwards, held, fetched, devices))
        first = forwards[0]
        size = max(sum(held.size(f.fragment.results[i]) for i in f.left) for f in forwards)
        names = tuple(dict.fromkeys(origin.name for origin in first.fragment.origin))
        result.append(Stage(names, tuple(forwards), checkpointed, tuple(options), size))
    return result


def _backwards(forward: FragmentOp) -> Iterator[FragmentOp]:
    for user in forward.distinct_users:
        if (
            is_plain_fragment(user)
            and user.mesh == forward.mesh
            and is_backward(user)
            and call_counter(user) == call_counter(forward)
            and user.stage == forward.stage
        ):
            yield user


def _recomputing(forwards: list[Forward], held: Liveness, devices: int) -> Iterator[Option]:
    """Yield all that is left is made again; or what takes no product."""
    hows: tuple[How, ...] = ("recompute cheap", "recompute")
    seen: set[tuple[frozenset[int], ...]] = {(frozenset(),) * len(forwards)}
    for how in hows:
        wanted = tuple(
            one.left if how == "recompute" else cheap_results(one.fragment.body, one.left) for one in forwards
        )
        if wanted in seen:
            continue
        seen.add(wanted)
        change, cost = Change(), 0.0
        dropped: dict[Forward, tuple[tuple[int, ...], Recomputed]] = {}
        for one, results in zip(forwards, wanted, strict=True):
            listed = tuple(sorted(results))
            made = recomputed(one.fragment.body, listed, one.left - results) if listed else None
            if made is None:
                continue
            dropped[one] = listed, made
            cost += made.work / devices
            change += _change_of_recomputing(one, listed, made, held)
        if dropped:
            yield Option(how, cost, change, dropped)


def _change_of_recomputing(one: Forward, results: tuple[int, ...], made: Recomputed, held: Liveness) -> Change:
    fragment, before = one.fragment, held.time[one.backwards[0]] - 1
    read = [fragment.operand(i) for i in made.arguments] + [fragment.results[i] for i in made.results]
    unread: list[tuple[Value, int]] = []
    held_again: list[tuple[float, int, int]] = []
    for i in results:
        times = [held.time[b] for b in one.backwards if any(u is b for u in fragment.results[i].users)]
        unread += [(fragment.results[i], at) for at in times]
        held_again.append((held.size(fragment.results[i]), before, max(times)))
    return Change(tuple(unread), tuple((value, before) for value in read), tuple(held_again))


def _offloading(
    option: Option, forwards: list[Forward], held: Liveness, early: Mapping[Forward, FragmentOp], devices: int
) -> Option:
    """Return the option with everything that it keeps in host memory.

    What is fetched `early`, before the fragment in front of the backward, takes its memory for that time, and costs
    what is left of the copy when that fragment is done.
    """
    offloaded: dict[Forward, tuple[int, ...]] = {}
    copied, change = 0.0, option.change
    for one in forwards:
        gone, made = option.dropped.get(one, ((), None))
        sizes = {i: held.size(one.fragment.results[i]) for i in sorted(one.left) if i not in gone}
        moved = tuple(i for i, size in sizes.items() if size > _SMALL)
        if not moved:
            continue
        offloaded[one] = moved
        copy = PER_HOST_BYTE * sum(sizes[i] for i in moved)
        hidden = work_of(early[one].body) / devices if one in early else 0.0
        copied += copy + max(copy - hidden, 0.0)
        start = held.time[one.fragment]
        again = held.time[one.backwards[0]] - 1
        unread: list[tuple[Value, int]] = []
        held_again: list[tuple[float, int, int]] = []
        for i in moved:
            value = one.fragment.results[i]
            times = [held.time[b] for b in one.backwards if any(u is b for u in value.users)]
            if made is not None and i in made.results:
                times.append(again)
            unread += [(value, at) for at in times]
            begin = held.time[early[one]] - 1 if one in early else min(times)
            held_again.append((sizes[i], begin, max(times)))
        change += Change(tuple(unread), tuple((one.fragment.results[i], start + 1) for i in moved), tuple(held_again))
        if made is not None:  # what was read where it is made again is read from the host now
            back = {(one.fragment.results[i], again) for i in moved}
            change = Change(change.unread, tuple(pair for pair in change.read if pair not in back), change.made)
    how: How = "offload" if option.how == "keep" else "recompute cheap, offload"
    if not early:
        how = "offload, fetch late" if option.how == "keep" else "recompute cheap, offload, fetch late"
    return Option(how, option.cost + copied, change, option.dropped, offloaded, early, copied)
