"""Counts of the collectives in optimized HLO, by which devices of a mesh communicate.

Read from the text of executables, because XLA decides last which collectives there are, combines them, and moves them
out of loops.  (HLO's text: openxla.org/xla/hlo_dumps.)
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mpmd_trace.diagnostics.tables import Shown, Table

#: The collectives of HLO, by the names that its text has.
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """All collectives of a kind: how often they run, on how many arrays, with how many bytes of results per device.

    `hidden` are the bytes of those that run in the background of matrix products or convolutions.
    """

    runs: int = 0
    arrays: int = 0
    bytes: int = 0
    hidden: int = 0

    def __add__(self, other: Collective) -> Collective:
        return Collective(
            self.runs + other.runs, self.arrays + other.arrays, self.bytes + other.bytes, self.hidden + other.hidden
        )

    def times(self, count: int) -> Collective:
        return Collective(self.runs * count, self.arrays * count, self.bytes * count, self.hidden * count)

    @property
    def hidden_share(self) -> float:
        """The part of the bytes that is hidden; 0 where there are none."""
        return self.hidden / self.bytes if self.bytes else 0.0


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

    def all_hidden(self) -> Collectives:
        """Return the same in the background of something."""
        return Collectives({kind: dataclasses.replace(usage, hidden=usage.bytes) for kind, usage in self.of.items()})

    @property
    def total(self) -> Collective:
        """All kinds together."""
        return sum(self.of.values(), Collective())

    def __str__(self) -> str:
        return ", ".join(f"{usage.runs} {kind}" for kind, usage in self.of.items() if usage.runs) or "none"


class CollectivesReport(Shown, dict[str, Collectives]):
    """The collectives of a device of each mesh in a step, by the name of the mesh; as text and HTML, a table."""

    @property
    def tables(self) -> list[Table]:
        rows = [
            [mesh, kind, f"{one.runs:,}", f"{one.arrays:,}", f"{one.bytes:,}", f"{one.hidden_share:.0%}"]
            for mesh, all_of in self.items()
            for kind, one in all_of.of.items()
        ]
        head = ["mesh", "collective", "runs", "arrays", "bytes", "hidden"]
        return [Table("collectives of a device in a step", head, rows or [["none", *[""] * 5]], words=2)]


def collectives_of(compiled: Any) -> Collectives:
    """Return the collectives that a device runs in one call of a compiled program (`jax.stages.Compiled`).

    Those in the body of a loop count as often as the loop runs, once where XLA does not know how often that is; of the
    branches of a conditional the one with the most counts.
    """
    return _Program(compiled.as_text() or "").entry


_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")
_CHAIN = re.compile(r'chain_id="(\d+)"')
#: Libraries that multiply matrices.
_PRODUCT = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|conv|dot)', re.IGNORECASE)


class _Program:
    """The computations of a module."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[str]] = {}
        self._known: dict[str, Collectives] = {}
        self._products: dict[str, bool] = {}
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
            self._known[name] = sum(self._in(name), Collectives())
        return self._known[name]

    def _in(self, name: str) -> Iterator[Collectives]:
        #: What has begun: its collectives, and the products by then.
        begun: dict[str, tuple[Collectives | str, int]] = {}
        products = 0
        #: What fusions do step by step, and whether one of them multiplies.
        chains: dict[str, tuple[Collectives, bool]] = {}
        for line in self._lines.get(name, ()):
            instruction = _INSTRUCTION.match(line)
            if instruction is None:
                continue
            result, type, opcode, rest = instruction.groups()
            given = _OPERAND.search(rest)
            if opcode in KINDS:
                yield Collectives({opcode: _sized(type)})
            elif opcode.removesuffix("-start") in KINDS:
                begun[result] = opcode.removesuffix("-start"), products
            elif opcode in ("async-start", "call-start"):
                called = (self._of(called) for called in _CALLED.findall(rest))
                begun[result] = sum(called, Collectives()), products
            elif opcode.endswith(("-update", "-done")) and given is not None and given[1] in begun:
                what, before = begun[given[1]]
                if opcode.endswith("-update"):
                    # A call that was prepared ahead begins when it gets its operands.
                    has_operands = len(_OPERAND.findall(rest.partition(")")[0])) > 1
                    begun[result] = what, products if has_operands else before
                else:
                    # The results of what begins are among its operands and what else it needs; here they are alone.
                    done = Collectives({what: _sized(type)}) if isinstance(what, str) else what
                    yield done.all_hidden() if products > before else done
            elif opcode == "conditional":
                listed = _BRANCHES.search(rest)
                names = [n.strip().lstrip("%") for n in listed[1].split(",")] if listed else _CALLED.findall(rest)
                yield max(map(self._of, names), key=lambda c: c.total.runs, default=Collectives())
            elif opcode == "fusion" and (chain := self._chain(rest)):
                whole, before = chains.get(chain, (Collectives(), False))
                called = (self._of(called) for called in _CALLED.findall(rest))
                chains[chain] = (
                    whole if whole.of else sum(called, Collectives()),
                    before or self._is_product(opcode, rest),
                )
            elif opcode in ("while", "call", "fusion"):
                trips = _TRIPS.search(rest) if opcode == "while" else None
                for called in _CALLED.findall(rest):
                    yield self._of(called).times(1 if trips is None else int(trips[1]))
            products += self._is_product(opcode, rest)
        for whole, is_hidden in chains.values():
            yield whole.all_hidden() if is_hidden else whole

    def _chain(self, rest: str) -> str:
        """Return the name of the collective of which a fusion does a step, as those for TPUs; else nothing."""
        lines = (line for called in _CALLED.findall(rest) for line in self._lines.get(called, ()))
        return next((match[1] for line in lines if (match := _CHAIN.search(line)) is not None), "")

    def _is_product(self, opcode: str, rest: str) -> bool:
        """Return whether an instruction multiplies matrices, or calls what does."""
        if opcode == "custom-call":
            return _PRODUCT.search(rest) is not None
        return opcode in ("dot", "convolution") or (
            opcode in ("while", "call", "fusion") and any(map(self._has_product, _CALLED.findall(rest)))
        )

    def _has_product(self, name: str) -> bool:
        if name not in self._products:
            self._products[name] = False
            instructions = (_INSTRUCTION.match(line) for line in self._lines.get(name, ()))
            self._products[name] = any(self._is_product(one[3], one[4]) for one in instructions if one is not None)
        return self._products[name]


def _sized(type: str) -> Collective:
    """One collective with a result of that type."""
    sizes = []
    for element, bits, shape in _ARRAY.findall(type):
        width = 8 if element == "pred" else int(bits or 32)
        sizes.append(math.prod(map(int, filter(None, shape.split(",")))) * width // 8)
    return Collective(1, len(sizes), sum(sizes))
