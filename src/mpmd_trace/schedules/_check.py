"""Is a schedule one that can run? Every reason why not, each with its place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from mpmd_trace.schedules import _memory
from mpmd_trace.schedules._actions import KIND_NAMES, Action, Kind
from mpmd_trace.schedules._costs import Costs, PerStage, amounts, per_stage
from mpmd_trace.schedules._engine import Blocking, stuck_heads
from mpmd_trace.schedules._errors import Problem, ScheduleError, counted
from mpmd_trace.schedules._program import Program, build, find_cycle
from mpmd_trace.schedules._schedule import Schedule


def check(
    schedule: Schedule,
    *,
    memory_limit: _memory.MemoryLimit | None = None,
    activation: PerStage = 1.0,
    weight_fraction: float = 1.0,
    blocking: bool = False,
) -> list[Problem]:
    """Return all problems of a schedule; an empty list means that it terminates.

    It checks: stages on their meshes and microbatches in range; each action once, none missing;
    forward before backward and input- before weight-gradient within a stage; fused parts that do
    not need each other; no deadlock; with `memory_limit` (one number, or one per mesh, in units
    of `activation`, of which `weight_fraction` stays from I to W), the peak of each mesh; with
    `blocking`, no deadlock if transfers are by rendezvous.
    """
    must_be_schedule(schedule)
    check_fraction(weight_fraction)
    problems = list(_ranges(schedule))
    if problems:
        # Positions mean nothing for actions that cannot exist, so stop here.
        return problems
    seen, problems = _unique(schedule)
    problems += _complete(schedule, seen)
    problems += _within_stage(seen)
    problems += _fused(schedule)
    problems += _optimizer(schedule, seen)
    program = build(schedule)
    # A missing action is reported where it is needed; those reports come from `_complete` first.
    stuck = stuck_heads(program)
    if stuck:
        cycle = find_cycle(program, stuck)
        # A mesh that waits for itself has a wrong order within a stage, which was said above.
        if len(cycle) > 1 or not any(p.code in ("order", "fused") for p in problems):
            problems.append(_deadlock(program, cycle))
    elif blocking and not program.absent:
        run = Blocking(program, [1.0] * len(program.steps), Costs())
        if not run.finished():
            problems += _blocked(program, run)
    if memory_limit is not None:
        problems += _memory_limit(schedule, memory_limit, activation, weight_fraction)
    return problems


def validate(
    schedule: Schedule,
    *,
    memory_limit: _memory.MemoryLimit | None = None,
    activation: PerStage = 1.0,
    weight_fraction: float = 1.0,
    blocking: bool = False,
) -> Schedule:
    """Return the schedule if `check` finds nothing; otherwise raise a `ScheduleError` with all problems."""
    problems = check(
        schedule, memory_limit=memory_limit, activation=activation, weight_fraction=weight_fraction, blocking=blocking
    )
    if problems:
        text = f"schedule '{schedule.name}' has {counted(len(problems), 'problem')}:\n{explain(schedule, problems)}"
        raise ScheduleError(text, problems)
    return schedule


def must_be_schedule(schedule: object) -> None:
    """Refuses the name of a schedule, and anything else that is none."""
    if not isinstance(schedule, Schedule):
        hint = (
            f"get_schedule({schedule!r}, meshes, microbatches) makes one"
            if isinstance(schedule, str)
            else ("get_schedule, from_orders and load_csv make them")
        )
        raise ScheduleError(f"{schedule!r} is not a Schedule; {hint}")


def check_fraction(weight_fraction: object) -> None:
    """Refuses a weight fraction that is none."""
    if not isinstance(weight_fraction, (int, float)) or not 0.0 <= weight_fraction <= 1.0:
        raise ScheduleError(f"the weight fraction is {weight_fraction}; it lies between 0 and 1")


def explain(schedule: Schedule, problems: list[Problem], around: int = 3, limit: int = 20) -> str:
    """Return the problems as text, each with the relevant part of the mesh's list."""
    lines: list[str] = []
    for problem in problems[:limit]:
        lines.append(f"{problem.code}: {problem}")
        if 0 <= problem.row < len(schedule.orders) and problem.column >= 0:
            order = schedule.orders[problem.row]
            begin = max(0, problem.column - around)
            cells = [str(s) for s in order[begin : problem.column + around + 1]]
            if begin < len(order) and problem.column < len(order):
                before = ("... " if begin else "") + "".join(f"{c}  " for c in cells[: problem.column - begin])
                after = "  ".join(cells[problem.column - begin :])
                dots = "  ..." if problem.column + around + 1 < len(order) else ""
                lines.append(f"    {before}{after}{dots}")
                mark = "^" * len(cells[problem.column - begin])
                lines.append(f"    {' ' * len(before)}{mark} here")
    if len(problems) > limit:
        lines.append(f"and {len(problems) - limit} more")
    return "\n".join(lines)


