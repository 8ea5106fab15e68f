"""`mpmd-trace run`: compile, train or evaluate, compare with plain jax.jit, report."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Sequence
from typing import Any

from ..ir.diagnostics import MpmdError
from .talk import console, progress, say

__all__ = ["run_program"]


def run_program(file: str, out: str, settings: Sequence[str], *, quiet: bool = False) -> dict[str, Any]:
    """Run the program of `file`, write the report to `out`, and give its numbers.

    Raises `MpmdError` when the program does not compile or differs from plain `jax.jit` by more than its
    tolerances (the report is written all the same).
    """
    from ..program import load_program
    from ..report.files import check_folder, write_folder

    check_folder(out)
    program = load_program(file, settings)
    import jax

    from ..report.snapshots import Snapshots
    from ..report.timeline import FragmentActions, bubble, measured_timeline, planned_timeline
    from ..schedules import draw, to_svg
    from ..text import parse

    with progress() as shown:
        task = shown.add_task("trace", total=1, info=program.name)
        started = time.perf_counter()
        jitted = program.jitted()
        snapshots, actions = Snapshots(), FragmentActions()
        lowered = jitted.lower(*program.args, hooks=[snapshots, actions])
        snapshots.start(parse(lowered.traced.mlir_text()))
        trace_seconds = time.perf_counter() - started
        shown.update(task, completed=1)
        task = shown.add_task("passes", total=1, info="")
        started = time.perf_counter()
        partitioned = lowered.partitioned
        pass_seconds = time.perf_counter() - started
        shown.update(task, total=len(partitioned.runs), completed=len(partitioned.runs))
        task = shown.add_task("XLA", total=None, info="")
        started = time.perf_counter()

        def compiled_one(done: int, total: int, name: str) -> None:
            shown.update(task, total=total, completed=done, info=name[:40])

        compiled = lowered.compile(compiled_one)
        xla_seconds = time.perf_counter() - started
        task = shown.add_task("plain jax.jit", total=program.steps, info="compiling")
        plain = jax.jit(program.fn, static_argnums=program.static_argnums)
        reference = _steps(program, plain, lambda i, loss: shown.update(task, completed=i, info=loss))
        task = shown.add_task("pipeline", total=program.steps, info="")
        result = _steps(program, compiled, lambda i, loss: shown.update(task, completed=i, info=loss))
        task = shown.add_task("measure", total=3, info="")
        timelines = []
        for i in range(3):
            timelines.append(_measure(program, compiled))
            shown.update(task, completed=i + 1)

    problems, errors = _compare(program, result, reference)
    plan = compiled.program.plan
    planned = planned_timeline(plan, actions, timelines)
    best = min(timelines, key=lambda t: t.seconds)
    measured = measured_timeline(plan, actions, best)
    picture = draw(planned, measured, title=f"{program.name}: one step")
    report: dict[str, Any] = {
        "program": program.name,
        "schedule": lowered.schedule.name,
        "meshes": {n: dict(m.shape) for n, m in program.config.topology.items()},
        "fragments": len(plan.runs),
        "distinct_programs": len(plan.programs),
        "transfers": sum(len(t.outputs) for t in plan.transfers),
        "transferred_bytes": plan.transferred_bytes,
        "bubble_planned": round(bubble(planned), 4),
        "bubble_measured": round(bubble(measured), 4),
        "step_seconds": result["seconds"],
        "step_seconds_plain": reference["seconds"],
        "trace_seconds": round(trace_seconds, 3),
        "pass_seconds": round(pass_seconds, 3),
        "xla_seconds": round(xla_seconds, 3),
        "passes": {
            f"{r.index + 1:03d} {r.spec}": round(1000 * r.seconds, 2) for r in partitioned.runs if r.changed
        },
        "peak_bytes_per_device": {m: a.peak for m, a in compiled.memory_analysis().items()},
        "steps": program.steps,
        "losses": result["losses"],
        "losses_plain": reference["losses"],
        **errors,
    }
    files: dict[str, str | bytes] = {
        "report.json": json.dumps(report, indent=1) + "\n",
        "plan.txt": str(plan),
        "timeline.svg": to_svg(picture),
    }
    if result["losses"]:
        from ..report.curves import curves_svg

        files["losses.csv"] = _csv(result["losses"], reference["losses"])
        files["losses.svg"] = curves_svg(
            {"plain jax.jit, one device": reference["losses"], "pipeline": result["losses"]},
            title=f"{program.name}: loss",
        )
    for name, text in snapshots.files(diffs=True):
        files[f"passes/{name}"] = text
    write_folder(out, files.items())
    if not quiet:
        _print(report)
        console().print(_tables(report))
    say(f"wrote {out}/: report.json, timeline.svg, plan.txt, losses.svg, passes/ ({len(snapshots.texts)})")
    if problems:
        raise MpmdError("\n".join(problems))
    return report


def _steps(program: Any, step: Any, shown: Any) -> dict[str, Any]:
    """Run all steps; results of the first one, losses, and seconds per step (the first one left out)."""
    import jax

    from ..frontend.errors import at_users_place, place_of
    from ..program import check_arguments

    args = program.args
    losses: list[float] = []
    first: Any = None
    seconds: list[float] = []
    for i in range(program.steps):
        started = time.perf_counter()
        try:
            result = jax.block_until_ready(step(*args))
        except MpmdError as error:
            # Arguments: those of the program, or what it makes of a result.
            raise at_users_place(error, place_of(program.advance) if i else program.where) from None
        seconds.append(time.perf_counter() - started)
        if program.loss is not None:
            losses.append(_number(program, result))
        if i == 0:
            first = result
        if program.advance is not None and i + 1 < program.steps:
            following = program.advance(i, args, result)
            what = "the arguments that advance of the mpmd_trace.Program returns"
            args = check_arguments(program, following, what, place_of(program.advance))
        shown(i + 1, f"loss {losses[-1]:.4f}" if losses else "")
    timed = sorted(seconds[1:] or seconds)
    return {"first": first, "losses": losses, "seconds": round(timed[len(timed) // 2], 5)}


def _number(program: Any, result: Any) -> float:
    """The loss in a result.  Raises `MpmdError` when it is no number."""
    from ..frontend.errors import place_of, problem

    found = program.loss(result)
    try:
        return float(found)
    except (TypeError, ValueError):
        shape = getattr(found, "shape", None)
        kind = type(found).__name__ if shape is None else f"array of shape {shape}"
        message = f"loss of the mpmd_trace.Program returns one number of a result, not a value of type {kind}"
        raise MpmdError([problem(message, place_of(program.loss))]) from None


def _measure(program: Any, compiled: Any) -> Any:
    import jax

    result, timeline = compiled.measure(*program.args)
    jax.block_until_ready(result)
    return timeline


def _compare(
    program: Any, result: dict[str, Any], reference: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    import jax
    import numpy as np

    problems: list[str] = []
    errors: dict[str, Any] = {}
    if program.gradients is not None:
        worst, where = 0.0, ""
        ours = jax.tree_util.tree_leaves_with_path(program.gradients(result["first"]))
        theirs = jax.tree_util.tree_leaves(program.gradients(reference["first"]))
        for (path, a), b in zip(ours, theirs, strict=True):
            wanted = np.asarray(b, dtype=np.float64)
            norm = float(np.linalg.norm(wanted))
            error = float(np.linalg.norm(np.asarray(a, dtype=np.float64) - wanted))
            relative = error / norm if norm else error
            if relative >= worst:
                worst, where = relative, jax.tree_util.keystr(path)
        errors["gradient_error"] = worst
        errors["gradient_error_at"] = where
        if not worst <= program.gradient_tolerance:
            problems.append(
                f"the gradient of {where} differs from plain jax.jit by {worst:.2e} of its norm "
                f"(tolerance {program.gradient_tolerance:.0e})"
            )
    pairs = list(zip(result["losses"], reference["losses"], strict=True))
    if pairs:
        worst = max(abs(a - b) / max(abs(b), 1e-30) for a, b in pairs)
        errors["loss_error"] = worst
        if not worst <= program.loss_tolerance:
            problems.append(
                f"a loss differs from plain jax.jit by {worst:.2e} (tolerance {program.loss_tolerance:.0e})"
            )
    return problems, errors


def _csv(ours: Sequence[float], theirs: Sequence[float]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["step", "pipeline", "plain_jit"])
    for i, row in enumerate(zip(ours, theirs, strict=True), 1):
        writer.writerow([i, *row])
    return buffer.getvalue()


def _print(report: dict[str, Any]) -> None:
    """The loss curve beside plain jax.jit's, as data."""
    from .talk import data

    rows = list(zip(report["losses"], report["losses_plain"], strict=True))
    if not rows:
        return
    top, low = max(max(r) for r in rows), min(min(r) for r in rows)
    lines = ["step  pipeline   plain jit"]
    for i, (a, b) in enumerate(rows, 1):
        bar = round(46 * (a - low) / (top - low)) if top > low else 0
        lines.append(f"{i:4}  {a:8.5f}   {b:8.5f}   {'.' * bar}o")
    data("\n".join(lines))


