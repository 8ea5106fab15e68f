"""`mpmd-trace run`: compile, train or evaluate, compare with plain jax.jit, report."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.api.processes import check_joined, fetch, initialize
from mpmd_trace.api.step_stats import counted_memory
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.diagnostics.messages import MpmdError, listed
from mpmd_trace.frontend.errors import at_users_place, place_of, problem
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.report.curves import curves_svg
from mpmd_trace.report.files import write_folder
from mpmd_trace.report.placement_reasons import reasons
from mpmd_trace.report.snapshots import Snapshots
from mpmd_trace.report.step_trace import step_trace
from mpmd_trace.report.timeline import FragmentActions, bubble, measured_timeline, planned_timeline
from mpmd_trace.schedules import draw, to_html, to_svg
from mpmd_trace.scheduling.utilization import mfu, model_flops
from mpmd_trace_cli import placement_report
from mpmd_trace_cli.console import as_json, compiling, data, progress, rounding_hint, say
from mpmd_trace_cli.files import write_text
from mpmd_trace_cli.launch import is_launched
from mpmd_trace_cli.program import check_arguments, copied, failed_while_running, load_program, user_error
from mpmd_trace_cli.status import CallError
from mpmd_trace_devtools.numbers import difference, on_one_device

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

    with progress() as shown:
        task = shown.add_task("trace", total=1, info=program.name)
        started = time.perf_counter()
        jitted = program.jitted()
        snapshots, actions = Snapshots(), FragmentActions()
        lowered = jitted.lower_lazily(*program.args, hooks=[snapshots, actions] if first else [])
        traced_module = parse(lowered.traced.mlir_text())
        snapshots.start(traced_module)
        trace_seconds = time.perf_counter() - started
        shown.update(task, completed=1)
        plain = program.plain()
        ahead = threading.Thread(target=_compile_ahead, args=(plain, program.args), daemon=True)
        if processes == 1:
            ahead.start()
        task = shown.add_task("passes", total=1, info="")
        partitioned = lowered.partitioned
        pass_seconds = sum(one.seconds for one in partitioned.runs)  # CPU, without snapshots
        shown.update(task, total=len(partitioned.runs), completed=len(partitioned.runs))
        started = time.perf_counter()
        compiled = lowered.compile(progress=compiling(shown))
        xla_seconds = time.perf_counter() - started

        def plainly() -> dict[str, Any]:
            task = shown.add_task("plain jax.jit", total=program.steps, info="compiling")
            told: Callable[[int, str], Any] = lambda i, loss: shown.update(task, completed=i, info=loss)  # noqa: E731
            return _steps(program, plain, told, on_one_device)

        reference = {}
        if processes == 1:  # other processes must not wait for it
            ahead.join()
            reference = plainly()
        before = counted_memory(compiled.program.topology)
        task = shown.add_task("pipeline", total=program.steps, info="")
        copy = copied if program.donate_argnums else _as_they_are
        result = _steps(
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
        if not first:
            return {}
        reference = reference or plainly()

    problems, errors = compare_steps(program, result, reference)
    plan = compiled.program.plan
    returning = _returning(compiled, result["carried"])
    planned = planned_timeline(plan, actions, timelines)
    best = min(timelines, key=lambda t: t.seconds)
    measured = measured_timeline(plan, actions, best)
    title, names = f"{program.name}: one step", list(plan.meshes)
    overview = draw(planned, measured, title=title, names=names, width=WINDOW)
    detailed = draw(planned, measured, title=title, names=names)
    collectives = compiled.collectives()
    report: dict[str, Any] = {
        "program": program.name,
        "schedule": lowered.schedule.name,
        "meshes": {n: dict(m.shape) for n, m in program.config.topology.items()},
        "fragments": len(plan.runs),
        "distinct_programs": len(plan.programs),
        "transfers": sum(len(t.outputs) for t in plan.transfers),
        "transferred_bytes": plan.transferred_bytes,
        "returning_bytes": plan.bytes_of(argument for argument, _ in returning),
        "bubble_planned": round(bubble(planned), 4),
        "bubble_measured": round(bubble(measured), 4),
        "step_seconds": round(result["seconds"], 5),
        "step_seconds_plain": round(reference["seconds"], 5),
        **_utilization(program, traced_module, result["seconds"], peak),
        "trace_seconds": round(trace_seconds, 3),
        "pass_seconds": round(pass_seconds, 3),
        "xla_seconds": round(xla_seconds, 3),
        "passes": {f"{r.index + 1:03d} {r.spec}": round(1000 * r.seconds, 2) for r in partitioned.runs if r.changed},
        "peak_bytes_per_device": {m: a.peak for m, a in compiled.memory_analysis().items()},
        # What plain jax.jit has used before hides what is less.
        "measured_peak_bytes_per_device": {m: most if most > before[m] else None for m, most in after.items()},
        "collectives": placement_report.collectives_data(collectives),
        "steps": program.steps,
        "losses": result["losses"],
        "losses_plain": reference["losses"],
        **errors,
    }
    held = compiled.placement_report()
    why = reasons(held, lowered)
    files: dict[str, str | bytes] = {
        "report.json": as_json(report) + "\n",
        "placement.json": as_json(placement_report.as_data(held, why)) + "\n",
        "plan.txt": str(plan),
        "timeline.svg": to_svg(overview),
        "timeline.html": to_html(detailed, title, overview=overview),
    }
    if result["losses"]:
        files["losses.csv"] = _csv(result["losses"], reference["losses"])
        curves = {"plain jax.jit, one device": reference["losses"], "pipeline": result["losses"]}
        files["losses.svg"] = curves_svg(curves, title=f"{program.name}: loss")
    # Without diffs, which would take as long as the passes: `mpmd-trace diff OUT A B` makes those that are wanted.
    for name, text in snapshots.files():
        files[f"passes/{name}"] = text
    write_folder(out, files.items())
    if trace is not None:
        write_text(trace, step_trace(program.name, compiled.program, partitioned.module, actions, timelines))
        say(f"wrote {trace}: open it in https://ui.perfetto.dev")
    if not quiet:
        print_losses(report)
        on_cpu = all(d.platform == "cpu" for mesh in program.config.topology.values() for d in mesh.devices.flat)
        say("\n" + _summary(report, bool(problems), on_cpu))
        told = placement_report.as_text(held, why, file, returning=False)
        say("\n" + told + placement_report.collectives_text(collectives))
    _say_what_returns(plan, returning, [leaf.name for leaf in lowered.traced.inputs], report["returning_bytes"])
    written = [f"  {name:15}{what}" for name, what in FILES.items() if name in files]
    say("\n".join([f"wrote {out}/:", *written, f"  {'passes/':15}the program after each pass that changed it"]))
    if not quiet:
        say(f"mpmd-trace explain {file} says what is where and why; mpmd-trace explore {file} shows every pass")
    if problems:
        raise MpmdError("\n".join(problems))
    return report


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


def _compile_ahead(plain: Any, args: Any) -> None:
    """Compile plain `jax.jit` while the passes run, which leave all cores but one idle.

    JAX keeps the result for the first call.  That one raises what is wrong, too.
    """
    with contextlib.suppress(Exception):
        plain.lower(*on_one_device(args)).compile()


def _as_they_are(args: Any) -> Any:
    return args


def _steps(
    program: Any,
    step: Any,
    shown: Callable[[int, str], Any],
    each: Callable[[Any], Any] = _as_they_are,
    first: Callable[[Any], Any] = _as_they_are,
    get: Callable[[Any], Any] = _as_they_are,
) -> dict[str, Any]:
    """Run all steps; gradients of the first one, losses, and seconds per step (the first one left out).

    Also the results that are passed on to the next step as they are, as (argument, result) pairs.

    `each` makes the arguments of every step what the step can take, `first` those of the first step, and `get` fetches
    numbers from where they are.
    """
    args = first(program.args)
    losses: list[float] = []
    gradients: list[tuple[str, Any]] = []
    seconds: list[float] = []
    carried: list[tuple[int, int]] = []
    for i in range(program.steps):
        args = each(args)
        started = time.perf_counter()
        try:
            result = jax.block_until_ready(step(*args))
        except MpmdError as error:
            # Arguments: those of the program, or what it makes of a result.
            raise at_users_place(error, place_of(program.advance) if i else program.where) from None
        except Exception as error:
            if user_error(error) is not None:
                raise
            raise failed_while_running(error, program.where) from error
        seconds.append(time.perf_counter() - started)
        if program.loss is not None:
            losses.append(_number(program, get(program.loss(result))))
        if i == 0 and program.gradients is not None:
            # Now, since the next step may get and donate them.
            gradients = _gradients(program, get(program.gradients(result)))
        if program.advance is not None and i + 1 < program.steps:
            following = program.advance(i, args, result)
            what = "the arguments that advance of the mpmd_trace.Program returns"
            checked = check_arguments(program, following, what, place_of(program.advance))
            if i == 0 and program.loss is not None:
                _check_repeatable(program, args, result, checked)
            args = checked
            made = {id(leaf): number for number, leaf in enumerate(program.arrays(result))}
            leaves = program.arrays(program.dynamic(args))
            carried = [(number, made[id(leaf)]) for number, leaf in enumerate(leaves) if id(leaf) in made]
        shown(i + 1, f"loss {losses[-1]:.4f}" if losses else "")
    timed = sorted(seconds[1:] or seconds)
    return {"gradients": gradients, "losses": losses, "carried": carried, "seconds": timed[len(timed) // 2]}


def _check_repeatable(program: Any, args: tuple[Any, ...], result: Any, following: tuple[Any, ...]) -> None:
    """Raise `MpmdError` when `advance` gives other arguments than before, as one that draws from an iterator does."""
    try:
        again = program.advance(0, args, result)
    except StopIteration:
        changed = ["StopIteration"]
    else:
        before, after = (dict(jax.tree_util.tree_leaves_with_path(each)) for each in (following, again))
        changed = [f"args{jax.tree_util.keystr(path)}" for path in before if not _same(before[path], after.get(path))]
    if changed:
        text = (
            f"advance of the mpmd_trace.Program returns something else when it is called again ({changed[0]}), so "
            "plain jax.jit and the pipeline would not train on the same batches. Its result may depend on its "
            "arguments alone: take batches from a list by the number of the step, not from an iterator"
        )
        raise MpmdError([problem(text, place_of(program.advance))])


def _same(one: Any, other: Any) -> bool:
    """Return whether two leaves are equal; of what this process cannot read, whether they are of one kind."""
    if one is other or type(one) is not type(other):
        return one is other
    if not isinstance(one, jax.Array | np.ndarray | np.generic | int | float | complex):
        return True
    if isinstance(one, jax.Array) and jax.numpy.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = (jax.random.key_data(key) for key in (one, other))
    if not all(x.is_fully_addressable for x in (one, other) if isinstance(x, jax.Array)):
        return True
    a, b = np.asarray(one), np.asarray(other)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _gradients(program: Any, gradients: Any) -> list[tuple[str, Any]]:
    """Return the gradients of a result, with their names.  Raises `MpmdError` for what cannot be compared."""
    result, wrong = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        if isinstance(leaf, int | float | complex):
            leaf = np.asarray(leaf)
        dtype = getattr(leaf, "dtype", None)
        if dtype == jax.dtypes.float0:
            continue  # of an integer
        if dtype is None or not any(jax.numpy.issubdtype(dtype, kind) for kind in (np.number, np.bool_)):
            kind = type(leaf).__name__ if dtype is None else f"array of {dtype}"
            wrong.append(f"{jax.tree_util.keystr(path) or 'what it returns'} is of type {kind}, which has no numbers")
            continue
        wide = np.complex128 if jax.numpy.issubdtype(dtype, jax.numpy.complexfloating) else np.float64
        result.append((jax.tree_util.keystr(path), np.asarray(leaf, dtype=wide)))
    if not result and not wrong:
        wrong.append("it returns no arrays at all")
    if wrong:
        what = "gradients of the mpmd_trace.Program returns the gradients in a result"
        raise MpmdError([problem(f"{what}, but {text}", place_of(program.gradients)) for text in wrong])
    return result


def _number(program: Any, value: Any) -> float:
    """Return the loss as a number.  Raises `MpmdError` when it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        shape = getattr(value, "shape", None)
        kind = type(value).__name__ if shape is None else f"array of shape {shape}"
        message = f"loss of the mpmd_trace.Program returns one number of a result, not a value of type {kind}"
        raise MpmdError([problem(message, place_of(program.loss))]) from None


