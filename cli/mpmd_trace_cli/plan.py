"""`mpmd-trace plan`: the best stages and schedule for a program, beside the alternatives."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from mpmd_trace.api.lowered import Lowered
from mpmd_trace.api.options import options_of_overlap
from mpmd_trace.api.program import Program
from mpmd_trace.api.request import device_memory, work_of
from mpmd_trace.backend.collectives import CollectivesReport
from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.timeline import Timeline
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.frontend.batch_rows import batch_rows
from mpmd_trace.frontend.traced import Traced
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.compile_options import OUR_OPTIONS
from mpmd_trace.report.link_times import measure_links
from mpmd_trace.report.placement_reasons import reasons
from mpmd_trace.report.plan_costs import Study, check_plannable, study
from mpmd_trace.report.plan_groups import Names, best_together, plans_of_groups
from mpmd_trace.report.plan_search import Option, check_best, check_option, options_of, ranked
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.schedules import ScheduleError, Transfers, find_entry
from mpmd_trace.scheduling.costs import hiding_of
from mpmd_trace.scheduling.resolve_schedule import resolve_schedule
from mpmd_trace.scheduling.transfers import Links
from mpmd_trace_cli import placement_report
from mpmd_trace_cli._plan_options import PlanOptions
from mpmd_trace_cli.console import compiling, data, progress, say
from mpmd_trace_cli.files import check_output, write_text
from mpmd_trace_cli.plan_links import check_numbers, links_between, mode_of, speeds
from mpmd_trace_cli.plan_text import as_data, as_text, groups_as_data, groups_as_text, mib
from mpmd_trace_cli.program import copied, load_program
from mpmd_trace_cli.status import CallError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Steps that are measured, after one that is not.
MEASURED_STEPS = 3


def plan_program(
    file: str, asked: PlanOptions, settings: Sequence[str], target: str | None = None, *, as_json: bool
) -> None:
    """Compile the program once, take the costs of its parts, and print what suits it best.  Raises `MpmdError`.

    On a `target` it has to fit into the memory of its devices, unless a limit is given.
    """
    check_numbers(asked)
    counts = _numbers(asked.microbatches)
    if asked.save is not None:
        check_output(asked.save)
    given = load_program(file, settings, target)
    program = _phases_apart(given)
    if isinstance(program.config.pipeline_schedule, Mapping) and (counts or asked.save is not None):
        wrong = "--microbatches" if counts else "--save"
        raise CallError(f"{wrong} is for one schedule of all meshes, and this program has one for each group of meshes")
    links = links_between(asked, program.config, has_target=target is not None)
    limit = None if asked.memory_limit is None else asked.memory_limit * 2**20
    if limit is None and target is not None:
        limit = device_memory(program.config)

    with progress() as shown:
        task = shown.add_task("trace and passes", total=1, info=program.name)
        actions = FragmentActions()
        lowered = program.jitted().lower_lazily(*program.args, hooks=[actions])
        check_plannable(lowered)
        counts = _that_divide(counts, lowered.traced, asked.microbatches)
        _ = lowered.partitioned
        shown.update(task, completed=1)
        # XLA's compiler for GPUs that are not there does not say what programs cost.
        by_estimate = program.config.is_abstract or (target or "").startswith("gpu:")
        more = options_of_overlap(given.config)  # with which pairs would be compiled
        compiled: Any = None if by_estimate else lowered.compile(more, progress=compiling(shown))
        final, counted = (lowered, lowered.estimated) if by_estimate else (compiled.lowered, compiled.program)
        timelines: list[Timeline] = []
        steps: list[float] = []
        if asked.measure:
            timelines, steps = _measured(program, compiled, shown)
            if links is None:
                links = _measured_links(compiled.program, mode_of(asked.transfers), shown)
        task = shown.add_task("layers", total=1, info="what crosses between them")
        plan = study(
            final,
            counted,
            actions,
            measured=timelines,
            steps=steps,
            links=links,
            hiding=hiding_of(given.config),
            overlap=given.config.options.overlap if work_of(given.config) is not None else None,
            **speeds(asked),
        )
        shown.update(task, completed=1)
        task = shown.add_task("simulate", total=None, info="")
        groups = plans_of_groups(plan, [group for group, _ in lowered.schedule.parts], limit)
        for one in groups:
            _check_any_fits(one.study, one.options, limit, one.meshes)
        options = [] if groups else _options(plan, lowered, counts, limit, shown, task)
    if not groups:
        _check_any_fits(plan, options, limit)
    if asked.save is not None:
        write_text(str(asked.save), options[0].choice.schedule.to_csv())

    held = counted.placement_report()
    why = reasons(held, lowered)
    # Estimates know no collectives: XLA makes them.
    collectives = CollectivesReport() if by_estimate else compiled.collectives()
    told: Any
    if groups:
        own = {group: _library_name(one.name) for group, one in lowered.schedule.parts}
        in_groups = groups, best_together(groups, functools.partial(_is_followed, lowered)), own
        told = groups_as_data(program.name, *in_groups) if as_json else groups_as_text(*in_groups, asked.rows)
    else:
        tried = plan, options, _now(options, plan, lowered)
        told = as_data(program.name, *tried) if as_json else as_text(*tried, asked.rows, asked.save)
    if as_json:
        facts = placement_report.facts_data(given.config, final, collectives)
        data({**told, "placement": placement_report.as_data(held, why), **facts})
        return
    data(told)
    say(placement_report.as_text(held, why, file) + placement_report.facts_text(given.config, final, collectives))
    for text in _not_tried(plan, lowered.traced, has_groups=bool(groups), has_counts=bool(counts)):
        say(text)


def _measured(program: Program, compiled: Any, shown: Progress) -> tuple[list[Timeline], list[float]]:
    """Return the times of steps, part by part and as a whole; the first of each, which is not typical, is left out."""
    task = shown.add_task("measure", total=MEASURED_STEPS, info="steps")
    timelines, steps = [], []
    for i in range(MEASURED_STEPS + 1):
        timelines.append(compiled.measure(*_arguments(program, compiled))[1])
        steps.append(_stepped(program, compiled))
        shown.update(task, completed=i)
    return timelines[1:], steps[1:]


def _measured_links(program: LoadedProgram, mode: Transfers, shown: Progress) -> Links:
    """Measure the links between all meshes that send something to each other in a step."""
    pairs = list(dict.fromkeys((t.source, t.target) for t in program.plan.transfers if t.source != t.target))
    task = shown.add_task("measure", total=len(pairs), info="links")
    return measure_links(program.topology, pairs, mode, progress=lambda name: shown.update(task, advance=1, info=name))


def _options(
    plan: Study, lowered: Lowered, counts: Sequence[int], limit: float | None, shown: Progress, task: TaskID
) -> list[Option]:
    """Return the stages, schedules and numbers of microbatches that were tried, the best first, as far as checked."""
    options = options_of(
        plan,
        microbatches=counts,
        memory_limit=limit,
        progress=lambda done, total: shown.update(task, completed=done, total=total),
    )
    if not any(o.fits and o.choice.in_order for o in options):
        return options
    task = shown.add_task("check the best", total=None, info="")
    traced = parse(lowered.traced.mlir_text(debug_info=False))
    options = check_best(options, plan, lowered, traced, lambda name: shown.update(task, advance=1, info=name))
    options = _with_now(options, plan, lowered, traced)
    shown.update(task, total=shown.tasks[task].completed)
    return options


def _not_tried(plan: Study, traced: Traced, *, has_groups: bool, has_counts: bool) -> Iterator[str]:
    """Yield what would make the answer better: other stages and numbers of microbatches, times instead of counts."""
    now = plan.microbatches
    if not has_counts and not has_groups and now > 1:
        others = _dividing([n for n in (now // 2, 2 * now) if n > 1], traced)
        if others:
            text = f"--microbatches {','.join(map(str, others))} tries other numbers"
            yield f"{now} microbatches, as in the program; {text}"
    if has_groups:
        yield "other stages and numbers of microbatches are not tried, as groups of meshes have schedules of their own"
    elif isinstance(plan.layer_values, str):
        yield f"other stages are not tried: {plan.layer_values}"
    if plan.unit != "ms":
        yield (
            "costs are counted operations, and transfers cost nothing; for times, pass --measure, or the speed of "
            "devices and links (--tflops, --gbytes, --latency-us, --link-gbytes)"
        )
    elif plan.links is None:
        yield "transfers cost nothing; pass --latency-us and --link-gbytes, the latency and bandwidth of links"


def _phases_apart(program: Program) -> Program:
    """Return the program without the options that merge forwards with backwards, since each has its own cost.

    Likewise gathers are programs of their own, whatever the memory.
    """
    config = program.config.with_options(gather="step", overlap=None, **dict.fromkeys(OUR_OPTIONS, False))
    return dataclasses.replace(program, config=config)


def _now(options: Sequence[Option], study: Study, lowered: Lowered) -> Option | None:
    """Return the option that the program has chosen itself."""
    chosen = "as assigned", _own_name(lowered, study), study.microbatches
    own = (o for o in options if (o.assignment, o.choice.schedule.name, o.microbatches) == chosen)
    return next(own, None)


def _with_now(options: Sequence[Option], study: Study, lowered: Lowered, traced: Module) -> list[Option]:
    """Return the options with the program's own choice checked, too."""
    now = _now(options, study, lowered)
    if now is None or now.checked is not None:
        return list(options)
    checked = check_option(now, study, lowered, traced)
    return ranked([checked if o is now else o for o in options])


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = [0]
    if any(n < 1 for n in numbers):
        raise CallError(f"--microbatches is '{text}'; write numbers above 0 with commas, as in 4,8,16")
    return numbers