def _tables(report: dict[str, Any]) -> Any:
    from rich.columns import Columns
    from rich.table import Table

    summary = Table(title=f"{report['program']}, {report['schedule']}", show_header=False)
    rows = {
        "meshes": ", ".join(f"{n} {s}" for n, s in report["meshes"].items()),
        "fragments per step": report["fragments"],
        "distinct programs": report["distinct_programs"],
        "transfers per step": report["transfers"],
        "bytes moved per step": f"{report['transferred_bytes']:,}",
        "bubble planned / measured": f"{report['bubble_planned']:.1%} / {report['bubble_measured']:.1%}",
        "step time": f"{1000 * report['step_seconds']:.1f} ms",
        "step time of plain jax.jit": f"{1000 * report['step_seconds_plain']:.1f} ms",
        "trace, passes, XLA": (
            f"{report['trace_seconds']:.1f} s, {report['pass_seconds']:.1f} s, {report['xla_seconds']:.1f} s"
        ),
        "largest peak per device": f"{max(report['peak_bytes_per_device'].values()):,} bytes",
    }
    if "gradient_error" in report:
        rows["gradients differ by at most"] = f"{report['gradient_error']:.1e} of their norm"
    if "loss_error" in report:
        rows["losses differ by at most"] = f"{report['loss_error']:.1e}"
    for name, value in rows.items():
        summary.add_row(name, str(value))
    passes = Table(title="passes that changed the program (CPU ms)")
    passes.add_column("pass")
    passes.add_column("ms", justify="right")
    for name, milliseconds in report["passes"].items():
        short = name if len(name) <= 60 else name[:57] + "..."
        passes.add_row(short, f"{milliseconds:.1f}")
    return Columns([summary, passes])
