"""Transfers between the stages of a program: what is sent, and how long links take for it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from jax.sharding import AbstractMesh, Mesh

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.core import Value as IrValue
from mpmd_trace.ir.ops import FragmentOp, Module, TransferOp
from mpmd_trace.ir.shardings import byte_size, mesh_symbols
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.jax_compat.targets import network_speed_of, slice_of
from mpmd_trace.passes.fragment_info import (
    call_counter,
    has_remat,
    kind_of,
    merged_parts,
    single_transpose_count,
    transpose_counts,
)
from mpmd_trace.schedules import TRANSFERS, Action, Step, Transfers, backward, forward, fused

# Links.


@dataclasses.dataclass(frozen=True)
class Link:
    """A link between two meshes: seconds, and bytes per second from device to device."""

    latency: float = 0.0
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.latency) or not 0 <= self.latency < math.inf:
            raise MpmdError(f"the latency of a link is {self.latency!r}; it is seconds, 0 or more")
        if self.bandwidth is not None and not (_is_number(self.bandwidth) and self.bandwidth > 0):
            raise MpmdError(f"the bandwidth of a link is {self.bandwidth!r}; it is bytes per second, above 0")

    def seconds(self, bytes: float, count: float = 1) -> float:
        """Return the time of `count` transfers, one after the other, of `bytes` in all."""
        return self.latency * count + (bytes / self.bandwidth if self.bandwidth else 0.0)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class Links:
    """The links between meshes: `single[source, target]` if it is given, otherwise `default`.

    `transfers`: "async" transfers run in the background; "exposed" transfers occupy the mesh that sends; "blocking"
    transfers occupy both meshes; "in-order" transfers run in the background, one at a time on each mesh.
    """

    default: Link = Link()
    single: Mapping[tuple[str, str], Link] = dataclasses.field(default_factory=dict)
    transfers: Transfers = "async"

    def __post_init__(self) -> None:
        if self.transfers not in TRANSFERS:
            raise MpmdError(f"transfers is '{self.transfers}'; it is one of {', '.join(TRANSFERS)}")

    def between(self, source: str, target: str) -> Link:
        """Return the link from a mesh to another one."""
        return self.single.get((source, target), self.default)


def over_network(links: Links, topology: Mapping[str, Mesh | AbstractMesh]) -> Links:
    """Return the links with those between slices of TPUs as wide as the network is, unless they are given one by one.

    Links in `default` are those inside of a slice; where one is narrower than the network, all are.
    """
    devices = {name: [*mesh.devices.flat] for name, mesh in topology.items() if isinstance(mesh, Mesh)}
    slices = {name: {slice_of(device) for device in own} for name, own in devices.items()}
    single = dict(links.single)
    for source, target in itertools.permutations(devices, 2):
        speed = network_speed_of(devices[source][0])
        if speed is not None and slices[source] != slices[target]:
            known = links.default.bandwidth
            link = dataclasses.replace(links.default, bandwidth=speed if known is None else min(speed, known))
            single.setdefault((source, target), link)
    return dataclasses.replace(links, single=single)


# Values.


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value of a program: what makes it, and everything that reads it, with the mesh where it does.

    `bytes` are those of one device.  `source` is None for an argument of the program.  `slots` are the numbers
    of its copies on each mesh, where the program has a plan.
    """

    bytes: float
    mesh: str
    source: Action | None
    uses: tuple[tuple[str, Action], ...]
    slots: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass
class Traffic:
    """Values that are sent over a link: how many, and their bytes per device."""

    count: float = 0.0
    bytes: float = 0.0

    def add(self, bytes: float, count: int = 1) -> None:
        """Count some more."""
        self.count += count
        self.bytes += bytes


@dataclasses.dataclass(frozen=True)
class Crossings:
    """The values that stages send to each other.

    `sends[p, s]`: bytes that stage p sends to stage s, on another mesh, for one microbatch: results of its
    forward to a later one, gradients to an earlier one.  From mesh a to mesh b move in a step, besides,
    `before[a, b]`, arguments (the batch, parameters that two stages share), and `rest[a, b]`, such as sums and
    norms.
    """

    sends: Mapping[tuple[int, int], float] = dataclasses.field(default_factory=dict)
    before: Mapping[tuple[str, str], Traffic] = dataclasses.field(default_factory=dict)
    rest: Mapping[tuple[str, str], Traffic] = dataclasses.field(default_factory=dict)


