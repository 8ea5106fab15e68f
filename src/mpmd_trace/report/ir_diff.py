"""Differences that a pass makes: fragments merged, split, moved, new and gone, transfers, attributes, bodies.

A text diff of a pure reordering has thousands of lines; this has one.  Fragments are followed by the named
computations in them and the number of their call.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mpmd_trace.ir.attributes import Attribute, IntegerAttr
from mpmd_trace.ir.bodies import equivalent
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.ops import CallOp, FragmentCallOp, FragmentOp, Module, NamedComputationOp, TransferOp
from mpmd_trace.ir.types import MeshTensorType

#: What says which fragment it is, and not how it is.
_IDENTITY = frozenset({"call_counter", "callee", "mesh_name", "name", "origin"})


class Thing(NamedTuple):
    """A fragment or named computation: its place in the main function, None inside of a function that this calls.

    `names` are the named computations in it, `call` the number of its call where it has one.
    """

    place: int | None
    mesh: str
    names: tuple[str, ...]
    call: int | None
    attributes: dict[str, Attribute]
    types: tuple[Any, ...]
    body: Region | None

    @property
    def label(self) -> str:
        return (", ".join(self.names) or "inferred") + ("" if self.call is None else f" #{self.call}")

    def __str__(self) -> str:
        return f"{self.label} on {self.mesh}" if self.mesh else self.label


class Outline(NamedTuple):
    """The things that changes are reported for: in the main function of a module and those that it calls."""

    things: tuple[Thing, ...]
    transfers: collections.Counter[tuple[str, str]]
    arguments: tuple[Any, ...]


def outline(module: Module) -> Outline:
    """Return the outline of a module, which may change afterwards."""
    main = module.lookup("main")
    things: list[Thing] = []
    transfers: collections.Counter[tuple[str, str]] = collections.Counter()
    if main is None:
        return Outline((), transfers, ())
    called = dict.fromkeys(op.callee for op in main.body if isinstance(op, CallOp))
    functions = [main, *(f for f in map(module.lookup, called) if f is not None and not f.is_declaration)]
    for function in functions:
        for place, op in enumerate(function.body):
            if isinstance(op, TransferOp):
                transfers[mesh_of(op.operand(0).type), mesh_of(op.results[0].type)] += 1
            if not isinstance(op, FragmentOp | FragmentCallOp | NamedComputationOp):
                continue
            origins = [op.origin] if isinstance(op, NamedComputationOp) else op.origin
            counter = op.attrs.get("call_counter")
            things.append(
                Thing(
                    place if function is main else None,
                    "" if isinstance(op, NamedComputationOp) else op.mesh,
                    tuple(o.name + (f"({o.transpose_count})" if o.transpose_count else "") for o in origins),
                    counter.value if isinstance(counter, IntegerAttr) else None,
                    {k: v for k, v in {**op.props, **op.attrs}.items() if k not in _IDENTITY},
                    tuple(r.type for r in op.results),
                    op.regions[0] if op.regions else None,
                )
            )
    return Outline(tuple(things), transfers, tuple(main.arg_attrs))


def mesh_of(type: Any) -> str:
    """Return the mesh that a value of this type is on, nothing where it is on none."""
    return type.mesh if isinstance(type, MeshTensorType) else ""


@dataclasses.dataclass(frozen=True)
class Changes:
    """The changes of the things of a module."""

    #: Those that are merged, split, moved, new and gone, as far as there are any; the last are of the module before.
    things: Mapping[str, Sequence[Thing]]
    #: Things that are as they were, but in another order.
    reordered: bool
    #: How many transfers more, by source and target.
    transfers: dict[tuple[str, str], int]
    #: What else changed, and on how many things.
    notes: Sequence[str]

    def head(self) -> list[str]:
        """Return the changes that take one line each, without lists."""
        lines = [f"{more:+} transfers {source} -> {target}" for (source, target), more in self.transfers.items()]
        return [*lines, *(["the same fragments in another order"] if self.reordered else []), *self.notes]

    def text(self, most: int = 12) -> str:
        """Return the changes for people; at most so many things of each kind."""
        lines = self.head()
        for name, things in self.things.items():
            lines.append(f"{name}: {len(things)}")
            lines += [f"  {thing}" for thing in things[:most]]
            lines += [f"  ... and {len(things) - most} more"] if len(things) > most else []
        return "\n".join(lines or ["no difference in fragments or transfers: see the text"]) + "\n"


def changes(before: Outline, after: Outline) -> Changes:
    """Return what became of the things of the module before."""
    old, new = _by_name(before), _by_name(after)
    merged, split, moved, fresh = [], [], [], []
    for thing in after.things:
        if not thing.names:
            continue
        sources = [source for name in thing.names for source in old.get(name, ()) if _same_call(source, thing)]
        if not sources:
            fresh.append(thing)
        elif len({(source.names, source.call) for source in sources}) > 1 and thing.names != sources[0].names:
            merged.append(thing)
        elif all(source.mesh and source.mesh != thing.mesh for source in sources):
            moved.append(thing)
        if any(len(new[name]) > len(old[name]) for name in thing.names if name in old):
            split.append(thing)
    gone = {
        id(thing): thing
        for name, things in old.items()
        for thing in things
        if not any(_same_call(thing, one) for one in new.get(name, ()))
    }
    names = [[f"{thing.mesh} {thing.label}" for thing in one.things] for one in (before, after)]
    pairs = sorted({*before.transfers, *after.transfers})
    transfers = {pair: more for pair in pairs if (more := after.transfers[pair] - before.transfers[pair])}
    reordered = names[0] != names[1] and sorted(names[0]) == sorted(names[1])
    kinds = {"merged": merged, "split": split, "moved": moved, "new": fresh, "gone": list(gone.values())}
    told = {what: things for what, things in kinds.items() if things}
    return Changes(told, reordered, transfers, list(_notes(before, after)))


def _by_name(one: Outline) -> dict[str, list[Thing]]:
    result: dict[str, list[Thing]] = {}
    for thing in one.things:
        for name in dict.fromkeys(thing.names):
            result.setdefault(name, []).append(thing)
    return result


def _same_call(a: Thing, b: Thing) -> bool:
    """Return whether both may be of the same call; inside of called functions and after export, things have none."""
    return a.call is None or b.call is None or a.call == b.call


def _notes(before: Outline, after: Outline) -> Iterator[str]:
    """Yield what is different on things that are there before and after, and on arguments."""
    counts = [sum(not thing.names for thing in one.things) for one in (before, after)]
    if counts[0] != counts[1]:
        yield f"{counts[1] - counts[0]:+} inferred fragments"
    left: dict[tuple[str, tuple[str, ...]], list[Thing]] = {}
    for thing in before.things:
        left.setdefault((thing.mesh, thing.names), []).append(thing)
    told: collections.Counter[str] = collections.Counter()
    for thing in after.things:
        twins = left.get((thing.mesh, thing.names))
        if not twins:
            continue
        twin = twins.pop(0)
        for name in sorted({*twin.attributes, *thing.attributes}):
            was, now = twin.attributes.get(name), thing.attributes.get(name)
            if was != now:
                told[f"{name} {'set' if was is None else 'removed' if now is None else 'changed'}"] += 1
        told["types changed"] += twin.types != thing.types
        told["bodies changed"] += not _same(twin.body, thing.body)
    for text, count in told.items():
        if count:
            yield f"{text} on {count} fragments"
    if len(before.arguments) == len(after.arguments):
        changed = sum(a != b for a, b in zip(before.arguments, after.arguments, strict=True))
        if changed:
            yield f"attributes of {changed} arguments changed"


def _same(a: Region | None, b: Region | None) -> bool:
    return a is b or (a is not None and b is not None and equivalent(a, b))
