"""How often devices of a mesh speak to each other: the collectives in optimized HLO.

Read from the text of executables, because XLA decides last which collectives there are, combines them, and moves them
out of loops.  (HLO's text: openxla.org/xla/hlo_dumps.)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["KINDS", "Collective", "Collectives", "collectives_of"]

#: The collectives of HLO, by the names that its text has.
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """All collectives of a kind: how often they run, on how many arrays, with how many bytes of results per device."""

    runs: int = 0
    arrays: int = 0
    bytes: int = 0

    def __add__(self, other: Collective) -> Collective:
        return Collective(self.runs + other.runs, self.arrays + other.arrays, self.bytes + other.bytes)

    def times(self, count: int) -> Collective:
        return Collective(self.runs * count, self.arrays * count, self.bytes * count)


@dataclasses.dataclass(frozen=True)
class Collectives:
    """The collectives that one device runs, by kind."""

    of: Mapping[str, Collective] = dataclasses.field(default_factory=dict)

    def __getitem__(self, kind: str) -> Collective:
        return self.of.get(kind, Collective())

    def __add__(self, other: Collectives) -> Collectives:
        kinds = [kind for kind in KINDS if kind in self.of or kind in other.of]
        return Collectives({kind: self[kind] + other[kind] for kind in kinds})

    def times(self, count: int) -> Collectives:
        """Return what `count` runs do."""
        return Collectives({kind: usage.times(count) for kind, usage in self.of.items()})

    @property
    def total(self) -> Collective:
        """All kinds together."""
        return sum(self.of.values(), Collective())

    def __str__(self) -> str:
        return ", ".join(f"{usage.runs} {kind}" for kind, usage in self.of.items() if usage.runs) or "none"


def collectives_of(compiled: Any) -> Collectives:
    """Return the collectives that a device runs in one call of a compiled program (`jax.stages.Compiled`).

    Those in the body of a loop count as often as the loop runs, once where XLA does not know how often that is; of the
    branches of a conditional the one with the most counts.
    """
    return _Program(compiled.as_text() or "").entry


_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")


class _Program:
    """The computations of a module."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[str]] = {}
        self._known: dict[str, Collectives] = {}
        name, entry = "", ""
        for line in text.splitlines():
            start = _COMPUTATION.match(line)
            if start is not None:
                name = start[2]
                self._lines[name] = []
                entry = name if start[1] else entry
            elif name:
                self._lines[name].append(line)
        self.entry = self._of(entry)

    def _of(self, name: str) -> Collectives:
        if name not in self._known:
            self._known[name] = Collectives()  # computations do not call themselves
            self._known[name] = sum(self._found(name), Collectives())
        return self._known[name]

    def _found(self, name: str) -> Iterator[Collectives]:
        for line in self._lines.get(name, ()):
            instruction = _INSTRUCTION.match(line)
            if instruction is None:
                continue
            type, opcode, rest = instruction.groups()
            kind = opcode.removesuffix("-start")
            if kind in KINDS:
                yield Collectives({kind: _sized(type, is_start=kind != opcode)})
            elif opcode == "conditional":
                listed = _BRANCHES.search(rest)
                names = [n.strip().lstrip("%") for n in listed[1].split(",")] if listed else _CALLED.findall(rest)
                yield max(map(self._of, names), key=lambda c: c.total.runs, default=Collectives())
            elif opcode in ("while", "call", "fusion", "async-start"):
                trips = _TRIPS.search(rest) if opcode == "while" else None
                for called in _CALLED.findall(rest):
                    yield self._of(called).times(1 if trips is None else int(trips[1]))


def _sized(type: str, *, is_start: bool) -> Collective:
    """One collective with a result of that type; of an asynchronous one the second half are results."""
    sizes = []
    for element, bits, shape in _ARRAY.findall(type):
        width = 8 if element == "pred" else int(bits or 32)
        count = 1
        for size in filter(None, shape.split(",")):
            count *= int(size)
        sizes.append(count * width // 8)
    if is_start and len(sizes) > 1:
        sizes = sizes[len(sizes) // 2 :]
    return Collective(1, len(sizes), sum(sizes))
