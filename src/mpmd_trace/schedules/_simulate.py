"""Event-based simulation: when does each action of a schedule start and end.

A mesh does its actions in their order, each as soon as its inputs are there. Linear in the number
of actions and dependencies.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from mpmd_trace.schedules._check import check, check_fraction, must_be_schedule
from mpmd_trace.schedules._costs import Costs, PerStage, Timer, amounts, per_stage
from mpmd_trace.schedules._engine import Background, Blocking, InOrder, Run, stuck_heads
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._program import Program, build
from mpmd_trace.schedules._result import Simulation
from mpmd_trace.schedules._schedule import Schedule

Transfers: TypeAlias = Literal["async", "exposed", "blocking", "in-order"]
FusedMode: TypeAlias = Literal["block", "serial"]

TRANSFERS: tuple[Transfers, ...] = ("async", "exposed", "blocking", "in-order")
FUSED_MODES: tuple[FusedMode, ...] = ("block", "serial")


def simulate(
    schedule: Schedule,
    costs: Costs | None = None,
    *,
    transfers: Transfers = "async",
    fused: FusedMode = "block",
    weight_fraction: float = 1.0,
    activation: PerStage = 1.0,
    static: PerStage = 0.0,
) -> Simulation:
    """Simulate a schedule: return the start and end of each action, and measures derived from them.

    - `transfers`: `async` transfers occupy no mesh (the papers' model); `exposed` ones occupy the
      sending mesh; `blocking` ones occupy both meshes, which wait for each other: between two actions,
      a mesh sends the results of the first and receives the inputs of the second, as one group;
      `in-order` ones run in the background, one at a time on each mesh.
    - `fused`: a fused `block` waits for all inputs and gives all outputs at its end; `serial` runs
      its parts one after the other, as if they were not fused.
    - `weight_fraction`: the part of a stage's activations that its weight-gradient keeps (w).
    - `activation`: what one microbatch holds, per mesh or per stage, as in `Costs`.
    - `static`: what parameters, gradients and optimizer state hold, per mesh or per stage.

    A schedule that does not terminate is a `ScheduleError` with all problems. Mistakes
    that do not stop it, such as an action that runs twice, are for `check` to find.
    """
    must_be_schedule(schedule)
    costs = Costs() if costs is None else costs
    check_fraction(weight_fraction)
    if transfers not in TRANSFERS:
        raise ScheduleError(f"unknown transfers '{transfers}'; use {', '.join(TRANSFERS)}")
    if fused not in FUSED_MODES:
        raise ScheduleError(f"unknown fused mode '{fused}'; use {' or '.join(FUSED_MODES)}")
    if fused == "serial":
        schedule = schedule.unfused()
    timer = Timer(schedule, costs)
    try:
        program = build(schedule)
    except IndexError:
        raise _broken(schedule) from None
    if program.absent:
        raise _broken(schedule)
    durations = [timer.step(step) for step in program.steps]
    run: Run
    if transfers == "blocking":
        # The blocking engine trusts the order within a mesh, so that is made sure of first.
        if stuck_heads(program):
            raise _broken(schedule)
        run = Blocking(program, durations, costs)
    elif transfers == "in-order":
        run = InOrder(program, durations, costs)
    else:
        run = Background(program, durations, costs, exposed=transfers == "exposed")
    if not run.finished():
        raise _broken(schedule, blocking=transfers == "blocking")
    return Simulation(
        schedule=schedule,
        costs=costs,
        program=program,
        starts=run.starts,
        ends=run.ends,
        arrival=run.arrival,
        work=_work(program, timer),
        share=per_stage(amounts("activation", activation), schedule, "activation"),
        static=_static(schedule, static),
        weight_fraction=weight_fraction,
        transfers=transfers,
    )


def _broken(schedule: Schedule, blocking: bool = False) -> ScheduleError:
    problems = check(schedule, blocking=blocking)
    lines = "\n  ".join(str(p) for p in problems[:10])
    more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
    return ScheduleError(f"schedule '{schedule.name}' cannot run:\n  {lines}{more}", problems)


def _work(program: Program, timer: Timer) -> list[float]:
    work = [0.0] * program.schedule.meshes
    for step, mesh in zip(program.steps, program.mesh, strict=True):
        work[mesh] += timer.work(step)
    return work


def _static(schedule: Schedule, static: PerStage) -> list[float]:
    static = amounts("static", static)
    if not isinstance(static, tuple):
        return [float(static)] * schedule.meshes
    by_stage = per_stage(static, schedule, "static")
    return [sum(by_stage[s] for s in stages) for stages in schedule.placement.stages_on]