def _that_divide(counts: Sequence[int], traced: Traced, text: str) -> list[int]:
    """Return the numbers of microbatches that the batch can be cut into; says which others there were.

    Rows of a microbatch that its devices do not divide are left out, too, since each device would compute all of them.
    """
    fit, rows, split = _dividing(counts, traced), batch_rows(traced.jaxpr), traced.split_rows
    others = ", ".join(str(n) for n in counts if n not in fit)
    batch = f"the batch has {' or '.join(map(str, rows))} rows"
    if split:
        batch += f", split over {' or '.join(str(n) for n in sorted({one.devices for one in split}))} devices"
    if counts and not fit:
        of = "rows of each device" if split else "rows"
        raise CallError(f"--microbatches is '{text}', but {batch}; choose a number that divides the {of}")
    if others:
        say(f"not tried: {others} microbatches, since {batch}")
    return fit


def _dividing(counts: Sequence[int], traced: Traced) -> list[int]:
    """Return the numbers that the rows of the batch, and those of each device, can be divided by."""
    rows = batch_rows(traced.jaxpr)
    fit = [n for n in counts if not rows or any(size % n == 0 for size in rows)]
    return [n for n in fit if all(one.rows % (n * one.devices) == 0 for one in traced.split_rows)]


def _own_name(lowered: Lowered, study: Study) -> str:
    """Return the library's name of the program's own schedule."""
    name = _library_name(lowered.schedule.name)
    return "forward" if study.stages.forward_only and study.stages.chunks == 1 else name


