"""Whether the compiler really gives a program the order that a schedule promises, and what comes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence

from mpmd_trace.api.lowered import Lowered
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.report.plan_options import Option, option_of, ranked
from mpmd_trace.report.planning import Study
from mpmd_trace.schedules import Action, Step
from mpmd_trace.scheduling.auto import replayed
from mpmd_trace.scheduling.choose_schedule import choose_schedule
from mpmd_trace.scheduling.stage_costs import stage_ranks
from mpmd_trace.scheduling.transfers import fragment_action

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
    if option.microbatches != study.stages.microbatches:
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
    changed = dataclasses.replace(lowered, config=config, schedule=choose_schedule(config), hooks=())
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