def _ranges(schedule: Schedule) -> Iterator[Problem]:
    mesh_of = schedule.placement.mesh_of
    if len(schedule.orders) != schedule.meshes:
        yield Problem(
            "placement",
            f"there are {len(schedule.orders)} lists of actions, but the stages are placed on {schedule.meshes} meshes",
        )
        return
    if len(schedule.graph) != len(mesh_of):
        yield Problem("graph", f"the graph has {len(schedule.graph)} stages, the placement {len(mesh_of)}")
        return
    for stage, mesh in enumerate(mesh_of):
        if not 0 <= mesh < schedule.meshes:
            message = f"stage {stage} is placed on mesh {mesh}, but the meshes are 0 to {schedule.meshes - 1}"
            yield Problem("placement", message)
    for row, column, action in schedule.actions():
        stage, m = action.stage, action.microbatch
        if not 0 <= stage < len(mesh_of):
            message = f"stage {stage} does not exist; the stages are 0 to {len(mesh_of) - 1}"
            yield Problem("range", message, row, column, str(action))
        elif mesh_of[stage] != row:
            message = f"stage {stage} lives on mesh {mesh_of[stage]}, not on mesh {row}"
            yield Problem("placement", message, row, column, str(action), f"move the action to mesh {mesh_of[stage]}")
        elif action.kind == "O":
            if m >= 0:
                yield Problem("range", "an optimizer action has no microbatch", row, column, str(action))
        elif m not in schedule.microbatches_of(stage):
            mbs = schedule.microbatches_of(stage)
            which = f"its microbatches are {mbs.start} to {mbs.stop - 1}"
            message = f"microbatch {m} does not run through stage {stage}; {which}"
            yield Problem("range", message, row, column, str(action))


_Seen = dict[tuple[int, Kind, int], tuple[int, int]]


def _unique(schedule: Schedule) -> tuple[_Seen, list[Problem]]:
    seen: _Seen = {}
    problems: list[Problem] = []
    for row, column, action in schedule.actions():
        key = (action.stage, action.kind, action.microbatch)
        before = seen.setdefault(key, (row, column))
        if before != (row, column) or schedule.orders[row][column].parts.count(action) > 1:
            message = f"{KIND_NAMES[action.kind]} of stage {action.stage}"
            if action.microbatch >= 0:
                message += f", microbatch {action.microbatch}"
            message += f" runs a second time; the first is action {before[1] + 1}"
            problem = Problem("duplicate", message, row, column, str(action), "remove one of them")
            if problem not in problems[-1:]:
                problems.append(problem)
    return seen, problems


def _complete(schedule: Schedule, seen: _Seen) -> Iterator[Problem]:
    for stage, mesh in enumerate(schedule.placement.mesh_of):
        for m in schedule.microbatches_of(stage):
            here = f"stage {stage}, microbatch {m}"
            full = seen.get((stage, "B", m))
            split = seen.get((stage, "I", m))
            weight = seen.get((stage, "W", m))
            user = full or split or weight
            if (stage, "F", m) not in seen:
                column = -1 if user is None else user[1]
                text = "" if user is None else str(schedule.orders[mesh][user[1]])
                yield Problem("missing", f"forward {stage}F{m} of {here} is missing", mesh, column, text)
            if schedule.forward_only:
                if user is not None:
                    message = f"{here} has a backward, but the schedule is forward only"
                    yield Problem("duplicate", message, mesh, user[1])
                continue
            if user is None:
                message = f"backward of {here} is missing: neither {stage}B{m} nor {stage}I{m}"
                yield Problem("missing", message, mesh)
            elif full is not None and (split or weight):
                text = f"{stage}{'I' if split else 'W'}{m}"
                message = f"{here} has a full backward {stage}B{m} and also {text}"
                place = (split or weight or full)[1]
                yield Problem("duplicate", message, mesh, place, text, "keep the full backward, or the two halves")
            elif full is None and split is None:
                message = f"input-gradient {stage}I{m} of {here} is missing"
                yield Problem("missing", message, mesh, user[1], f"{stage}W{m}")
            elif full is None and weight is None:
                message = f"weight-gradient {stage}W{m} of {here} is missing"
                yield Problem("missing", message, mesh, user[1], f"{stage}I{m}")


