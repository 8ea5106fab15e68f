"""Planning of stages, microbatches and the schedule of a program: every possibility, simulated."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mpmd_trace.api.lowered import Lowered
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.passes.hoisting.select_hoists import Gather
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.report.plan_copies import WORDS, Copies, cost_of
from mpmd_trace.report.plan_costs import SECONDS, Division, Layer, LayerValues, Study
from mpmd_trace.report.plan_values import activations, at_fraction
from mpmd_trace.schedules import Action, Cut, Placement, Schedule, ScheduleError, Step, partition_layers
from mpmd_trace.scheduling.auto_schedule import Choice, rank_schedules, replayed
from mpmd_trace.scheduling.resolve_schedule import resolve_schedule
from mpmd_trace.scheduling.stage_costs import stage_ranks
from mpmd_trace.scheduling.transfers import Links, crossings, fragment_action

#: How much of an activation the weight gradient keeps; 1 is the pessimistic count.
WEIGHT_FRACTION = 1.0
#: How much faster other stages must be to come before the program's own.
WORTH_MOVING = 0.01
#: More chunks per mesh than this are not tried.
MOST_CHUNKS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option(Division):
    """A way to run the program: its stages, microbatches and schedule, and what to expect of it."""

    choice: Choice
    step: float
    peak_bytes: tuple[float, ...]
    fits: bool
    #: How long gathered copies are kept.
    gather: Gather
    limit: float | None
    #: After the passes were run for it: "" when its order is as promised, otherwise what is not.
    checked: str | None = None

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
            "gather": self.gather,
            "fits": self.fits,
            "checked": self.checked,
            "in_order": self.choice.in_order,
            "name_to_mesh_assignment": self.name_to_mesh(meshes),
        }


def options_of(
    study: Study,
    *,
    microbatches: Sequence[int] = (),
    memory_limit: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Option]:
    """Return every schedule on the program's own stages, and on stages balanced by cost; best first.

    `microbatches`: the numbers to try, with the costs of a microbatch in proportion to its size; that of the
    program by default.  `memory_limit`: bytes of a device.  Schedules that run the backwards of a stage in
    another order than the microbatches, which the data flow of most programs forbids, come last.
    """
    counts = list(dict.fromkeys(microbatches)) or [study.microbatches]
    divisions: list[Division] = [study, *_balanced(study, memory_limit)]
    options: list[Option] = []
    for done, division in enumerate(divisions, 1):
        for count in counts:
            options += _options(study, division, count, memory_limit)
        progress(done, len(divisions))
    return ranked(options)


def ranked(options: Sequence[Option]) -> list[Option]:
    """Best first; the program's own stages where others are hardly better."""
    result = sorted(options, key=lambda o: (not o.choice.in_order, not o.fits, round(o.step, 9), max(o.peak_bytes)))
    staying = next((o for o in result if o.assignment == "as assigned" and o.choice.in_order and o.fits), None)
    if staying is not None and staying.step * (1 - WORTH_MOVING) <= result[0].step:
        result.remove(staying)
        result.insert(0, staying)
    return result


def option_of(division: Division, choice: Choice, study: Study, limit: float | None) -> Option:
    """Return what to expect of the division with the orders of the choice; `limit`: bytes of a device."""
    own = {field.name: getattr(division, field.name) for field in dataclasses.fields(Division)}
    gather, peaks = _gather(division, choice.schedule, limit, study)
    orders, copies = choice.schedule, division.copies
    again = cost_of(gather, orders, copies).time - cost_of("step", orders, copies).time
    busy = [choice.unit * time for time in choice.result.busy]
    work = max(choice.makespan, *study.on_devices(busy))
    step = work + max(study.on_devices(study.once), default=0.0) + again + study.besides(*_idle(study, choice))
    fits = limit is None or max(peaks) <= limit
    return Option(**own, choice=choice, step=step, peak_bytes=peaks, fits=fits, gather=gather, limit=limit)


def _gather(
    division: Division, schedule: Schedule, limit: float | None, study: Study
) -> tuple[Gather, tuple[float, ...]]:
    """Return how long copies are kept, as long as there is memory for it, and the peak of each mesh then."""
    result: tuple[Gather, tuple[float, ...]] | None = None
    for gather in WORDS if any(one.bytes for one in division.copies) else WORDS[:1]:
        peaks = study.on_devices(_peaks(division, schedule, gather))
        if limit is None or max(peaks) <= limit:
            return gather, peaks
        if result is None or max(peaks) < max(result[1]):
            result = gather, peaks
    assert result is not None
    return result


