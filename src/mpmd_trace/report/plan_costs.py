"""Costs of the parts of a compiled program: time, memory, and what they send to each other."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from mpmd_trace.backend.collectives import collectives_of
from mpmd_trace.backend.cost_analysis import CountedProgram
from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.backend.timeline import Timeline
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat.collective_overlap import HiddenShare
from mpmd_trace.jax_compat.runtime import keeps_barriers
from mpmd_trace.passes.compile_options import OUR_OPTIONS, Overlap
from mpmd_trace.passes.fragment_info import is_scheduling_unit
from mpmd_trace.passes.mesh_order import schedulable_meshes
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.report.plan_copies import Copies, copies_of_stages
from mpmd_trace.report.plan_values import Profile, activation_slots, activations, cut_bytes, other_bytes, values_of_plan
from mpmd_trace.report.timeline import FragmentActions, run_actions, times_of_programs
from mpmd_trace.scheduling.balance import work_of_names
from mpmd_trace.scheduling.costs import Hiding
from mpmd_trace.scheduling.stage_costs import StageCosts, by_letter, stage_costs, stage_ranks
from mpmd_trace.scheduling.transfers import Link, Links, Traffic, Value, crossings

if TYPE_CHECKING:
    from mpmd_trace.api.lowered import Lowered
    from mpmd_trace.api.partitioned import PartitionedProgram

#: The seconds of a unit of time.
SECONDS = {"ms": 1e-3}


@dataclasses.dataclass(frozen=True)
class LayerValues:
    """The values of a program whose actions name layers instead of stages.

    `static`: the bytes that a device holds beside activations and scratch memory, for each layer; `cuts`: the
    bytes that cross behind each layer but the last, forward and back.
    """

    meshes: tuple[str, ...]
    values: tuple[Value, ...]
    static: tuple[Profile, ...]
    cuts: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A name of the program: what one microbatch of it costs, and the bytes it holds on a device.

    `activations` are kept from the forward to the backward of a microbatch, `static` always.  `sends` and
    `receives` are the bytes that a microbatch would move over a cut behind it, in its forward and back.
    """

    name: str
    forward: float
    backward: float
    activations: float
    static: float
    sends: float = 0.0
    receives: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Division:
    """A division into stages: their costs and names, and the bytes each holds."""

    assignment: Literal["as assigned", "balanced"] = "as assigned"
    #: What stages cost, and what they send to each other.
    stages: StageCosts
    names: tuple[tuple[str, ...], ...]
    activations: tuple[float, ...]
    #: What each stage holds beside activations.
    static: tuple[Profile, ...]
    #: What each stage reads that is gathered or cast once per step; `static` has it, if the program keeps it so long.
    copies: tuple[Copies, ...]

    @property
    def mesh_of(self) -> tuple[int, ...]:
        return self.stages.mesh_of

    @property
    def microbatches(self) -> int:
        return self.stages.microbatches

    def places(self, meshes: Sequence[str]) -> dict[str, Assignment]:
        """Return the mesh of each name, with its stage where meshes have several."""
        several = len(self.mesh_of) > len(set(self.mesh_of))
        return {
            name: Assignment(meshes[mesh], stage if several else None)
            for stage, (mesh, names) in enumerate(zip(self.mesh_of, self.names, strict=True))
            for name in names
        }

    def name_to_mesh(self, meshes: Sequence[str]) -> dict[str, str]:
        """Return the places as `make_config` takes them."""
        return {name: str(place) for name, place in self.places(meshes).items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study(Division):
    """The division that a compiled program has, and what else is known about the program.

    Times are in `unit`, bytes are those of one device.
    """

    unit: str
    meshes: tuple[str, ...]
    #: The part of `static` that is scratch memory.
    scratch: tuple[Profile, ...]
    layers: tuple[Layer, ...]
    #: The part of a backward that is input gradient, where there is one.
    input_share: float
    #: Of each mesh: what it does once a step (accumulation apart from microbatches, optimizer).
    once: tuple[float, ...]
    #: What moves between meshes besides, before the first and after the last microbatch.
    before: Mapping[tuple[str, str], Traffic]
    rest: Mapping[tuple[str, str], Traffic]
    #: What transfers take; None where work is not in seconds, and nothing was said.
    links: Links | None
    #: The values between the layers, or why they are not known.
    layer_values: LayerValues | str
    #: What a step took, in the median, where it was measured.
    measured_step: float | None = None
    #: For each mesh those that have its devices, itself among them.
    sharing: tuple[tuple[int, ...], ...] = ()

    def on_devices(self, each: Sequence[float]) -> tuple[float, ...]:
        """For each mesh the sum of what is given, over all meshes that share its devices."""
        return tuple(sum(each[m] for m in meshes) for meshes in self.sharing) if self.sharing else tuple(each)

    def besides(self, starts: Mapping[str, float], spare: Mapping[str, float]) -> float:
        """Return how much longer a step takes because of what moves besides.

        `starts`: when each mesh has work; `spare`: how long before the others it has done its last microbatch.

        In the background, arguments travel while a mesh still waits for its first microbatch, and the rest leaves
        while others still work.  Otherwise all of it counts, on the busiest mesh.
        """
        if self.links is None:
            return 0.0
        early, late = ({k: self._time(k, t) for k, t in kind.items()} for kind in (self.before, self.rest))
        if self.links.transfers in ("async", "in-order"):
            waits = [t - starts.get(target, 0.0) for (_, target), t in early.items()]
            later = [t - spare.get(source, 0.0) for (source, _), t in late.items()]
            return max([0.0, *waits]) + max([0.0, *later])
        busy: dict[str, float] = {}
        for kind in (early, late):
            for (source, target), time in kind.items():
                for mesh in (source,) if self.links.transfers == "exposed" else (source, target):
                    busy[mesh] = busy.get(mesh, 0.0) + time
        return max(busy.values(), default=0.0)

    def _time(self, link: tuple[str, str], traffic: Traffic) -> float:
        assert self.links is not None
        return self.links.between(*link).seconds(traffic.bytes, traffic.count) / SECONDS[self.unit]


# What the program costs.


def check_plannable(lowered: Lowered) -> None:
    """Raise `MpmdError` for a program that no stages can be made of, before it is compiled."""
    where = f" (make_config at {lowered.config.where})" if lowered.config.where else ""
    if len(lowered.config.topology) < 2:
        raise MpmdError(
            f"the topology has one mesh, so there is nothing to divide{where}; give it a mesh for each stage"
        )
    if not lowered.config.assignments:
        raise MpmdError(
            "the program has no named computations, so there is nothing to divide into stages"
            f"{where}. Name its layers, with mpmd_trace.named_computation(fn, name=...) or "
            "mpmd_trace.equinox.name_layers, and give each name a mesh in name_to_mesh_assignment"
        )


def study(
    lowered: PartitionedProgram,
    program: CountedProgram,
    actions: FragmentActions,
    *,
    measured: Sequence[Timeline] = (),
    steps: Sequence[float] = (),
    flops_per_second: float | None = None,
    bytes_per_second: float | None = None,
    links: Links | None = None,
    collectives: Link | None = None,
    hiding: Hiding = MappingProxyType({}),
    overlap: Overlap | None = None,
) -> Study:
    """Return the costs of a step that was compiled to a program, or estimated (`lowered.estimated`).

    A program costs what it was measured to take: the median, in ms (`steps` are the seconds of whole steps).
    Without measurements it costs what XLA counts: operations over the device's speed or bytes over its memory's,
    whichever is longer, in ms; or millions of operations when no speed is given.  `links`: what transfers take,
    which needs times.  `collectives`: what it takes a device to send to others of its mesh, which measured times have
    already; `hiding`: what XLA hides of them.  `overlap`: how the program makes one program of fragments of several
    microbatches (`make_config(overlap=...)`).

    Raises `MpmdError` when the program has no numbered microbatches, or one name only.
    """
    imported = lowered.imported()
    counted = stage_costs(imported)
    topology = imported.main.topology
    assert topology is not None
    if counted is None:
        raise MpmdError(
            "there is nothing to schedule: the program has no numbered microbatches, so one mesh works at a "
            "time. Call what it does for each of them with mpmd_trace.call(fn, call_counter=i), or in "
            "mpmd_trace.enumerated_for"
        )
    meshes = schedulable_meshes(topology)
    plan = program.plan
    cost, unit = program_costs(program, measured, flops_per_second, bytes_per_second)
    rank = stage_ranks(imported)
    stages, mesh_of = len(counted.mesh_of), counted.mesh_of
    runs = run_actions(plan, actions)
    of_stages = [(rank[a.stage], a.kind, run.program) for run, a in runs if a.kind != "O" and a.stage in rank]
    once = dict.fromkeys(plan.meshes, 0.0)
    for run, action in runs:
        if action.kind == "O" or action.stage not in rank:
            once[run.mesh] += cost[run.program]
    visits = [max(len(v), 1) for v in counted.visits]
    pairs = list(zip(counted.input_grad, counted.weight_grad, strict=True))
    shares = [_share(i, i + w, s) for s, (i, w) in enumerate(pairs)]
    times = by_letter(((stage, kind, cost[p]) for stage, kind, p in of_stages), visits, shares)
    apart, together = (
        by_letter(((stage, kind, sent[p][kind == "F"]) for stage, kind, p in of_stages), visits, shares)
        for sent in _sending(program, None if measured else collectives, hiding)
    )
    is_sending = any(map(any, apart.values()))
    backward = [i + w for i, w in zip(times["I"], times["W"], strict=True)]
    values = values_of_plan(plan, actions)
    crossing = crossings(values, rank, [meshes[m] for m in mesh_of])
    scaled = dataclasses.replace(
        counted,
        forward=times["F"],
        input_grad=times["I"],
        weight_grad=times["W"],
        sends=crossing.sends,
        collectives=apart if is_sending else {},
        exposed=together if is_sending else {},
        overlap=overlap,
    )
    if links is not None:
        scaled = scaled.linked(links, meshes, SECONDS[unit])
    later = [pair for s, pair in enumerate(pairs) if s and mesh_of[s] != mesh_of[s - 1]]
    others, scratch = other_bytes(plan, actions, activation_slots(values, rank), *program.scratch)
    traced = parse(lowered.traced.mlir_text(debug_info=False))
    named = work_of_names(traced)
    names = _names(imported, rank, stages, named)
    between = _between(lowered, traced, names, named)
    held = activations(values, rank, visits)
    static = [tuple(v / mesh_of.count(m) for v in others[meshes[m]]) for m in mesh_of]
    return Study(
        unit=unit,
        meshes=tuple(meshes),
        stages=scaled,
        activations=tuple(held),
        static=tuple(static),
        scratch=tuple(scratch[meshes[m]] for m in mesh_of),
        layers=_layers(names, named, between, times["F"], backward, held, static, visits),
        names=names,
        input_share=_share(sum(i for i, _ in later), sum(i + w for i, w in later), 1),
        once=tuple(once[m] for m in meshes),
        before=crossing.before,
        rest=crossing.rest,
        links=links,
        layer_values=between,
        copies=copies_of_stages(
            plan,
            lowered.partitioned.module,
            runs,
            values,
            rank,
            stages,
            cost,
            ahead=keeps_barriers(lowered.traced.platform),
        ),
        measured_step=1000 * statistics.median(steps) if steps else None,
        sharing=tuple(tuple(meshes.index(o) for o in plan.sharing[m] if o in meshes) for m in meshes),
    )


_Sent = list[tuple[float, float]]


def _sending(program: CountedProgram, link: Link | None, hiding: Hiding) -> tuple[_Sent, _Sent]:
    """Return the milliseconds in which a device only sends in one run of each program, by itself and in a pair.

    They are given for it as a backward and as a forward, and 0 where they are unknown.
    """
    if link is None or not isinstance(program, LoadedProgram):
        nothing = [(0.0, 0.0)] * len(program.runtime.own_executables)
        return nothing, nothing
    apart, together = _Sent(), _Sent()
    for executable in program.runtime.own_executables:
        shares, usages = hiding.get(executable.spec.mesh, {}), collectives_of(executable.compiled).of
        sent = {kind: link.seconds(usage.bytes, usage.runs) / SECONDS["ms"] for kind, usage in usages.items()}
        alone = sum(time * (1 - usages[kind].hidden_share) for kind, time in sent.items())
        backward, forward = (
            sum(
                time * (1 - max(usages[kind].hidden_share, shares.get(kind, HiddenShare()).of(is_forward)[1]))
                for kind, time in sent.items()
            )
            for is_forward in (False, True)
        )
        apart.append((alone, alone))
        together.append((backward, forward))
    return apart, together


def _share(part: float, whole: float, stage: int) -> float:
    """Return `part / whole`; where nothing was counted, half, and nothing in the first stage."""
    return part / whole if whole else 0.5 if stage else 0.0


def program_costs(
    program: CountedProgram,
    measured: Sequence[Timeline],
    flops_per_second: float | None,
    bytes_per_second: float | None,
) -> tuple[list[float], str]:
    """Return the cost of one run of each program of the plan, and the unit."""
    executables = program.runtime.own_executables
    if measured:
        times = times_of_programs(measured)
        return [statistics.median(times.get(e.spec.number, [0.0])) for e in executables], "ms"
    counted = [(e.cost.get("flops", 0.0), e.cost.get("bytes accessed", 0.0)) for e in executables]
    if flops_per_second is None and bytes_per_second is None:
        return [f / 1e6 for f, _ in counted], "Mflop"
    fast, wide = flops_per_second or math.inf, bytes_per_second or math.inf
    return [1000 * max(f / fast, b / wide) for f, b in counted], "ms"


_Flops = Mapping[str, tuple[float, float]]


def _names(imported: Module, rank: Mapping[int, int], stages: int, named: _Flops) -> tuple[tuple[str, ...], ...]:
    """Return the names of each stage, in the order of the program."""
    topology = imported.main.topology
    assert topology is not None
    number = {mesh: i for i, mesh in enumerate(topology.meshes)}  # which orders meshes by their use
    used: dict[str, int] = {}
    for op in imported.main.body:
        if isinstance(op, FragmentOp) and is_scheduling_unit(op):
            stage = op.stage if op.stage is not None and op.stage in rank else number[op.mesh]
            for origin in op.origin:
                used.setdefault(origin.name, rank[stage])
    return tuple(tuple(n for n in named if used.get(n) == s) for s in range(stages))


def _between(
    lowered: PartitionedProgram, traced: Module, names: Sequence[Sequence[str]], named: _Flops
) -> LayerValues | str:
    used = {name for own in names for name in own}
    ordered = [name for name in named if name in used]
    if len(ordered) < 2:
        known = f", '{ordered[0]}'" if ordered else ""
        raise MpmdError(
            f"the program has one stage: there is one named computation{known}, and it cannot be divided. Name "
            "its layers, with mpmd_trace.named_computation(fn, name=...) or mpmd_trace.equinox.name_layers"
        )
    try:
        return values_of_layers(lowered, traced, ordered)
    except MpmdError as error:
        return str(error).split("\n", 1)[0]


def values_of_layers(lowered: PartitionedProgram, traced: Module, names: Sequence[str]) -> LayerValues:
    """Return the values between the named parts of a program, which are given in its order.

    Names, operations without a name and transfers are placed by the compiler's own passes, with every name on a mesh of
    its own: what crosses between two layers is what would be sent if a cut were there.  Nothing is compiled by XLA.
    Raises `MpmdError` where it cannot be divided like this.
    """
    config = lowered.config
    shapes = {tuple(mesh.shape.items()) for mesh in config.topology.values()}
    if len(shapes) > 1:
        raise MpmdError("the meshes have different axes")
    held = [n for n in names if config.assignments[n].memory_kind not in (None, "device")]
    if held:
        raise MpmdError(f"'{held[0]}' is assigned to a memory of its mesh")
    request = lowered.request
    meshes = [f"layer{i}" for i in range(len(names))]
    axes = next(iter(request.topology.meshes.values()))
    options = request.with_options(
        placement="cut", mpmd_infer_transfers=True, mpmd_split_bwd_fragments=False, **dict.fromkeys(OUR_OPTIONS, False)
    ).options
    request = PartitionRequest(
        request.func_name,
        TopologyAttr.get(dict.fromkeys(meshes, axes)),
        {name: Assignment(mesh) for name, mesh in zip(names, meshes, strict=True)},
        (None,) * len(request.inputs),
        (None,) * len(request.outputs),
        request.donated,
        options,
    )
    actions = FragmentActions()
    plan = make_plan(partition_as(traced, request, hooks=[actions]).module)
    values = values_of_plan(plan, actions)
    layers = {i: i for i in range(len(names))}
    seen: list[set[int]] = [set() for _ in names]
    for value in values:
        for _, action in value.uses:
            if action.kind == "F":
                seen[action.stage].add(action.microbatch)
    others, _ = other_bytes(plan, actions, activation_slots(values, layers))
    cuts = cut_bytes(values, len(names), [len(s) for s in seen])
    return LayerValues(tuple(meshes), tuple(values), tuple(others[m] for m in meshes), tuple(cuts))


def _layers(
    names: Sequence[Sequence[str]],
    named: _Flops,
    between: LayerValues | str,
    forward: Sequence[float],
    backward: Sequence[float],
    held: Sequence[float],
    static: Sequence[Profile],
    visits: Sequence[int],
) -> tuple[Layer, ...]:
    """Return all names in the order of the program, each with its part of what its stage costs."""
    stage_of = {name: s for s, own in enumerate(names) for name in own}
    ordered = [name for name in named if name in stage_of]
    stages = [stage_of[name] for name in ordered]
    if isinstance(between, LayerValues):
        own_held = activations(between.values, {i: i for i in range(len(ordered))}, [visits[s] for s in stages])
        own_static = [max(profile) for profile in between.static]
        cuts = [*between.cuts, (0.0, 0.0)]
    else:
        own_held = [held[s] / len(names[s]) for s in stages]
        own_static = [max(static[s]) / len(names[s]) for s in stages]
        cuts = [(0.0, 0.0)] * len(ordered)
    layers = []
    for name, stage, kept, always, cut in zip(ordered, stages, own_held, own_static, cuts, strict=True):
        own = names[stage]
        parts = [named[name][k] / total if (total := sum(named[n][k] for n in own)) else 1 / len(own) for k in (0, 1)]
        layers.append(Layer(name, forward[stage] * parts[0], backward[stage] * parts[1], kept, always, *cut))
    return tuple(layers)