#: What runs before each kind of action, for the same stage and microbatch.
_BEFORE: dict[Kind, Kind] = {"B": "F", "I": "F", "W": "I"}


def _within_stage(seen: _Seen) -> list[Problem]:
    problems: list[Problem] = []
    for (stage, kind, m), at in seen.items():
        earlier = _BEFORE.get(kind, kind)
        place = seen.get((stage, earlier, m), at)
        if place > at:
            message = (
                f"{KIND_NAMES[kind]} of stage {stage}, microbatch {m} runs before its "
                f"{KIND_NAMES[earlier]} {stage}{earlier}{m}, which is action {place[1] + 1}"
            )
            problems.append(Problem("order", message, *at, f"{stage}{kind}{m}"))
    return sorted(problems, key=lambda p: (p.row, p.column))


def _fused(schedule: Schedule) -> Iterator[Problem]:
    for row, order in enumerate(schedule.orders):
        for column, step in enumerate(order):
            for a, b in permutations(step.parts, 2):
                if a != b and _feeds(schedule, a, b):
                    message = f"{b} needs the result of {a}, so they cannot run as one block"
                    yield Problem("fused", message, row, column, str(step))


def _feeds(schedule: Schedule, a: Action, b: Action) -> bool:
    if a.microbatch != b.microbatch:
        return False
    if a.stage == b.stage:
        return _BEFORE.get(b.kind) == a.kind
    if a.kind == b.kind == "F":
        return a.stage in schedule.graph.inputs(b.stage, b.microbatch)
    return a.kind in "BI" and b.kind in "BI" and a.stage in schedule.graph.outputs(b.stage, b.microbatch)


def _optimizer(schedule: Schedule, seen: _Seen) -> Iterator[Problem]:
    """Yield optimizer steps before a gradient of their stage, and stages that lack one where others have it."""
    place = {stage: at for (stage, kind, _), at in seen.items() if kind == "O"}
    if not place:
        return
    for stage, mesh in enumerate(schedule.placement.mesh_of):
        if stage not in place:
            yield Problem("missing", f"stage {stage} has no optimizer step, but other stages do", mesh)
    for row, column, action in schedule.actions():
        at = place.get(action.stage)
        if action.kind in "BIW" and at is not None and (row, column) > at:
            message = f"the optimizer step of stage {action.stage} runs before {action}"
            yield Problem("order", message, *at, f"{action.stage}O")


def _deadlock(program: Program, cycle: list[tuple[int, int]]) -> Problem:
    steps = program.steps
    parts = []
    for head, need in cycle:
        mesh, other = program.mesh[head], program.mesh[need]
        where = f"mesh {mesh} is at {steps[head]} and waits for {steps[need]}"
        parts.append(f"{where} on mesh {other}" if other != mesh else f"{where}, later on itself")
    first = cycle[0][0]
    return Problem("deadlock", "deadlock: " + "; ".join(parts), *program.place(first), str(steps[first]))


def _blocked(program: Program, run: Blocking) -> Iterator[Problem]:
    for mesh, position, pairs in run.waiting:
        texts = []
        for producer, target in pairs:
            source = program.mesh[producer]
            if source == mesh:
                texts.append(f"to send {program.steps[producer]} to mesh {target}")
            else:
                texts.append(f"to receive {program.steps[producer]} from mesh {source}")
        message = f"deadlock when transfers block: mesh {mesh} waits {' and '.join(texts)}"
        if position >= program.first[mesh + 1]:  # after its last step
            yield Problem("blocking", message, mesh)
        else:
            column = position - program.first[mesh]
            yield Problem("blocking", message, mesh, column, str(program.steps[position]))


def _memory_limit(
    schedule: Schedule, limit: _memory.MemoryLimit, activation: PerStage, weight_fraction: float
) -> Iterator[Problem]:
    limits = _memory.per_mesh(schedule.meshes, limit)
    share = per_stage(amounts("activation", activation), schedule, "activation")
    keep = not schedule.forward_only
    for mesh, order in enumerate(schedule.orders):
        held = 0.0
        for column, (taken, given) in enumerate(_memory.changes(order, share, weight_fraction, keep)):
            held += taken
            if held > limits[mesh] + 1e-9:
                peak = _memory.peak(order, share, weight_fraction, keep)
                message = (
                    f"mesh {mesh} would hold {held:g} microbatches of activations, "
                    f"its limit is {limits[mesh]:g} (peak {peak:g})"
                )
                yield Problem("memory", message, mesh, column, str(order[column]))
                break
            held -= given
