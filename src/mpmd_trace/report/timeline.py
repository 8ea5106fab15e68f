"""The schedule of a compiled step as it was planned and as it was measured, on the same kind of timeline."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from mpmd_trace.backend.plan import Plan, Run, Transfer
from mpmd_trace.backend.timeline import Timeline as Measured
from mpmd_trace.backend.timeline import TimelineEntry, planned_runs
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.passes.compile_options import OUR_OPTIONS
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.schedules import Action, Event, Step, Timeline, fused
from mpmd_trace.scheduling.transfers import fragment_step


@dataclasses.dataclass
class FragmentActions:
    """A pass hook that remembers what each fragment is: the exported program no longer says it.

    `of_mesh[name]` lists, in order, the step of every fragment of the mesh; `O` for what belongs to no
    microbatch (accumulation, optimizer).
    """

    of_mesh: dict[str, list[Step]] = dataclasses.field(default_factory=dict)

    def __call__(self, run: PassRun, module: Module) -> None:
        main = module.lookup("main")
        if main is None or not run.changed:
            return
        fragments = [op for op in main.body if isinstance(op, FragmentOp)]
        if not fragments or main.topology is None:
            return
        stages = {name: i for i, name in enumerate(main.topology.meshes)}
        self.of_mesh = {name: [] for name in stages}
        for op in fragments:
            self.of_mesh[op.mesh].append(fragment_step(op, stages[op.mesh]))
        # What was merged may not say that it was half of a backward; the other half does.
        known = [part for row in self.of_mesh.values() for step in row for part in step.parts]
        halves = {(action.stage, action.microbatch) for action in known if action.kind == "W"}
        begun = {(action.stage, action.microbatch) for action in known if action.kind == "I"}
        for row in self.of_mesh.values():
            row[:] = [_with_halves(step, halves, begun) for step in row]


def _with_halves(step: Step, halves: set[tuple[int, int]], begun: set[tuple[int, int]]) -> Step:
    """Return the step, where a block has the backward of a stage and microbatch in `halves` with its input gradient.

    A backward in `begun`, of which the input gradient is a step of its own, is the weight gradient.
    """
    if isinstance(step, Action):
        is_rest = step.kind == "B" and (step.stage, step.microbatch) in begun
        return Action(step.stage, "W", step.microbatch) if is_rest else step
    parts = [
        Action(p.stage, "I", p.microbatch) if p.kind == "B" and (p.stage, p.microbatch) in halves else p
        for p in step.parts
    ]
    return fused(*parts)


def steps_by_place(plan: Plan, actions: FragmentActions) -> dict[int, tuple[int, Step]]:
    """Mesh number and step of each run, by its place among the instructions."""
    meshes = {name: i for i, name in enumerate(plan.meshes)}
    waiting = {name: iter(steps) for name, steps in actions.of_mesh.items()}
    result: dict[int, tuple[int, Step]] = {}
    for at, instruction in enumerate(plan.instructions):
        if isinstance(instruction, Run):
            mesh = meshes[instruction.mesh]
            result[at] = (mesh, next(waiting.get(instruction.mesh, iter(())), Action(mesh, "O")))
    return result


def kind_and_microbatch(step: Step) -> tuple[str, int]:
    """Return the letter of a step, "FB" for several at once, and the (first) microbatch of it."""
    if isinstance(step, Action):
        return step.kind, step.microbatch
    return "FB", step.parts[0].microbatch


def actions_by_place(plan: Plan, actions: FragmentActions) -> dict[int, Action]:
    """Return the action of each run, by its place among the instructions.

    Raises `MpmdError` when one is a block of several: what each of them costs is not known.
    """
    result = {}
    for at, (_, step) in steps_by_place(plan, actions).items():
        if not isinstance(step, Action):
            raise MpmdError(
                f"the step runs {step} as one program, so the cost of its parts is unknown; compile it with "
                f"partitioning_options={dict.fromkeys(OUR_OPTIONS, False)} to plan it"
            )
        result[at] = step
    return result


def run_actions(plan: Plan, actions: FragmentActions) -> list[tuple[Run, Action]]:
    """Return every run of such a plan with the action that it is."""
    result = []
    for at, action in actions_by_place(plan, actions).items():
        run = plan.instructions[at]
        assert isinstance(run, Run)
        result.append((run, action))
    return result


def timed(plan: Plan, measured: Measured) -> list[tuple[int, TimelineEntry]]:
    """Return the entries of a measured step, each with the place of its instruction in the plan."""
    places = [at for at, instruction in enumerate(plan.instructions) if isinstance(instruction, Run | Transfer)]
    return [(places[entry.instruction], entry) for entry in measured.entries]


def measured_timeline(plan: Plan, actions: FragmentActions, measured: Measured) -> Timeline:
    """Return the measured step, in milliseconds."""
    known = steps_by_place(plan, actions)
    events = []
    for at, entry in timed(plan, measured):
        span = known.get(at)
        if span is not None:
            events.append(Event(span[0], span[1], 1000 * entry.start, 1000 * entry.end))
    return Timeline.from_events("measured", events, " ms")


def times_of_programs(measured: Sequence[Measured]) -> dict[int, list[float]]:
    """Return the milliseconds of all runs of each program."""
    times: dict[int, list[float]] = {}
    for entry in (entry for one in measured for entry in one.entries):
        if entry.program is not None:
            times.setdefault(entry.program, []).append(1000 * (entry.end - entry.start))
    return times


def planned_timeline(plan: Plan, actions: FragmentActions, measured: Sequence[Measured] = ()) -> Timeline:
    """Return the step as it would run if every mesh had its own processors, and transfers took no time.

    A program takes the lower quartile of its measured times (one unit where nothing was measured).
    """
    known = steps_by_place(plan, actions)
    costs = times_of_programs(measured)
    time_of = {program: statistics.quantiles([*times, *times], n=4)[0] for program, times in costs.items()}
    times = [time_of.get(program, 1.0) for program in range(len(plan.programs))]
    events = [Event(*known[at], start, end) for at, start, end in planned_runs(plan, times)]
    made_of = "programs as fast as measured" if costs else "each program one unit of time"
    return Timeline.from_events(f"planned ({made_of}, transfers free)", events, " ms" if costs else "")


def bubble(timeline: Timeline) -> float:
    """Return the part of the meshes' time, from the start to the end of the step, in which they do not compute."""
    busy = sum(e.end - e.start for row in timeline.rows for e in row)
    whole = timeline.end * len(timeline.rows)
    return 1 - busy / whole if whole else 0.0
