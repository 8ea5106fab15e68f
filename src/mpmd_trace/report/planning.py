"""Which stages, microbatches and schedule a program should have, from the costs of its own parts."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..auto_schedule import Choice, StageCosts, rank_schedules, stage_costs
from ..backend.timeline import Timeline
from ..costs import flops
from ..ir.diagnostics import MpmdError
from ..ir.ops import FragmentOp, Module, NamedComputationOp
from ..schedules import Placement, partition_layers, simulate
from .timeline import FragmentActions, run_actions

if TYPE_CHECKING:
    from ..stages import Compiled

__all__ = ["Layer", "Option", "Study", "options_of", "study"]

#: How much of an activation the weight gradient keeps; 1 is the pessimistic count.
WEIGHT_FRACTION = 1.0
#: How much faster other stages must be to come before the program's own.
WORTH_MOVING = 0.01
#: More chunks per mesh than this are not tried.
MOST_CHUNKS = 4


@dataclasses.dataclass(frozen=True)
class Layer:
    """A name of the program: what one microbatch of it costs, and the bytes it holds on a device.

    `activations` are kept from the forward to the backward of a microbatch, `static` always.
    """

    name: str
    forward: float
    backward: float
    activations: float
    static: float


@dataclasses.dataclass(frozen=True)
class Study:
    """What is known about a compiled program.  Times are in `unit`."""

    unit: str
    meshes: tuple[str, ...]
    #: As the program is assigned, stage by stage.
    stages: StageCosts
    activations: tuple[float, ...]
    static: tuple[float, ...]
    layers: tuple[Layer, ...]
    #: The names on each stage.
    names: tuple[tuple[str, ...], ...]
    #: The part of a backward that is input gradient, where there is one.
    input_share: float
    #: Of each mesh: what it does once a step (accumulation apart from microbatches, optimiser).
    once: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Option:
    """A way to run the program: its stages, microbatches and schedule, and what to expect of it."""

    assignment: Literal["as assigned", "balanced"]
    names: tuple[tuple[str, ...], ...]
    mesh_of: tuple[int, ...]
    microbatches: int
    choice: Choice
    step: float
    peak_bytes: tuple[float, ...]
    fits: bool

    def as_dict(self, meshes: Sequence[str]) -> dict[str, Any]:
        """Plain data, for JSON."""
        result = self.choice.result
        return {
            "schedule": self.choice.schedule.name,
            "assignment": self.assignment,
            "stages": len(self.mesh_of),
            "microbatches": self.microbatches,
            "step": self.step,
            "bubble_rate_makespan": round(result.bubble_rate_makespan, 6),
            "bubble_rate_span": round(result.bubble_rate_span, 6),
            "peak_activations": list(result.peak_activations),
            "peak_bytes": dict(zip(meshes, map(round, self.peak_bytes), strict=True)),
            "fits": self.fits,
            "in_order": self.choice.in_order,
            "name_to_mesh_assignment": self.name_to_mesh(meshes),
        }

    def name_to_mesh(self, meshes: Sequence[str]) -> dict[str, str]:
        """As `make_config` takes it: the mesh of each name, with its stage where meshes have several."""
        several = len(self.mesh_of) > len(set(self.mesh_of))
        return {
            name: f"{meshes[mesh]}/{stage}" if several else meshes[mesh]
            for stage, (mesh, names) in enumerate(zip(self.mesh_of, self.names, strict=True))
            for name in names
        }


# What the program costs.


def study(
    compiled: Compiled,
    actions: FragmentActions,
    *,
    measured: Sequence[Timeline] = (),
    flops_per_second: float | None = None,
    bytes_per_second: float | None = None,
) -> Study:
    """The costs of a compiled training step.

    A program costs what it was measured to take (the median, in ms).  Without measurements it costs what XLA
    counts: operations over the device's speed or bytes over its memory's, whichever is longer, in ms; or
    millions of operations when no speed is given.

    Raises `MpmdError` when the program has no backward passes over microbatches.
    """
    from ..passes.mesh_order import schedulable_meshes

    imported = compiled.lowered.imported()
    counted = stage_costs(imported)
    topology = imported.main.topology
    assert topology is not None
    if counted is None:
        raise MpmdError(
            "there is nothing to schedule: the program has no backward pass over numbered microbatches. Call "
            "its gradient with mpmd_trace.call(fn, call_counter=i), or in mpmd_trace.enumerated_for"
        )
    meshes = schedulable_meshes(topology)
    cost, unit = _program_costs(compiled, measured, flops_per_second, bytes_per_second)
    stages = _stage_numbers(imported)
    rank = {stage: i for i, stage in enumerate(stages)}
    sums = {kind: [0.0] * len(stages) for kind in "FB"}
    once = dict.fromkeys(compiled.program.plan.meshes, 0.0)
    for run, action in run_actions(compiled.program.plan, actions):
        time = cost[run.program]
        if action.kind == "O" or action.stage not in rank:
            once[run.mesh] += time
        else:
            sums["F" if action.kind == "F" else "B"][rank[action.stage]] += time
    visits = [max(len(v), 1) for v in counted.visits]
    forward, backward = ([t / v for t, v in zip(sums[k], visits, strict=True)] for k in "FB")
    shares = [_share(i, i + w, s) for s, (i, w) in enumerate(_pairs(counted))]
    scaled = dataclasses.replace(
        counted,
        forward=tuple(forward),
        input_grad=tuple(b * s for b, s in zip(backward, shares, strict=True)),
        weight_grad=tuple(b * (1 - s) for b, s in zip(backward, shares, strict=True)),
    )
    mesh_of = counted.mesh_of
    later = [pair for s, pair in enumerate(_pairs(counted)) if s and mesh_of[s] != mesh_of[s - 1]]
    activations = [held / v for held, v in zip(_activations(compiled, actions, rank), visits, strict=True)]
    static = _static(compiled, meshes, counted.mesh_of)
    names, layers = _layers(compiled, imported, stages, forward, backward, activations, static)
    return Study(
        unit=unit,
        meshes=tuple(meshes),
        stages=scaled,
        activations=tuple(activations),
        static=tuple(static),
        layers=layers,
        names=names,
        input_share=_share(sum(i for i, _ in later), sum(i + w for i, w in later), 1),
        once=tuple(once[m] for m in meshes),
    )


def _pairs(costs: StageCosts) -> list[tuple[float, float]]:
    return list(zip(costs.input_grad, costs.weight_grad, strict=True))


def _share(part: float, whole: float, stage: int) -> float:
    """`part / whole`; where nothing was counted, half, and nothing in the first stage."""
    return part / whole if whole else 0.5 if stage else 0.0


def _program_costs(
    compiled: Compiled,
    measured: Sequence[Timeline],
    flops_per_second: float | None,
    bytes_per_second: float | None,
) -> tuple[list[float], str]:
    """The cost of one run of each program of the plan, and the unit."""
    executables = compiled.program.runtime.executables
    if measured:
        times: dict[int, list[float]] = {}
        for entry in (e for one in measured for e in one.entries if e.program is not None):
            times.setdefault(int(entry.program or 0), []).append(1000 * (entry.end - entry.start))
        return [statistics.median(times.get(e.spec.number, [0.0])) for e in executables], "ms"
    counted = [(e.cost.get("flops", 0.0), e.cost.get("bytes accessed", 0.0)) for e in executables]
    if flops_per_second is None and bytes_per_second is None:
        return [f / 1e6 for f, _ in counted], "Mflop"
    fast, wide = flops_per_second or math.inf, bytes_per_second or math.inf
    return [1000 * max(f / fast, b / wide) for f, b in counted], "ms"


def _stage_numbers(imported: Module) -> list[int]:
    """The stage of each rank, as fragments have them: their own number or that of their mesh."""
    from ..passes.fragment_info import is_scheduling_unit
    from ..passes.mesh_order import schedulable_meshes

    topology = imported.main.topology
    assert topology is not None
    units = [op for op in imported.main.body if isinstance(op, FragmentOp) and is_scheduling_unit(op)]
    if all(op.stage is not None for op in units):
        return sorted({int(op.stage or 0) for op in units})
    return [list(topology.meshes).index(m) for m in schedulable_meshes(topology)]


def _activations(compiled: Compiled, actions: FragmentActions, rank: Mapping[int, int]) -> list[float]:
    """Of each stage, the bytes that all its forwards leave for its backwards, on one device."""
    plan = compiled.program.plan
    seen: dict[tuple[int, int], set[int]] = {}
    found = [0.0] * len(rank)
    arguments = set(plan.arguments)
    for run, action in run_actions(plan, actions):
        if action.stage not in rank or action.kind == "O":
            continue
        alive = seen.setdefault((action.stage, action.microbatch), set())
        if action.kind == "F":
            alive.update({*run.inputs, *run.outputs} - arguments)
            continue
        for slot in alive.intersection(run.inputs):
            found[rank[action.stage]] += plan.slots[slot].bytes
            alive.discard(slot)
    return found


def _static(compiled: Compiled, meshes: Sequence[str], mesh_of: Sequence[int]) -> list[float]:
    """Arguments and results of each mesh, in equal parts for its stages."""
    memory = compiled.memory_analysis()
    held = [float(memory[m].arguments + memory[m].results) for m in meshes]
    return [held[m] / mesh_of.count(m) for m in mesh_of]


def _layers(
    compiled: Compiled,
    imported: Module,
    stages: Sequence[int],
    forward: Sequence[float],
    backward: Sequence[float],
    activations: Sequence[float],
    static: Sequence[float],
) -> tuple[tuple[tuple[str, ...], ...], tuple[Layer, ...]]:
    """The names of each stage, and all of them in the order of the program with their part of its cost."""
    from ..passes.fragment_info import is_scheduling_unit
    from ..text import parse

    traced = parse(compiled.lowered.traced.mlir_text(debug_info=False))
    counted = _named_flops(traced)
    topology = list(compiled.lowered.config.topology)
    rank = {stage: i for i, stage in enumerate(stages)}
    used: dict[str, int] = {}
    for op in imported.main.body:
        if isinstance(op, FragmentOp) and is_scheduling_unit(op):
            stage = op.stage if op.stage in rank else topology.index(op.mesh)
            for origin in op.origin:
                used.setdefault(origin.name, rank[stage])
    ordered = [name for name in counted if name in used]
    names = tuple(tuple(n for n in ordered if used[n] == s) for s in range(len(stages)))
    layers = []
    for name in ordered:
        stage = used[name]
        own = names[stage]
        parts = [
            counted[name][k] / total if (total := sum(counted[n][k] for n in own)) else 1 / len(own)
            for k in (0, 1)
        ]
        layers.append(
            Layer(
                name,
                forward[stage] * parts[0],
                backward[stage] * parts[1],
                activations[stage] / len(own),
                static[stage] / len(own),
            )
        )
    return names, tuple(layers)


def _named_flops(module: Module) -> dict[str, tuple[float, float]]:
    """Operations of each name forward and backward, in the order of the program; every function once."""
    functions = {f.sym_name: f for f in module.functions}
    found: dict[str, tuple[float, float]] = {}
    done: set[str] = set()

    def visit(region: Any) -> None:
        for op in (o for block in region.blocks for o in block):
            if isinstance(op, NamedComputationOp):
                fwd, bwd = found.get(op.origin.name, (0.0, 0.0))
                work = flops(op.body, module)
                back = op.origin.transpose_count > 0
                found[op.origin.name] = (fwd, bwd + work) if back else (fwd + work, bwd)
                continue
            callee = op.props.get("callee")
            name = callee.text.removeprefix("@").strip('"') if callee is not None else ""
            if name in functions and name not in done:
                done.add(name)
                visit(functions[name].regions[0])
            for inner in op.regions:
                visit(inner)

    visit(module.main.regions[0])
    return found


# What could be done.


def options_of(
    study: Study,
    *,
    microbatches: Sequence[int] = (),
    memory_limit: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Option]:
    """Every schedule on the program's own stages, and on stages balanced by cost; best first.

    `microbatches`: the numbers to try, with the costs of a microbatch in proportion to its size; that of the
    program by default.  `memory_limit`: bytes of a device.  Schedules that run the backwards of a stage in
    another order than the microbatches, which the data flow of most programs forbids, come last.
    """
    counts = list(dict.fromkeys(microbatches)) or [study.stages.microbatches]
    own: _Variant = ("as assigned", study.stages, study.names, study.activations, study.static)
    variants = [own, *_balanced(study)]
    found: list[Option] = []
    for done, (kind, stages, names, activations, static) in enumerate(variants):
        for count in counts:
            ratio = study.stages.microbatches / count
            changed = dataclasses.replace(stages.scaled(ratio), microbatches=count)
            if count != study.stages.microbatches:
                changed = dataclasses.replace(changed, visits=())
            held = [a * ratio for a in activations]
            for choice in rank_schedules(changed, _limit(changed, held, static, memory_limit)):
                peaks = simulate(
                    choice.schedule,
                    weight_fraction=WEIGHT_FRACTION,
                    activation=tuple(held),
                    static=tuple(static),
                ).peak_memory
                fits = memory_limit is None or max(peaks) <= memory_limit
                step = choice.makespan + max(study.once, default=0.0)
                found.append(
                    Option(kind, names, changed.mesh_of, count, choice, step, tuple(peaks), fits)
                )
        progress(done + 1, len(variants))
    found.sort(key=lambda o: (not o.choice.in_order, not o.fits, round(o.step, 9), max(o.peak_bytes)))
    staying = next((o for o in found if o.assignment == "as assigned" and o.choice.in_order and o.fits), None)
    if staying is not None and staying.step * (1 - WORTH_MOVING) <= found[0].step:
        found.remove(staying)
        found.insert(0, staying)
    return found


def _limit(
    stages: StageCosts, activations: Sequence[float], static: Sequence[float], limit: float | None
) -> float | None:
    """How many microbatches of activations fit on the mesh with the least room."""
    if limit is None:
        return None
    rooms = []
    for mesh in range(stages.meshes):
        own = [s for s, m in enumerate(stages.mesh_of) if m == mesh]
        held = sum(activations[s] for s in own)
        if held:
            rooms.append((limit - sum(static[s] for s in own)) / held)
    return max(min(rooms, default=math.inf), 1e-9) if rooms else None


_Variant = tuple[
    Literal["as assigned", "balanced"],
    StageCosts,
    tuple[tuple[str, ...], ...],
    tuple[float, ...],
    tuple[float, ...],
]


def _balanced(study: Study) -> Iterator[_Variant]:
    """Stages of about equal cost, in a loop and in a V, that differ from the program's own."""
    layers, meshes = study.layers, len(study.meshes)
    costs = [layer.forward + layer.backward for layer in layers]
    for chunks in range(1, min(MOST_CHUNKS, len(layers) // max(meshes, 1)) + 1):
        split = partition_layers(costs, meshes * chunks)
        groups = [[layers[i] for i in stage] for stage in split.stages]
        placements = [Placement.loop(meshes, chunks)] + ([Placement.v(meshes)] if chunks == 2 else [])
        for placement in placements:
            names = tuple(tuple(layer.name for layer in group) for group in groups)
            if (names, placement.mesh_of) == (study.names, study.stages.mesh_of):
                continue
            backward = [sum(layer.backward for layer in group) for group in groups]
            share = [_input_share(study.input_share, placement.mesh_of, s) for s in range(len(groups))]
            yield (
                "balanced",
                StageCosts(
                    meshes=meshes,
                    microbatches=study.stages.microbatches,
                    mesh_of=placement.mesh_of,
                    forward=tuple(sum(layer.forward for layer in group) for group in groups),
                    input_grad=tuple(b * s for b, s in zip(backward, share, strict=True)),
                    weight_grad=tuple(b * (1 - s) for b, s in zip(backward, share, strict=True)),
                ),
                names,
                tuple(sum(layer.activations for layer in group) for group in groups),
                tuple(sum(layer.static for layer in group) for group in groups),
            )


def _input_share(usual: float, mesh_of: Sequence[int], stage: int) -> float:
    """A first stage has no input gradient; one whose gradient stays on its mesh cannot be split."""
    if stage == 0:
        return 0.0
    return 1.0 if mesh_of[stage] == mesh_of[stage - 1] else usual
