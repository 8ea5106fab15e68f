"""`mpmd-trace run`: compile, train or evaluate, compare with plain jax.jit, report."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mpmd_trace.api.processes import check_joined, fetch, initialize
from mpmd_trace.api.program import Program
from mpmd_trace.api.step_stats import counted_memory
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.backend.timeline import Timeline
from mpmd_trace.diagnostics.messages import MpmdError, listed
from mpmd_trace.frontend.errors import at_users_place, problem
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.report.curves import curves_svg
from mpmd_trace.report.files import write_folder
from mpmd_trace.report.placement_reasons import reasons
from mpmd_trace.report.snapshots import Snapshots
from mpmd_trace.report.step_trace import step_trace
from mpmd_trace.report.timeline import FragmentActions, bubble, measured_timeline, planned_timeline
from mpmd_trace.schedules import Timeline as Drawn
from mpmd_trace.schedules import draw, to_html, to_svg
from mpmd_trace.scheduling.utilization import mfu, model_flops
from mpmd_trace_cli import placement_report
from mpmd_trace_cli.console import as_json, compiling, data, progress, say
from mpmd_trace_cli.files import write_text
from mpmd_trace_cli.launch import is_launched
from mpmd_trace_cli.program import copied, load_program
from mpmd_trace_cli.run_steps import as_they_are, compare_steps, compile_ahead, run_steps
from mpmd_trace_cli.status import CallError
from mpmd_trace_devtools.numbers import on_one_device

#: What `run` writes besides the snapshots.
FILES = {
    "report.json": "these numbers, and the CPU time of each pass",
    "losses.svg": "loss curves",
    "losses.csv": "the same as a table",
    "timeline.svg": "the step as planned and as measured",
    "timeline.html": "the same in more detail",
    "placement.json": "what each mesh holds, and what is sent",
    "plan.txt": "the programs and transfers of a step, in order",
}

#: Inches of a picture that a browser's window shows whole.
WINDOW = 13.0


def run_program(
    file: str,
    out: str,
    settings: Sequence[str],
    *,
    trace: str | None = None,
    peak: float | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the program of `file`, write the report to `out`, and return its numbers.

    `trace`: a file for measured steps; `peak`: FLOP/s of a device, by default that of `scheduling.utilization`.

    In a job of several processes each runs its part; process 0 compares and reports, and the others give nothing.

    Raises `MpmdError` when the program does not compile or differs from plain `jax.jit` by more than its
    tolerances (the report is written all the same).
    """
    if peak is not None and not 0 < peak < math.inf:
        raise CallError(f"--peak-flops is the rate of one device, a number above 0, not {peak:g}")
    # With it, JAX takes SIGTERM for a notice to the program, which a program here does not ask for.
    jax.config.update("jax_enable_preemption_service", False)
    if not is_launched():  # the file of `--processes N` joins by itself, as the script of `launch`
        initialize()
    program = load_program(file, settings)
    try:
        check_joined()
    except MpmdError as error:
        raise at_users_place(error, program.where) from None
    job = current()
    first, processes = (True, 1) if job is None else (job.process == 0, job.count)
    if processes > 1:
        _check_all_have_devices(program, processes)

    ran = _run(program, first, processes)
    if not first:
        return {}
    problems, errors = compare_steps(program, ran.steps, ran.reference)
    compiled = ran.compiled
    plan = compiled.program.plan
    returning = _returning(compiled, ran.steps["carried"])
    planned = planned_timeline(plan, ran.actions, ran.timelines)
    measured = measured_timeline(plan, ran.actions, min(ran.timelines, key=lambda t: t.seconds))
    collectives = compiled.collectives()
    report = {
        **_figures(program, ran, peak),
        "returning_bytes": plan.bytes_of(argument for argument, _ in returning),
        "bubble_planned": round(bubble(planned), 4),
        "bubble_measured": round(bubble(measured), 4),
        "collectives": placement_report.collectives_data(collectives),
        **errors,
    }
    held = compiled.placement_report()
    why = reasons(held, ran.lowered)
    files = _files(report, ran, planned, measured)
    files["placement.json"] = as_json(placement_report.as_data(held, why)) + "\n"
    write_folder(out, files.items())
    if trace is not None:
        text = step_trace(program.name, compiled.program, ran.lowered.partitioned.module, ran.actions, ran.timelines)
        write_text(trace, text)
        say(f"wrote {trace}: open it in https://ui.perfetto.dev")
    if not quiet:
        print_losses(report)
        on_cpu = all(d.platform == "cpu" for mesh in program.config.topology.values() for d in mesh.devices.flat)
        say("\n" + _summary(report, bool(problems), on_cpu))
        told = placement_report.as_text(held, why, file, returning=False)
        say("\n" + told + placement_report.collectives_text(collectives))
    _say_what_returns(plan, returning, [leaf.name for leaf in ran.lowered.traced.inputs], report["returning_bytes"])
    written = [f"  {name:15}{what}" for name, what in FILES.items() if name in files]
    say("\n".join([f"wrote {out}/:", *written, f"  {'passes/':15}the program after each pass that changed it"]))
    if not quiet:
        say(f"mpmd-trace explain {file} says what is where and why; mpmd-trace explore {file} shows every pass")
    if problems:
        raise MpmdError("\n".join(problems))
    return report


