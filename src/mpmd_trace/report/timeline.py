"""The schedule of a compiled step as it was planned and as it was measured, on the same kind of timeline."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import statistics
from collections.abc import Collection, Sequence

from mpmd_trace.backend.plan import Instruction, Plan, Run, Transfer
from mpmd_trace.backend.timeline import Timeline as Measured
from mpmd_trace.backend.timeline import TimelineEntry, lane_of
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
        # What was merged does not say that it was half of a backward; the other half does.
        plain = [step for row in self.of_mesh.values() for step in row if isinstance(step, Action)]
        halves = {(action.stage, action.microbatch) for action in plain if action.kind == "W"}
        begun = {(action.stage, action.microbatch) for action in plain if action.kind == "I"}
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
    waiting = {name: iter(actions_left) for name, actions_left in actions.of_mesh.items()}
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
    places = [at for at, _ in _moving(plan)]
    return [(places[entry.instruction], entry) for entry in measured.entries]


def _moving(plan: Plan) -> list[tuple[int, Run | Transfer]]:
    """Return the instructions that take time, with their places."""
    return [(i, x) for i, x in enumerate(plan.instructions) if isinstance(x, Run | Transfer)]


def measured_timeline(plan: Plan, actions: FragmentActions, measured: Measured) -> Timeline:
    """Return the measured step, in milliseconds."""
    known = steps_by_place(plan, actions)
    events = []
    for at, entry in timed(plan, measured):
        span = known.get(at)
        if span is not None:
            events.append(Event(span[0], span[1], 1000 * entry.start, 1000 * entry.end))
    return Timeline.from_events("measured", events, " ms")


def planned_timeline(
    plan: Plan,
    actions: FragmentActions,
    measured: Sequence[Measured] = (),
    *,
    processors: int | None = None,
    transfers: bool = False,
) -> Timeline:
    """Return the step as it would run if every mesh had its own processors, or if all shared that many of them.

    Each mesh runs its programs in the order of the plan, each as soon as its inputs are there.  A program
    takes the shortest time it was measured to take (one unit where nothing was measured); so does a transfer
    with `transfers`, and none otherwise.  `processors`: where more of them run than there are processors, each gets an
    equal part of them.  So it was when they were measured, and each takes the usual time that it had of a processor.
    """
    known = steps_by_place(plan, actions)
    costs: dict[object, list[float]] = {}
    for one in measured:
        counted = [(at, entry) for at, entry in timed(plan, one) if entry.program is not None or transfers]
        for (at, _), time in zip(counted, _alone([entry for _, entry in counted], processors), strict=True):
            costs.setdefault(_cost(plan, plan.instructions[at]), []).append(1000 * time)
    usual = statistics.median if processors is not None else lambda v: statistics.quantiles([*v, *v], n=4)[0]
    time_of = {what: usual(v) for what, v in costs.items()}
    made_by: dict[int, frozenset[int]] = {}  # what must have run before a slot is there
    last: dict[str, frozenset[int]] = {}
    rows: list[tuple[int, Step] | None] = []
    times: list[float] = []
    after: list[frozenset[int]] = []
    for at, instruction in _moving(plan):
        made = frozenset[int]().union(*(made_by.get(s, ()) for s in instruction.inputs))
        time = time_of.get(_cost(plan, instruction), 1.0 if isinstance(instruction, Run) else 0.0)
        if isinstance(instruction, Run):
            made |= last.get(instruction.mesh, frozenset())
            last[instruction.mesh] = frozenset([len(rows)])
        if isinstance(instruction, Run) or time:
            after.append(made)
            made = frozenset([len(rows)])
            rows.append(known.get(at))
            times.append(time)
        made_by.update(dict.fromkeys(instruction.outputs, made))
    played = _played(times, after, processors)
    events = [Event(*row, start, end) for row, (start, end) in zip(rows, played, strict=True) if row is not None]
    made_of = "programs as fast as measured" if costs else "each program one unit of time"
    shared = "" if processors is None else f" on {processors} processors"
    moved = "transfers too" if transfers and costs else "transfers free"
    return Timeline.from_events(f"planned{shared} ({made_of}, {moved})", events, " ms" if costs else "")


def _cost(plan: Plan, instruction: Instruction) -> object:
    """Instructions with the same cost take the same time: runs of one program, transfers of the same on one link."""
    if isinstance(instruction, Run):
        return instruction.program
    assert isinstance(instruction, Transfer)
    return lane_of(instruction), *(str(plan.slots[slot].type) for slot in instruction.outputs)


def _alone(entries: Sequence[TimelineEntry], processors: int | None) -> list[float]:
    """How long each would have taken on a processor of its own: `_played` with these times gives the entries again."""
    if processors is None:
        return [entry.end - entry.start for entry in entries]
    changes = sorted([(e.start, 1) for e in entries] + [(e.end, -1) for e in entries])
    work = {changes[0][0]: 0.0} if changes else {}
    running = 0
    for (before, change), (at, _) in itertools.pairwise(changes):
        running += change
        work[at] = work[before] + (at - before) * (min(1.0, processors / running) if running else 0.0)
    return [work[entry.end] - work[entry.start] for entry in entries]


def _played(
    times: Sequence[float], after: Sequence[Collection[int]], processors: int | None
) -> list[tuple[float, float]]:
    """Start and end of tasks that take `times` on a processor of their own, each begun when those `after` it ended."""
    left = [len(before) for before in after]
    then: list[list[int]] = [[] for _ in times]
    for task, before in enumerate(after):
        for one in before:
            then[one].append(task)
    start, end = [0.0] * len(times), [0.0] * len(times)
    now = work = 0.0  # `work`: what each processor would have done by now for a task that was there all the time
    running = [(times[task], task) for task, n in enumerate(left) if n == 0]
    heapq.heapify(running)
    while running:
        share = 1 if processors is None else min(1, processors / len(running))
        done, task = heapq.heappop(running)
        now, work = done if processors is None else now + (done - work) / share, done
        end[task] = now
        for one in then[task]:
            left[one] -= 1
            if left[one] == 0:
                start[one] = now
                heapq.heappush(running, (work + times[one], one))
    return list(zip(start, end, strict=True))


def bubble(timeline: Timeline) -> float:
    """Return the part of the meshes' time, from the start to the end of the step, in which they do not compute."""
    busy = sum(e.end - e.start for row in timeline.rows for e in row)
    whole = timeline.end * len(timeline.rows)
    return 1 - busy / whole if whole else 0.0