def _library_name(name: str) -> str:
    try:
        return find_entry(name).name
    except ScheduleError:
        return name


def _is_followed(lowered: Lowered, schedules: Names) -> bool:
    config = dataclasses.replace(lowered.config, pipeline_schedule=schedules)
    return lowered.is_followed(config, resolve_schedule(config))


def _arguments(program: Any, compiled: Any) -> Any:
    """Arguments where they belong, copied because the step may give them away."""
    return jax.block_until_ready(compiled.place(*program.dynamic(copied(program.args)))[0])


def _stepped(program: Any, compiled: Any) -> float:
    """Return the seconds of a whole step, as it runs without measurement."""
    args = _arguments(program, compiled)
    start = time.perf_counter()
    jax.block_until_ready(compiled(*args))
    return time.perf_counter() - start


def _check_any_fits(study: Study, options: Sequence[Option], limit: float | None, group: tuple[str, ...] = ()) -> None:
    """Raise `MpmdError` where none of the options can be had, of the program or of a group of meshes."""
    if not any(o.fits and o.choice.in_order for o in options):
        where = f"on {', '.join(group)}: " if group else ""
        raise MpmdError(where + _nothing(study, options, None if limit is None else limit / 2**20, bool(group)))


def _nothing(study: Study, options: Sequence[Option], limit: float | None, is_group: bool) -> str:
    usable = [o for o in options if o.choice.in_order]
    if usable and limit is not None:
        lowest = min(usable, key=lambda o: max(o.peak_bytes))
        most = max(lowest.peak_bytes)
        mesh = study.meshes[lowest.peak_bytes.index(most)]
        return (
            f"nothing fits in {limit:g} MiB per device; {lowest.choice.schedule.name} with "
            f"{len(lowest.mesh_of)} stages and {lowest.microbatches} microbatches comes closest with "
            f"{mib(most)} MiB on mesh '{mesh}', {mib(most - limit * 2**20)} MiB too much. Use more meshes, more "
            f"and smaller microbatches{'' if is_group else ' (--microbatches)'}, or options of make_config: "
            "remat='auto' recomputes activations, offload='auto' keeps them in host memory, optimizer_sharding shards "
            "the optimizer state."
        )
    stages = ", ".join(f"{s} on '{study.meshes[m]}'" for s, m in enumerate(study.mesh_of))
    reason = study.layer_values if isinstance(study.layer_values, str) else ""
    return (
        f"no schedule of the library suits the stages of the program ({stages}) and "
        f"{study.microbatches} microbatches"
        + (f", and other stages are not tried: {reason}" if reason else "")
        + ". Give every mesh as many stages, in a loop (0 1 0 1) or a V (0 1 1 0), or try other numbers "
        + ("of microbatches." if is_group else "with --microbatches.")
    )