@dataclasses.dataclass(frozen=True)
class _Ran:
    """A program that was compiled and run, and what was seen on the way."""

    lowered: Any
    compiled: Any
    #: As it was traced, before all passes.
    traced: Module
    snapshots: Snapshots
    actions: FragmentActions
    #: CPU seconds of tracing and of the passes, seconds of XLA.
    trace_seconds: float
    pass_seconds: float
    xla_seconds: float
    #: The steps of the pipeline, and those of plain `jax.jit` (`run_steps`).
    steps: dict[str, Any]
    reference: dict[str, Any]
    timelines: list[Timeline]
    #: The most memory in use on a device of each mesh that counts it; None where plain `jax.jit` used more before.
    memory: dict[str, int | None]


def _run(program: Program, first: bool, processes: int) -> _Ran:
    """Compile the program and run its steps, and those of plain `jax.jit`; of several processes the `first` does so."""
    with progress() as shown:
        task = shown.add_task("trace", total=1, info=program.name)
        started = time.perf_counter()
        snapshots, actions = Snapshots(), FragmentActions()
        lowered = program.jitted().lower_lazily(*program.args, hooks=[snapshots, actions] if first else [])
        traced = parse(lowered.traced.mlir_text())
        snapshots.start(traced)
        trace_seconds = time.perf_counter() - started
        shown.update(task, completed=1)
        plain = program.plain()
        ahead = threading.Thread(target=compile_ahead, args=(plain, program.args), daemon=True)
        if processes == 1:
            ahead.start()
        task = shown.add_task("passes", total=1, info="")
        runs = lowered.partitioned.runs
        shown.update(task, total=len(runs), completed=len(runs))
        started = time.perf_counter()
        compiled = lowered.compile(progress=compiling(shown))
        xla_seconds = time.perf_counter() - started

        def plainly() -> dict[str, Any]:
            task = shown.add_task("plain jax.jit", total=program.steps, info="compiling")
            told: Callable[[int, str], Any] = lambda i, loss: shown.update(task, completed=i, info=loss)  # noqa: E731
            return run_steps(program, plain, told, on_one_device)

        reference = {}
        if processes == 1:  # other processes must not wait for it
            ahead.join()
            reference = plainly()
        before = counted_memory(compiled.program.topology)
        task = shown.add_task("pipeline", total=program.steps, info="")
        copy = copied if program.donate_argnums else as_they_are
        steps = run_steps(
            program,
            lambda *args: compiled(*program.dynamic(args)),
            lambda i, loss: shown.update(task, completed=i, info=loss),
            first=copy,
            get=fetch,
        )
        after = counted_memory(compiled.program.topology)
        task = shown.add_task("measure", total=3, info="")
        timelines = []
        for i in range(3):
            results, timeline = compiled.measure(*program.dynamic(copy(program.args)))
            jax.block_until_ready(results)
            timelines.append(timeline)
            shown.update(task, completed=i + 1)
        return _Ran(
            lowered=lowered,
            compiled=compiled,
            traced=traced,
            snapshots=snapshots,
            actions=actions,
            trace_seconds=trace_seconds,
            pass_seconds=sum(one.seconds for one in runs),  # without snapshots
            xla_seconds=xla_seconds,
            steps=steps,
            reference=reference or (plainly() if first else {}),
            timelines=timelines,
            memory={mesh: most if most > before[mesh] else None for mesh, most in after.items()},
        )