def compare_steps(program: Any, result: dict[str, Any], reference: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return what differs by more than the program's tolerances, in words, and how large the differences are."""
    problems: list[str] = []
    errors: dict[str, Any] = {}
    if program.gradients is not None:
        if [p for p, _ in result["gradients"]] != [p for p, _ in reference["gradients"]]:
            message = "gradients of the mpmd_trace.Program gives other arrays for the pipeline than for plain jax.jit"
            raise MpmdError([problem(message, place_of(program.gradients))])
        pairs = zip(result["gradients"], reference["gradients"], strict=True)
        differences = [(difference(a, b), path) for (path, a), (_, b) in pairs]
        worst, where = max(differences, key=lambda d: d[0], default=(0.0, ""))
        errors["gradient_error"] = worst
        errors["gradient_error_at"] = where
        if not worst <= program.gradient_tolerance:
            problems.append(
                f"the gradient of {where} differs from plain jax.jit by {worst:.2e} of its norm "
                f"(tolerance {program.gradient_tolerance:.0e})"
                + rounding_hint(worst, "gradient_tolerance= of the Program accepts more")
            )
    losses = list(zip(result["losses"], reference["losses"], strict=True))
    if losses:
        differs = [difference(a, b) for a, b in losses]
        errors["loss_error"] = worst = max(differs)
        first = next((i for i, one in enumerate(differs) if not one <= program.loss_tolerance), None)
        if first is not None:
            a, b = losses[first]
            later = f"; later losses differ by up to {worst:.2e}" if worst > differs[first] else ""
            problems.append(
                f"losses differ from plain jax.jit, first in step {first + 1}: the loss is {a:.7g} and should be "
                f"{b:.7g}, a difference of {differs[first]:.2e} (tolerance {program.loss_tolerance:.0e}){later}"
                + rounding_hint(worst, "loss_tolerance= of the Program accepts more")
            )
    return problems, errors


def _csv(ours: Sequence[float], theirs: Sequence[float]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["step", "pipeline", "plain_jit"])
    writer.writerows([i, *row] for i, row in enumerate(zip(ours, theirs, strict=True), 1))
    return buffer.getvalue()


def print_losses(report: dict[str, Any]) -> None:
    """The loss curve beside plain jax.jit's, as data."""
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