def _copies(study: Study, names: Sequence[Sequence[str]]) -> tuple[Copies, ...]:
    """Return what each of these stages reads of copies; layers of a stage read equal parts."""
    layer: dict[str, Copies] = {}
    for own, copy in zip(study.names, study.copies, strict=False):
        layer.update({name: copy.part(1 / len(own)) for name in own})
    return tuple(sum((layer.get(name, Copies()) for name in own), Copies()) for own in names)


def _options(study: Study, division: Division, count: int, memory_limit: float | None) -> Iterator[Option]:
    ratio = study.microbatches / count
    stages = dataclasses.replace(division.stages.resized(ratio), microbatches=count)
    if count != study.microbatches:
        stages = dataclasses.replace(stages, visits=())
    held = tuple(a * ratio for a in division.activations)
    division = dataclasses.replace(division, stages=stages, activations=held)
    room = None if memory_limit is None or stages.forward_only else _room(division, memory_limit)
    for choice in rank_schedules(stages, room):
        yield option_of(division, choice, study, memory_limit)


def _idle(study: Study, choice: Choice) -> tuple[dict[str, float], dict[str, float]]:
    """Return when each mesh begins its first microbatch, and how long it has nothing to do after its last one."""
    result = choice.result
    first, starts, ends = result.program.first, result.starts, result.ends
    rows = [(mesh, a, b) for mesh, a, b in zip(study.meshes, first, first[1:], strict=False) if b > a]
    last = {mesh: max(ends[a:b]) for mesh, a, b in rows}
    end = max(last.values(), default=0.0)
    return (
        {mesh: starts[a] * choice.unit for mesh, a, _ in rows},
        {mesh: (end - last[mesh]) * choice.unit for mesh, _, _ in rows},
    )


def _peaks(division: Division, schedule: Schedule, gather: Gather) -> tuple[float, ...]:
    """Return the most bytes that a device of each mesh holds: activations, and the rest at the time.

    The static bytes have all copies, of which those go that `gather` does not keep.
    """
    held, static, copies = division.activations, division.static, division.copies
    peaks = []
    for order, stages in zip(schedule.orders, schedule.placement.stages_on, strict=True):
        done = dict.fromkeys(stages, 0)
        all_copies = sum(copies[s].bytes for s in stages)
        kept = {active: sum(copies[s].held(gather, s == active) for s in stages) for active in stages}
        now = sum(static[s][0] for s in stages) - all_copies
        peak = now + min(kept.values(), default=0.0)
        taken = 0.0
        for action in (part for step in order for part in step.parts):
            stage = action.stage
            if action.kind == "F" and not schedule.forward_only:
                taken += held[stage]
            elif action.kind in "BW":
                whole = len(schedule.microbatches_of(stage))
                now -= at_fraction(static[stage], done[stage], whole)
                done[stage] += 1
                now += at_fraction(static[stage], done[stage], whole)
            peak = max(peak, now + taken + kept[stage])
            if action.kind in "BIW":
                part = {"B": 1.0, "I": 1.0 - WEIGHT_FRACTION, "W": WEIGHT_FRACTION}[action.kind]
                taken -= held[stage] * part
        peaks.append(peak)
    return tuple(peaks)


def _room(division: Division, limit: float) -> tuple[float, ...]:
    """Return how many microbatches of activations fit on each mesh."""
    rooms = []
    for mesh in range(division.stages.meshes):
        own = [s for s, m in enumerate(division.mesh_of) if m == mesh]
        held = sum(division.activations[s] for s in own)
        free = limit - sum(max(division.static[s]) - division.copies[s].bytes for s in own)
        rooms.append(max(free / held, 1e-9) if held else math.inf)
    return tuple(rooms)