def crossings(
    values: Iterable[Value],
    stage_of: Mapping[int, int],
    mesh_of: Sequence[str],
    renamed: Mapping[str, str] | None = None,
) -> Crossings:
    """Return what is sent between stages, from the values of a program.

    `stage_of`: the stage of each number that actions have; `mesh_of`: the mesh of each stage.  What belongs to
    no microbatch is on the mesh it names, as `renamed` says.  A value is sent once to each mesh.  What is not
    sent for most microbatches of a stage counts for the step.
    """
    single: dict[tuple[int, int], dict[int, float]] = {}
    before: dict[tuple[str, str], Traffic] = {}
    rest: dict[tuple[str, str], Traffic] = {}
    visits: dict[int, set[int]] = {}

    def place(mesh: str, action: Action | None) -> tuple[str, int | None]:
        if action is None or action.kind == "O" or action.stage not in stage_of:
            return (mesh if renamed is None else renamed.get(mesh, mesh)), None
        stage = stage_of[action.stage]
        visits.setdefault(stage, set()).add(action.microbatch)
        return mesh_of[stage], stage

    for value in values:
        source_mesh, source = place(value.mesh, value.source)
        targets: dict[str, list[tuple[int | None, Action]]] = {}
        for mesh, action in value.uses:
            at, stage = place(mesh, action)
            if at != source_mesh:
                targets.setdefault(at, []).append((stage, action))
        for target, readers in targets.items():
            edge = _edge(value.source, source, readers)
            if edge is not None and value.source is not None:
                amounts = single.setdefault(edge, {})
                amounts[value.source.microbatch] = amounts.get(value.source.microbatch, 0.0) + value.bytes
            else:
                kind = before if value.source is None else rest
                kind.setdefault((source_mesh, target), Traffic()).add(value.bytes)
    sends = {}
    for (p, s), amounts in sorted(single.items()):
        usual = statistics.median_low([amounts.get(m, 0.0) for m in sorted(visits[p])])
        if usual:
            sends[p, s] = usual
        more = [amount - usual for amount in amounts.values() if amount > usual]
        if more:
            rest.setdefault((mesh_of[p], mesh_of[s]), Traffic()).add(sum(more), len(more))
    return Crossings(sends, dict(sorted(before.items())), dict(sorted(rest.items())))


def _edge(
    source: Action | None, stage: int | None, readers: Sequence[tuple[int | None, Action]]
) -> tuple[int, int] | None:
    """Return the stages between which a value goes for its microbatch, the nearest one where several read it."""
    if source is None or stage is None:
        return None
    own = [s for s, a in readers if s is not None and a.microbatch == source.microbatch]
    later = [s for s in own if s > stage]
    if source.kind == "F" and later:
        return stage, min(later)
    earlier = [s for s in own if s < stage]
    return (stage, max(earlier)) if earlier else None


# Modules.


def fragment_action(op: FragmentOp, mesh: int) -> Action:
    """Return what a fragment is: a forward or (part of a) backward of a microbatch, else `O`.

    Its stage is its own number or that of its mesh.
    """
    stage = op.stage if op.stage is not None else mesh
    counter, count = call_counter(op), single_transpose_count(op)
    if counter is None or count not in (0, 1):
        return Action(stage, "O")
    return Action(stage, kind_of(op), counter)


def fragment_step(op: FragmentOp, mesh: int) -> Step:
    """As `fragment_action`, but a forward merged with a backward is a block of both."""
    if merged := merged_parts(op):
        return fused(*(Action(mesh if p.stage is None else p.stage, p.kind, p.microbatch) for p in merged))
    counter = call_counter(op)
    if counter is None or set(transpose_counts(op)) != {0, 1} or has_remat(op):
        return fragment_action(op, mesh)
    stage = op.stage if op.stage is not None else mesh
    return fused(forward(stage, counter), backward(stage, counter))


def values_of_module(module: Module) -> list[Value]:
    """Return the results of the fragments of a module after the import phase, with what reads them.

    Each device is taken to hold an equal part: shardings inside meshes are not known yet.
    """
    main = module.main
    topology = main.topology
    assert topology is not None
    number = {name: i for i, name in enumerate(topology.meshes)}
    symbols = mesh_symbols(module)
    made: dict[IrValue, tuple[str, Action]] = {}
    uses: dict[IrValue, list[tuple[str, Action]]] = {}
    root: dict[IrValue, IrValue] = {}
    for op in main.body:
        if isinstance(op, TransferOp):
            root[op.results[0]] = root.get(op.operands[0], op.operands[0])
        elif isinstance(op, FragmentOp):
            action = fragment_action(op, number[op.mesh])
            for operand in op.operands:
                uses.setdefault(root.get(operand, operand), []).append((op.mesh, action))
            for result in op.results:
                made[result] = (op.mesh, action)
    results = []
    for value, (mesh, action) in made.items():
        type = value.type
        if isinstance(type, MeshTensorType):
            whole = byte_size(type, symbols)
            held = whole / topology.meshes[mesh].size if type.sharding is None else whole
            results.append(Value(held, mesh, action, tuple(uses.get(value, ()))))
    return results
