"""The execution plan of an exported module: what runs, what moves and what is dropped, in which order.

A plan is pure data, derived from the module alone; `backend/runtime.py` binds it to executables and devices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from mpmd_trace.ir.attributes import MeshAttr, parse_attribute
from mpmd_trace.ir.types import MeshTensorType

#: Type, memory kind and layout of a value.
Place = tuple[MeshTensorType, str | None, str | None]


class Slot(NamedTuple):
    """A value of the plan: a whole array on one mesh.  A tuple, since plans have ten thousands and those are made fast.

    `memory_kind` is what the program says (in the type or in an attribute); `bytes` are per device.  `layout` is
    the order in memory as in `mhlo.layout_mode`, None where it is the usual one.
    """

    number: int
    type: MeshTensorType
    memory_kind: str | None
    bytes: int
    name: str = ""
    layout: str | None = None

    @property
    def mesh(self) -> str:
        return self.type.mesh

    @property
    def place(self) -> Place:
        return self.type, self.memory_kind, self.layout

    def __str__(self) -> str:
        tensor = self.type.tensor
        text = f"{tensor.element}[{','.join(map(str, tensor.shape or ()))}]"
        sharding = self.type.sharding
        if sharding is not None and not sharding.is_fully_replicated:
            text += "{" + ", ".join(d for d in sharding.dims) + "}"
        text += f" {self.memory_kind}" if self.memory_kind else ""
        return text + (f" layout {self.layout}" if self.layout else "")


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramSpec:
    """An executable that the plan needs: a function on a mesh, with the types of what it gets and gives.

    One function has several when it is called with different shardings, or where donation is not safe.
    """

    number: int
    callee: str
    mesh: str
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    donated: tuple[int, ...]


class Run(NamedTuple):
    """Run a program on its mesh.

    `origins` are the named computations in it, each with how often it is transposed.
    """

    program: int
    mesh: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    donated: tuple[int, ...]
    label: str
    origins: tuple[tuple[str, int], ...] = ()

    @property
    def meshes(self) -> tuple[str, ...]:
        return (self.mesh,)


class Transfer(NamedTuple):
    """Move values to another mesh, or to another sharding or memory of their mesh, as one batch."""

    source: str
    target: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: str = ""

    @property
    def meshes(self) -> tuple[str, ...]:
        return (self.source,) if self.source == self.target else (self.source, self.target)


class Free(NamedTuple):
    """Drop values that nothing uses any more."""

    slots: tuple[int, ...]


Instruction = Run | Transfer | Free


@dataclasses.dataclass(frozen=True)
class Plan:
    """The instructions of one step, in the order in which they are issued.

    Slots are numbered in that order; the first ones are the arguments.  `donated` are the arguments that the
    caller gives away.
    """

    name: str
    meshes: dict[str, str]
    slots: tuple[Slot, ...]
    programs: tuple[ProgramSpec, ...]
    instructions: tuple[Instruction, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    donated: frozenset[int]
    result_names: tuple[str, ...]
    #: The arguments that may come with any sharding over their mesh.
    movable: frozenset[int] = frozenset()
    #: For each mesh that has the devices of an earlier one, the first that has them.
    shared: dict[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def sharing(self) -> dict[str, tuple[str, ...]]:
        """For each mesh all that have its devices, itself among them."""
        groups: dict[str, list[str]] = {}
        for mesh in self.meshes:
            groups.setdefault(self.shared.get(mesh, mesh), []).append(mesh)
        return {mesh: tuple(groups[self.shared.get(mesh, mesh)]) for mesh in self.meshes}

    @property
    def runs(self) -> list[Run]:
        return [i for i in self.instructions if isinstance(i, Run)]

    @property
    def transfers(self) -> list[Transfer]:
        return [i for i in self.instructions if isinstance(i, Transfer)]

    @property
    def unused(self) -> frozenset[int]:
        """The arguments that no instruction reads and that are not returned."""
        used = {s for i in self.instructions if not isinstance(i, Free) for s in i.inputs}
        return frozenset(self.arguments).difference(used, self.results)

    @property
    def transferred_bytes(self) -> int:
        """Bytes that arrive on all devices of the target meshes."""
        return self.bytes_of(s for t in self.transfers for s in t.outputs)

    @functools.cached_property
    def devices(self) -> dict[str, int]:
        """The number of devices of each mesh."""
        return {name: parse_mesh(body).size for name, body in self.meshes.items()}

    def bytes_of(self, slots: Iterable[int]) -> int:
        """Return the bytes of values, on all devices of their meshes."""
        counts = self.devices
        return sum(self.slots[s].bytes * counts[self.slots[s].mesh] for s in slots)

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def live_bytes(
        self, temporary: dict[int, int] | None = None, reused: dict[int, int] | None = None
    ) -> dict[str, int]:
        """Return the peak of bytes per device on each mesh, with arguments.  Meshes on shared devices have one peak.

        Arguments stay until the end, because the caller holds them, unless a program reuses their memory.
        `temporary`: bytes of scratch memory of each program, by number.  `reused`: bytes of donated values that
        become results of it, all of them by default; others are gone only when it is done.  Values in host memory
        do not count.
        """
        peak = dict.fromkeys(self.meshes, 0)
        for _, mesh, used in self.memory_use(temporary, reused):
            peak[mesh] = max(peak[mesh], used)
        return peak

    def memory_use(
        self,
        temporary: dict[int, int] | None = None,
        reused: dict[int, int] | None = None,
        counted: Container[int] | None = None,
    ) -> Iterator[tuple[int, str, int]]:
        """Yield what a device of a mesh holds while an instruction runs on it: (place of the instruction, mesh, bytes).

        Meshes that share devices are all listed, and the bytes are those of all.  Instruction -1 stands for the start.
        `counted`: the slots that count, all by default.  See `live_bytes`.
        """
        live = dict.fromkeys(self.meshes, 0)
        sizes = [0 if s.memory_kind == "pinned_host" else s.bytes for s in self.slots]
        if counted is not None:
            sizes = [n if slot in counted else 0 for slot, n in enumerate(sizes)]
        for slot in self.arguments:
            live[self.slots[slot].mesh] += sizes[slot]
        sharing = self.sharing
        yield from ((-1, mesh, sum(map(live.__getitem__, sharing[mesh]))) for mesh in live)
        gone: set[int] = set(self.arguments)
        for at, instruction in enumerate(self.instructions):
            if isinstance(instruction, Free):
                for slot in instruction.slots:
                    if slot not in gone:
                        live[self.slots[slot].mesh] -= sizes[slot]
                continue
            mesh = instruction.mesh if isinstance(instruction, Run) else instruction.target
            live[mesh] += sum(sizes[s] for s in instruction.outputs)
            scratch = 0
            slots: list[int] = []
            if isinstance(instruction, Run):
                slots = [instruction.inputs[position] for position in instruction.donated]
                gone.update(slots)
                given = sum(sizes[s] for s in slots)
                scratch = (temporary or {}).get(instruction.program, 0)
                scratch -= given if reused is None else min(given, reused.get(instruction.program, 0))
            used = sum(map(live.__getitem__, sharing[mesh])) + scratch
            yield from ((at, one, used) for one in sharing[mesh])
            for slot in slots:
                live[self.slots[slot].mesh] -= sizes[slot]

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def parse_mesh(body: str) -> MeshAttr:
    """Return a mesh as a plan writes it."""
    mesh = parse_attribute(f"#sdy.mesh{body}")
    assert isinstance(mesh, MeshAttr)
    return mesh


def _names(slots: tuple[int, ...]) -> str:
    return ", ".join(f"%{s}" for s in slots)


def _lines(plan: Plan) -> Iterator[str]:
    moved = sum(len(transfer.outputs) for transfer in plan.transfers)
    yield (
        f"plan {plan.name}: {len(plan.meshes)} mesh{'es' * (len(plan.meshes) != 1)}, {len(plan.programs)} programs, "
        f"{len(plan.runs)} runs, {moved} transfers"
    )
    for name, body in plan.meshes.items():
        yield f"mesh {name} {body}"
    for program in plan.programs:
        donates = f" donates {', '.join(map(str, program.donated))}" if program.donated else ""
        yield f"program p{program.number} on {program.mesh} = {program.callee}{donates}"
    for number in plan.arguments:
        slot = plan.slots[number]
        name = f" {slot.name}" if slot.name else ""
        donated = " donated" if number in plan.donated else ""
        yield f"%{number} = argument on {slot.mesh} : {slot}{name}{donated}"
    for instruction in plan.instructions:
        if isinstance(instruction, Free):
            yield f"free {_names(instruction.slots)}"
            continue
        types = ", ".join(str(plan.slots[s]) for s in instruction.outputs)
        if isinstance(instruction, Run):
            given = set(instruction.donated)
            shown = ", ".join(f"%{s}{' donated' if i in given else ''}" for i, s in enumerate(instruction.inputs))
            what = f"run p{instruction.program} on {instruction.mesh} ({shown})"
        else:
            what = f"transfer {instruction.source} -> {instruction.target} ({_names(instruction.inputs)})"
        equals = f"{_names(instruction.outputs)} = " if instruction.outputs else ""
        label = f"  # {instruction.label}" if instruction.label else ""
        yield f"{equals}{what} : {types or 'nothing'}{label}"
    for slot_number, name in zip(plan.results, plan.result_names, strict=True):
        slot = plan.slots[slot_number]
        yield f"return %{slot_number} on {slot.mesh} : {slot}{' ' + name if name else ''}"
