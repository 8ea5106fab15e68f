"""What the forwards of a stage leave for their backwards, and what can be done about it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.bodies import BodyBuilder, effective_operands, remembered, remembers
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.flops import products_of
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.semantics import is_removable
from mpmd_trace.ir.shardings import bit_width
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.fragment_info import Runs, call_counter, is_backward, is_forward
from mpmd_trace.passes.hoisting.cost import PER_MULTIPLICATION
from mpmd_trace.passes.memory.liveness import Change, Liveness
from mpmd_trace.passes.reachable import reachable
from mpmd_trace.passes.sharding.edges import CONSTRAINT
from mpmd_trace.passes.sharding.plain_bodies import EXPRESSIONS
from mpmd_trace.passes.sharding.reduced_program import is_plain_fragment

#: What is made again without a product: what is done element by element, with sums over dimensions.
_CHEAP = (
    EXPRESSIONS
    | {f"stablehlo.{name}" for name in ("concatenate", "pad", "reduce", "reverse", "transpose")}
    | {"sdy.constant", CONSTRAINT}
)


class Recomputed(NamedTuple):
    """A body that makes results of a forward again.

    arguments: those of the forward that it reads; results: those that it reads behind them.
    work: what that takes, in bytes of memory traffic of all devices together.
    """

    body: Region
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    work: float


def work_of(body: Region) -> float:
    """Return what a body takes, in bytes of memory traffic of all devices together."""
    ops = [op for op in body.block if not op.is_terminator]
    return remembered(body, "work", lambda: _work(ops, body.returned))


@remembers
def has_checkpoint(body: Region) -> bool:
    """Return whether the body recomputes something by `jax.checkpoint`, whose barriers keep XLA from undoing it."""
    return any(op.name == "stablehlo.optimization_barrier" for op in body.walk())


def cheap_results(body: Region, results: frozenset[int]) -> frozenset[int]:
    """Return those among the results that are made of arguments and of the others without a product."""

    def find() -> frozenset[int]:
        kept = {body.returned[i] for i in results}
        known: dict[Value, bool] = {}

        def is_cheap(value: Value) -> bool:
            if value not in known:
                op = value.defining_op
                known[value] = op is None or (op.name in _CHEAP and all(map(is_at_hand, effective_operands(op))))
            return known[value]

        def is_at_hand(value: Value) -> bool:
            return is_cheap(value) or value in kept

        for op in body.block:  # producers first, so that the recursion is not deep
            for value in op.results:
                is_cheap(value)
        return frozenset(i for i in results if is_cheap(body.returned[i]))

    return remembered(body, ("cheap results", results), find)


def recomputed(body: Region, results: tuple[int, ...], given: frozenset[int]) -> Recomputed | None:
    """Return the body that makes `results` again, from arguments and the results `given`; None if effects forbid it."""

    def make() -> Recomputed | None:
        block = body.block
        at_hand = {body.returned[i]: i for i in sorted(given, reverse=True)}

        def needed(value: Value) -> list[Value]:
            op = None if value in at_hand else value.defining_op
            return [] if op is None else effective_operands(op)

        wanted = reachable([body.returned[i] for i in results], needed)
        ops = [op for op in block if not op.is_terminator and any(r in wanted and r not in at_hand for r in op.results)]
        if not all(is_removable(op) or op.name == CONSTRAINT for op in ops):
            return None
        builder = BodyBuilder()
        arguments = tuple(a.index for a in block.args if a in wanted and a not in at_hand)
        mapping: dict[Value, Value] = {a: builder.arg(a.type, a.loc) for a in map(block.args.__getitem__, arguments)}
        read = tuple(sorted(i for value, i in at_hand.items() if value in wanted))
        for i in read:
            value = body.returned[i]
            mapping[value] = builder.arg(value.type, value.location)
        for op in ops:
            kept: dict[Value, Value] = {r: mapping[r] for r in op.results if r in mapping}
            builder.add(op, mapping)
            mapping.update(kept)
        made = builder.finish([mapping[body.returned[i]] for i in results])
        return Recomputed(made, arguments, read, _work(ops, [body.returned[i] for i in (*results, *read)]))

    return remembered(body, ("recomputed", results, given), make)


def _elements(value: Value) -> int:
    return math.prod(value.type.shape or ()) if isinstance(value.type, TensorType) else 0


def _bytes(value: Value) -> float:
    try:
        return _elements(value) * bit_width(value.type.element) / 8 if isinstance(value.type, TensorType) else 0.0
    except ValueError:
        return 0.0


def _work(ops: Sequence[Op], written: Sequence[Value]) -> float:
    """Products by their multiplications; all else by the bytes that are read and written, since XLA fuses it."""
    total = sum(map(_bytes, written))
    for op in ops:
        products = products_of(op)
        if products is not None:
            total += _elements(op.results[0]) * products * PER_MULTIPLICATION + sum(map(_bytes, op.operands))
        elif op.name not in _CHEAP:
            total += sum(map(_bytes, [*op.operands, *op.results]))
            inner: list[Op] = [one for region in op.regions for one in region.walk()]
            if inner:
                total += _work(inner, [])
    return total


#: What may be done with what is not offloaded, and what that means.
How = Literal["keep", "recompute cheap", "recompute"]
_HOW: dict[How, str] = {
    "keep": "is kept",
    "recompute cheap": "is recomputed where that takes no product",
    "recompute": "is recomputed",
}
#: A byte that goes to the host or comes back costs as much as so many of memory traffic: what PCIe 5 is to HBM3.
PER_HOST_BYTE = 50.0
#: Values of at most so many bytes are not worth a transfer.
_SMALL = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Forward:
    """A forward fragment, and the backward fragments of its microbatch that read what it leaves.

    before: what its devices run directly before the first of these.
    """

    fragment: FragmentOp
    backwards: tuple[FragmentOp, ...]
    before: FragmentOp

    @functools.cached_property
    def left(self) -> frozenset[int]:
        """The results that backwards read."""
        readers = set(self.backwards)
        return frozenset([r.index for r in self.fragment.results if not readers.isdisjoint(r.users)])


@dataclasses.dataclass(frozen=True, eq=False)
class Option:
    """What may be done with what the forwards of a stage leave.

    dropped: for each forward the results that are made again, with the body that does it; offloaded: those that go to
    the host; fetched: the fragment before which they are sent back, where that is not the one that reads them; copied:
    the part of the cost that is copies to the host and back.
    """

    cost: float
    change: Change
    how: How = "keep"
    dropped: Mapping[Forward, tuple[tuple[int, ...], Recomputed]] = dataclasses.field(default_factory=dict)
    offloaded: Mapping[Forward, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    fetched: Mapping[Forward, FragmentOp] = dataclasses.field(default_factory=dict)
    copied: float = 0.0

    @property
    def changes_something(self) -> bool:
        """True if anything is made again or goes to the host."""
        return bool(self.dropped or self.offloaded)

    def __str__(self) -> str:
        if not self.offloaded:
            return _HOW[self.how]
        again = self.how == "recompute cheap"
        text = f"{_HOW[self.how]}, and else in host memory in between" if again else "is in host memory in between"
        if not self.fetched:
            return f"{text}, for which its backward waits"
        return f"{text}{'; that' if again else ', and'} comes back while the program before its backward runs"


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


def forwards_of(mesh: str, fragments: Sequence[FragmentOp]) -> list[list[Forward]]:
    """Return the forwards of a mesh that leave something, by stage; `fragments` are all on its devices, in order."""
    groups: dict[object, list[Forward]] = {}
    place = {fragment: i for i, fragment in enumerate(fragments)}
    for fragment in fragments:
        if fragment.mesh != mesh or not is_plain_fragment(fragment):
            continue
        if is_forward(fragment) and call_counter(fragment) is not None:
            backwards = tuple(sorted(_backwards(fragment), key=place.__getitem__))
            # What is read directly afterwards is gone before anything else is made.
            if backwards and place[backwards[0]] > place[fragment] + 1:
                key = fragment.stage if fragment.stage is not None else fragment.origin
                before = fragments[place[backwards[0]] - 1]
                groups.setdefault(key, []).append(Forward(fragment, backwards, before))
    return list(groups.values())


def stage_of(
    forwards: list[Forward], shape: MeshAttr, held: Liveness, runs: Runs, *, remat: bool, offload: bool
) -> Stage:
    """Return the stage of these forwards with its options; the devices of its mesh are laid out as `shape`.

    `runs` tells how often fragments run in a step.
    """
    devices = math.prod(size for _, size in shape.axes)
    checkpointed = any(has_checkpoint(b.body) for one in forwards for b in one.backwards)
    options = [Option(0.0, Change())]
    if remat and not checkpointed:
        options += _recomputing(forwards, held, runs, devices)
    if offload:
        early = {one: one.before for one in forwards if one.before is not one.fragment}
        for option in [one for one in options if one.how != "recompute"]:
            for fetched in [early, {}] if early else [{}]:
                options.append(_offloading(option, forwards, held, fetched, devices))
    size = max(sum(held.size(f.fragment.results[i]) for i in f.left) for f in forwards)
    names = tuple(dict.fromkeys(origin.name for origin in forwards[0].fragment.origin))
    return Stage(names, tuple(forwards), checkpointed, tuple(options), size)


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


def _recomputing(forwards: list[Forward], held: Liveness, runs: Runs, devices: int) -> Iterator[Option]:
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
        changes, cost = list[Change](), 0.0
        dropped: dict[Forward, tuple[tuple[int, ...], Recomputed]] = {}
        for one, results in zip(forwards, wanted, strict=True):
            listed = tuple(sorted(results))
            made = recomputed(one.fragment.body, listed, one.left - results) if listed else None
            if made is None:
                continue
            dropped[one] = listed, made
            cost += runs((one.fragment,)) * made.work / devices
            changes.append(_change_of_recomputing(one, listed, made, held))
        if dropped:
            yield Option(cost, Change.of(changes), how, dropped)


def _change_of_recomputing(one: Forward, results: tuple[int, ...], made: Recomputed, held: Liveness) -> Change:
    fragment, before = one.fragment, held.time[one.backwards[0]] - 1
    read = [fragment.operand(i) for i in made.arguments] + [fragment.results[i] for i in made.results]
    unread: list[tuple[Value, int]] = []
    held_again: list[tuple[float, int, int]] = []
    for i in results:
        users = fragment.results[i].users
        times = [held.time[b] for b in one.backwards if b in users]
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
    copied, changes = 0.0, [option.change]
    back: set[tuple[Value, int]] = set()
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
        read = tuple((one.fragment.results[i], start + 1) for i in moved)
        changes.append(Change(tuple(unread), read, tuple(held_again)))
        if made is not None:  # what was read where it is made again is read from the host now
            back.update((one.fragment.results[i], again) for i in moved)
    change = Change.of(changes)
    change = dataclasses.replace(change, read=tuple(pair for pair in change.read if pair not in back))
    return Option(option.cost + copied, change, option.how, option.dropped, offloaded, early, copied)