def _figures(program: Program, ran: _Ran, peak: float | None) -> dict[str, Any]:
    """Return the figures of the report that need no timeline."""
    compiled, plan = ran.compiled, ran.compiled.program.plan
    return {
        "program": program.name,
        "schedule": ran.lowered.schedule.name,
        "meshes": {n: dict(m.shape) for n, m in program.config.topology.items()},
        "fragments": len(plan.runs),
        "distinct_programs": len(plan.programs),
        "transfers": sum(len(t.outputs) for t in plan.transfers),
        "transferred_bytes": plan.transferred_bytes,
        "step_seconds": round(ran.steps["seconds"], 5),
        "step_seconds_plain": round(ran.reference["seconds"], 5),
        **_utilization(program, ran.traced, ran.steps["seconds"], peak),
        "trace_seconds": round(ran.trace_seconds, 3),
        "pass_seconds": round(ran.pass_seconds, 3),
        "xla_seconds": round(ran.xla_seconds, 3),
        "passes": {
            f"{r.index + 1:03d} {r.spec}": round(1000 * r.seconds, 2) for r in ran.lowered.partitioned.runs if r.changed
        },
        "peak_bytes_per_device": {m: a.peak for m, a in compiled.memory_analysis().items()},
        "measured_peak_bytes_per_device": ran.memory,
        "steps": program.steps,
        "losses": ran.steps["losses"],
        "losses_plain": ran.reference["losses"],
    }


def _files(report: dict[str, Any], ran: _Ran, planned: Drawn, measured: Drawn) -> dict[str, str | bytes]:
    """Return the files of the report, with those of the snapshots and without the placement."""
    name, plan = report["program"], ran.compiled.program.plan
    title, names = f"{name}: one step", list(plan.meshes)
    overview = draw(planned, measured, title=title, names=names, width=WINDOW)
    files: dict[str, str | bytes] = {
        "report.json": as_json(report) + "\n",
        "plan.txt": str(plan),
        "timeline.svg": to_svg(overview),
        "timeline.html": to_html(draw(planned, measured, title=title, names=names), title, overview=overview),
    }
    if report["losses"]:
        files["losses.csv"] = _csv(report["losses"], report["losses_plain"])
        curves = {"plain jax.jit, one device": report["losses_plain"], "pipeline": report["losses"]}
        files["losses.svg"] = curves_svg(curves, title=f"{name}: loss")
    # Without diffs, which would take as long as the passes: `mpmd-trace diff OUT A B` makes those that are wanted.
    for name, text in ran.snapshots.files():
        files[f"passes/{name}"] = text
    return files


def _utilization(program: Any, module: Module, seconds: float, peak: float | None) -> dict[str, Any]:
    """Return model FLOPs, rates and MFU of a step; MFU is None where the peak rate of the devices is not known."""
    devices = {device for mesh in program.config.topology.values() for device in mesh.devices.flat}
    flops = model_flops(module)
    return {
        "devices": len(devices),
        "model_flops": flops,
        "model_flops_per_second": flops / seconds,
        "mfu": mfu(flops / seconds, devices, peak),
        "tokens_per_second": None if program.tokens is None else program.tokens / seconds,
    }


def _check_all_have_devices(program: Any, processes: int) -> None:
    """Raise `MpmdError` for a topology that has nothing to do for most processes."""
    having = {d.process_index for mesh in program.config.topology.values() for d in mesh.devices.flat}
    if len(having) == 1:
        text = (
            f"with {processes} processes the topology has devices of process {min(having)} alone. Give each process "
            "its part of the devices: jax.config.update('jax_num_cpu_devices', N // mpmd_trace.initialize())"
        )
        raise MpmdError([problem(text, program.config.where)])