def layer_cuts(study: Study) -> list[Cut]:
    """Return what a cut behind each layer but the last costs, in the unit of the study, over the usual link."""
    unit = SECONDS.get(study.unit, 1.0)
    links = study.links or Links()
    link, mode = links.default, links.transfers
    cuts = []
    for layer in study.layers[:-1]:
        there, back = (link.seconds(b, 1 if b else 0) / unit for b in (layer.sends, layer.receives))
        if mode in ("async", "in-order"):  # latency leaves the link free
            widest = max(layer.sends, layer.receives)
            cuts.append(Cut(link=widest / link.bandwidth / unit if link.bandwidth else 0.0))
        elif mode == "exposed":
            cuts.append(Cut(there, back))
        else:
            cuts.append(Cut(there + back, there + back))
    return cuts


def _balanced(study: Study, memory_limit: float | None) -> Iterator[Division]:
    """Stages of about equal cost, in a loop and in a V, that differ from the program's own."""
    between = study.layer_values
    layers, meshes = study.layers, len(study.meshes)
    if not isinstance(between, LayerValues):
        return
    seen = {(study.names, study.mesh_of)}
    for chunks in range(1, min(MOST_CHUNKS, len(layers) // max(meshes, 1)) + 1):
        placements = [Placement.loop(meshes, chunks)] + ([Placement.v(meshes)] if chunks == 2 else [])
        for bounds in _divisions(study, meshes * chunks, memory_limit if chunks == 1 else None):
            groups = [layers[a:b] for a, b in bounds]
            names = tuple(tuple(layer.name for layer in group) for group in groups)
            for placement in placements:
                if (names, placement.mesh_of) not in seen:
                    seen.add((names, placement.mesh_of))
                    yield _division(study, between, groups, names, placement)


def _divisions(study: Study, stages: int, memory_limit: float | None) -> list[list[tuple[int, int]]]:
    """Return the first and last + 1 layer of each stage: balanced, and if that may not fit balanced where it fits."""
    costs = [layer.forward + layer.backward for layer in study.layers]
    cuts = layer_cuts(study)
    divisions = [partition_layers(costs, stages, cuts=cuts)]
    if memory_limit is not None:
        most = max((max(profile) for profile in study.scratch), default=0.0)
        with contextlib.suppress(ScheduleError):  # where none fits, perhaps one does with another schedule
            divisions.append(
                partition_layers(
                    costs,
                    stages,
                    max(memory_limit - most, 0.0),
                    layer_memory=[layer.static for layer in study.layers],
                    layer_activations=[layer.activations for layer in study.layers],
                    cuts=cuts,
                )
            )
    return [[(r.start, r.stop) for r in one.stages] for one in divisions]


def _in_proportion(
    known: Mapping[str, Sequence[float]], groups: Sequence[Sequence[Layer]]
) -> dict[str, tuple[float, ...]]:
    """Return the collectives of other stages: no program of them was compiled, so they grow with the work."""
    result = {}
    for kind, own in known.items():
        each = [sum(layer.forward if kind == "F" else layer.backward for layer in group) for group in groups]
        whole = sum(each) or 1.0
        result[kind] = tuple(sum(own) * one / whole for one in each)
    return result


def _division(
    study: Study,
    between: LayerValues,
    groups: Sequence[Sequence[Layer]],
    names: tuple[tuple[str, ...], ...],
    placement: Placement,
) -> Division:
    stage_of = dict(enumerate(s for s, group in enumerate(groups) for _ in group))
    mesh_of = [study.meshes[m] for m in placement.mesh_of]
    renamed = {mesh: mesh_of[stage_of[i]] for i, mesh in enumerate(between.meshes)}
    sent = crossings(between.values, stage_of, mesh_of, renamed)
    backward = [sum(layer.backward for layer in group) for group in groups]
    split = [_input_share(study.input_share, placement.mesh_of, s) for s in range(len(groups))]
    stages = dataclasses.replace(
        study.stages,  # its links
        mesh_of=placement.mesh_of,
        forward=tuple(sum(layer.forward for layer in group) for group in groups),
        input_grad=tuple(b * s for b, s in zip(backward, split, strict=True)),
        weight_grad=tuple(b * (1 - s) for b, s in zip(backward, split, strict=True)),
        visits=(),
        sends=sent.sends,
        collectives=_in_proportion(study.stages.collectives, groups),
        exposed=_in_proportion(study.stages.exposed, groups),
    )
    held = activations(between.values, stage_of, [study.microbatches] * len(groups))
    copies = _copies(study, names)
    # No program of these stages was compiled: they get the scratch memory of those that were.
    length = max((len(p) for p in (*study.scratch, *between.static)), default=1)
    scratch = [max((at_fraction(p, k, length - 1) for p in study.scratch), default=0.0) for k in range(length)]
    static = []
    for stage in range(len(groups)):
        own = [between.static[i] for i, s in stage_of.items() if s == stage]
        share = placement.mesh_of.count(placement.mesh_of[stage])
        static.append(
            tuple(
                sum(at_fraction(p, k, length - 1) for p in own) + scratch[k] / share + copies[stage].bytes
                for k in range(length)
            )
        )
    return Division(
        assignment="balanced", stages=stages, names=names, activations=tuple(held), static=tuple(static), copies=copies
    )


def _input_share(usual: float, mesh_of: Sequence[int], stage: int) -> float:
    """Return the part of a backward that is input gradient: none in a first stage, all where it stays on its mesh."""
    if stage == 0:
        return 0.0
    return 1.0 if mesh_of[stage] == mesh_of[stage - 1] else usual


#: Options that are checked before the best one of them is taken as it is.
MOST_CHECKS = 4
#: A step that is longer by less is as promised.
AS_PROMISED = 0.02


def check_best(
    options: Sequence[Option],
    study: Study,
    lowered: Lowered,
    traced: Module,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Option]:
    """Return the options in order again, after the passes were run for the first ones, until a checked one is first.

    The step of a checked option is that of the order which the program has then.
    """
    result = list(options)
    for _ in range(MOST_CHECKS):
        best = result[0]
        if best.checked is not None or not (best.fits and best.choice.in_order):
            break
        progress(best.choice.schedule.name)
        result[0] = check_option(best, study, lowered, traced)
        result = ranked(result)
    return result


def check_option(option: Option, study: Study, lowered: Lowered, traced: Module) -> Option:
    """Return the option with the orders that its program has after scheduling.

    `checked` says how: "" where all is as promised, otherwise what is not.  Options for another number of
    microbatches stay as they are; the program would have to be changed first.
    """
    if option.microbatches != study.microbatches:
        return dataclasses.replace(option, checked="")
    try:
        module = _scheduled(option, study, lowered, traced)
    except MpmdError as error:
        reason = str(error).split("\n", 1)[0]
        return dataclasses.replace(option, fits=False, checked=f"does not compile: {reason}")
    choice = replayed(option.choice, option.stages, _orders(module, study))
    if choice is None or choice.makespan <= option.choice.makespan * (1 + AS_PROMISED):
        return dataclasses.replace(option, checked="")
    changed = option_of(option, choice, study, option.limit)
    return dataclasses.replace(changed, checked="the program's data flow changes its order")


def _scheduled(option: Option, study: Study, lowered: Lowered, traced: Module) -> Module:
    """Return the program after the optimize phase, with the stages and the schedule of the option."""
    splits = lowered.config.options.mpmd_split_bwd_fragments or None
    config = lowered.config.with_options(mpmd_pipeline_schedule=None, mpmd_split_bwd_fragments=splits)
    config = dataclasses.replace(config, pipeline_schedule=option.choice.schedule)
    if option.assignment == "balanced":
        places = option.places(study.meshes)
        config = dataclasses.replace(config, assignments=places, input_mesh_assignment=(), output_mesh_assignment=())
    changed = dataclasses.replace(lowered, config=config, schedule=resolve_schedule(config), hooks=())
    with _quiet():
        return partition_as(traced, changed.request, phases="optimize").module


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the scheduler's own warning: the result says it."""
    logger = logging.getLogger("mpmd_trace")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _orders(module: Module, study: Study) -> list[list[Step]]:
    """Return what each mesh does after scheduling, without what belongs to no microbatch."""
    topology = module.main.topology
    assert topology is not None
    rank = stage_ranks(module)
    number = {name: i for i, name in enumerate(topology.meshes)}
    rows: dict[str, list[Step]] = {mesh: [] for mesh in study.meshes}
    for op in module.main.body:
        if isinstance(op, FragmentOp) and op.mesh in rows:
            action = fragment_action(op, number[op.mesh])
            if action.kind != "O" and action.stage in rank:
                rows[op.mesh].append(Action(rank[action.stage], action.kind, action.microbatch))
    return [rows[mesh] for mesh in study.meshes]