def _returning(compiled: Any, carried: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of the carried (argument, result) pairs those on different meshes, as slots of the plan."""
    plan = compiled.program.plan
    constants = len(compiled.lowered.traced.constants)
    slots = [(plan.arguments[constants + i], plan.results[o]) for i, o in carried]
    return [(a, r) for a, r in slots if plan.slots[a].mesh != plan.slots[r].mesh]


def _say_what_returns(plan: Any, returning: Sequence[tuple[int, int]], names: Sequence[str], size: int) -> None:
    """Tell about the part of the state that a step leaves on another mesh than the one where the next takes it."""
    if not returning:
        return
    first = len(plan.arguments) - len(names)
    lines = [
        f"  {names[a - first]} is taken on {plan.slots[a].mesh} and returned on {plan.slots[r].mesh}"
        for a, r in returning
    ]
    say(placement_report.moved_back(lines, f" {len(returning)} ({size:,} bytes)"))


def _csv(ours: Sequence[float], theirs: Sequence[float]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["step", "pipeline", "plain_jit"])
    writer.writerows([i, *row] for i, row in enumerate(zip(ours, theirs, strict=True), 1))
    return buffer.getvalue()


def print_losses(report: dict[str, Any]) -> None:
    """Print the loss curve beside that of plain jax.jit, as data."""
    rows = list(zip(report["losses"], report["losses_plain"], strict=True))
    if not rows:
        return
    finite = [x for row in rows for x in row if math.isfinite(x)]
    top, low = max(finite, default=0.0), min(finite, default=0.0)
    lines = ["step  pipeline   plain jit"]
    for i, (a, b) in enumerate(rows, 1):
        bar = round(46 * (a - low) / (top - low)) if top > low and math.isfinite(a) else 0
        lines.append(f"{i:4}  {a:8.5f}   {b:8.5f}   {'.' * bar}{'o' if math.isfinite(a) else '?'}")
    data("\n".join(lines))


def _summary(report: dict[str, Any], differs: bool, on_cpu: bool) -> str:
    """Return what a reader wants first: whether the numbers agree, how long a step takes, and what it consists of."""
    compared = "differs from" if differs else "computes the same as"
    if not {"loss_error", "gradient_error"} & report.keys():
        compared = "has neither loss nor gradients to compare with"
    shapes = [str(shape) for shape in report["meshes"].values()]
    if len(set(shapes)) == 1:
        meshes = f"{listed(list(report['meshes']), 8)}, each {shapes[0]}"
    else:
        meshes = listed([f"{name} {shape}" for name, shape in report["meshes"].items()], 8)
    rows = {}
    if "loss_error" in report:
        rows["losses"] = f"differ by at most {report['loss_error']:.1e}"
    if "gradient_error" in report:
        rows["gradients"] = f"differ by at most {report['gradient_error']:.1e} of their norm"
    rows["step time"] = f"{1000 * report['step_seconds']:.1f} ms, "
    rows["step time"] += f"plain jax.jit on one device {1000 * report['step_seconds_plain']:.1f} ms"
    if on_cpu:
        rows[""] = "(CPU devices share the cores, so this does not show the speedup of a pipeline)"
    if report["tokens_per_second"] is not None:
        rows["tokens"] = f"{report['tokens_per_second']:,.0f} per second"
    rows["model FLOPs"] = f"{report['model_flops']:.3g} per step, {report['model_flops_per_second']:.3g} per second"
    if report["mfu"] is not None:
        rows["MFU"] = f"{report['mfu']:.1%} of {report['devices']} devices"
    rows |= {
        "meshes": meshes,
        "schedule": f"{report['schedule']}, bubble {report['bubble_planned']:.1%} if transfers were free, "
        f"{report['bubble_measured']:.1%} measured",
        "programs": f"{report['distinct_programs']} distinct, {report['fragments']} fragments per step",
        "transfers": f"{report['transfers']} per step, {report['transferred_bytes']:,} bytes",
        "peak memory": f"{max(report['peak_bytes_per_device'].values()):,} bytes per device, predicted",
    }
    measured = {mesh: most for mesh, most in report["measured_peak_bytes_per_device"].items() if most is not None}
    if measured:
        mesh = max(measured, key=lambda mesh: measured[mesh])
        predicted = report["peak_bytes_per_device"][mesh]
        rows["measured peak"] = f"{measured[mesh]:,} bytes on {mesh}, predicted {predicted:,}"
    rows["compile time"] = (
        f"trace {report['trace_seconds']:.1f} s, passes {report['pass_seconds']:.1f} s of CPU time, "
        f"XLA {report['xla_seconds']:.1f} s"
    )
    title = f"{report['program']} {compared} plain jax.jit"
    return "\n".join([title, *(f"  {name:15}{value}" for name, value in rows.items())])
