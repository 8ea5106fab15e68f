"""`mpmd-trace schedule`: list, show, check, simulate, compare and search pipeline schedules.

Results go to stdout, diagnostics to stderr, and exit statuses are those of all commands (`status.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import warnings
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.schedules import (
    ENTRIES,
    Costs,
    Schedule,
    ScheduleError,
    Simulation,
    chrome_trace,
    draw,
    explain,
    get_schedule,
    grid,
    meshes_over,
    path_report,
    report,
    schedule_names,
)
from mpmd_trace.schedules import check as check_schedule
from mpmd_trace.schedules import search as find
from mpmd_trace.schedules._errors import counted
from mpmd_trace_cli import _schedule_options as opt
from mpmd_trace_cli import _schedule_output as out
from mpmd_trace_cli.console import say
from mpmd_trace_cli.files import check_output
from mpmd_trace_cli.status import CallError

app = typer.Typer(
    help="Pipeline schedules: list, show, check, simulate, compare, search.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

P = ParamSpec("P")
R = TypeVar("R")


def explained(command: Callable[P, R]) -> Callable[P, R]:
    """Make wrong requests for schedules errors of the call, and warnings one line each."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
                warnings.simplefilter("always")
                return command(*args, **kwargs)
        except ScheduleError as error:
            raise CallError(str(error)) from None

    return wrapped


@app.command("list")
@explained
def list_(as_json: opt.Json = False) -> None:
    """List the schedules of the library."""
    if as_json:
        keys = ("name", "aliases", "summary", "placement", "options", "needs", "source")
        typer.echo(json.dumps([{key: getattr(e, key) for key in keys} for e in ENTRIES], indent=2))
        return
    width = max(len(e.name) for e in ENTRIES)
    for e in ENTRIES:
        needs = f" [{e.needs}]" if e.needs else ""
        typer.echo(f"{e.name:<{width}}  {e.summary}{needs}")
        if e.aliases:
            typer.echo(f"{'':<{width}}  also: {', '.join(e.aliases)}")


@app.command()
@explained
@opt.grouped
def show(
    source: opt.ScheduleOptions,
    prices: opt.CostOptions,
    play: opt.PlayOptions,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="grid, orders, csv, svg, html, pdf, png, trace or json; "
            "default: from the extension of --output, else grid.",
        ),
    ] = None,
    output: opt.Output = None,
    width: Annotated[
        float | None,
        typer.Option(help="Width of a picture in inches, with a fixed font size; characters per line of a grid."),
    ] = None,
    mesh_names: Annotated[str | None, typer.Option(help="Names of the meshes in a picture: a,b,c.")] = None,
) -> None:
    """Draw a schedule: text grid, orders, CSV, SVG, HTML, PDF, PNG or Chrome/Perfetto trace."""
    form = form or out.form_of(output)
    forms = ("grid", "orders", "csv", *out.PICTURES, "trace", "json")
    if form not in forms:
        raise CallError(f"unknown format '{form}'; use {', '.join(forms)}")
    if width is not None and not 0 < width < math.inf:
        raise CallError(f"--width is {width:g}; it must be a number above 0")
    costs = prices.costs()
    schedule = source.load(play, costs)
    if form == "csv":
        out.write(schedule.to_csv(), output)
    elif form == "orders":
        out.write(out.orders(schedule), output)
    elif form == "json":
        out.write(json.dumps(_described(schedule), indent=2) + "\n", output)
    else:
        result = play.run(schedule, costs, play.fraction_for(source.name))
        if form == "grid":
            out.write(grid(result, max(1, int(width)) if width else out.terminal_width()), output)
        elif form == "trace":
            out.write(chrome_trace(result), output)
        else:
            names = mesh_names.split(",") if mesh_names else ()
            out.save_picture(draw(result, names=names, width=width), form, output)


@app.command()
@explained
@opt.grouped
def check(
    source: opt.ScheduleOptions,
    memory: opt.MemoryOptions,
    blocking: Annotated[
        bool, typer.Option("--blocking", help="Also check for deadlocks if transfers are by rendezvous.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Check a schedule of the library or a CSV table; exit status 1 if it has problems."""
    fraction = memory.fraction_for(source.name)
    schedule = source.load(memory, checked=False)
    problems = check_schedule(
        schedule, memory_limit=memory.limit, weight_fraction=1.0 if fraction is None else fraction, blocking=blocking
    )
    if as_json:
        rows = [dataclasses.asdict(problem) for problem in problems]
        typer.echo(json.dumps({"schedule": schedule.name, "ok": not problems, "problems": rows}, indent=2))
    elif problems:
        typer.echo(f"{schedule.name}: {counted(len(problems), 'problem')}\n{explain(schedule, problems)}")
    else:
        typer.echo(f"{schedule.name}: ok, {len(schedule)} actions on {counted(schedule.meshes, 'mesh')}")
    if problems:
        raise typer.Exit(1)


@app.command()
@explained
@opt.grouped
def simulate(
    source: opt.ScheduleOptions,
    prices: opt.CostOptions,
    play: opt.PlayOptions,
    orders: opt.Orders = False,
    critical_path: Annotated[bool, typer.Option("--critical-path", help="Also print the critical path.")] = False,
    memory_curve: Annotated[bool, typer.Option("--memory-curve", help="Also print the activations over time.")] = False,
    times: Annotated[bool, typer.Option("--times", help="Also print the start and end of each action.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Simulate a schedule: step time, bubbles, idle time and memory.

    Costs are per mesh, for all of its chunks together: one chunk of V costs 1/V.
    """
    costs = prices.costs()
    limit = play.limit
    schedule = source.load(play, costs)
    result = play.run(schedule, costs, play.fraction_for(source.name))
    if over := meshes_over(result.peak_activations, limit):
        many = ", ".join(map(str, over))
        say(f"warning: meshes {many} hold more than {play.memory_limit} microbatches of activations")
    if as_json:
        data = result.summary()
        if limit is not None:
            data["memory_limit"] = limit
            data["within_memory_limit"] = not over
        if orders:
            data["orders"] = schedule.texts()
        if critical_path:
            data["critical_path"] = [_event(e) for e in result.critical_path]
        if memory_curve:
            data["memory_curve"] = [[list(point) for point in result.memory_curve(m)] for m in range(schedule.meshes)]
        if times:
            data["times"] = [[_event(e) for e in row] for row in result.timeline.rows]
        typer.echo(json.dumps(data, indent=2))
        return

    typer.echo(report(result), nl=False)
    if critical_path:
        typer.echo(path_report(result), nl=False)
    if orders:
        typer.echo(out.orders(schedule), nl=False)
    if memory_curve:
        for mesh in range(schedule.meshes):
            points = " ".join(f"{t:g}:{held:g}" for t, held in result.memory_curve(mesh))
            typer.echo(f"memory {mesh}: {points}")
    if times:
        for e in itertools.chain(*result.timeline.rows):
            typer.echo(f"{e.mesh} {e.step} {e.start:g} {e.end:g}")


@app.command()
@explained
@opt.grouped
def compare(
    library: opt.LibraryOptions,
    prices: opt.CostOptions,
    play: opt.PlayOptions,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Schedules or CSV tables; default: all that fit. NAME/V means V chunks.", autocompletion=schedule_names
        ),
    ] = None,
    output: opt.Output = None,
    as_json: opt.Json = False,
) -> None:
    """Simulate several schedules side by side, with the gain over 1F1B."""
    costs = prices.costs()
    limit = play.limit
    asked = bool(names)
    if not asked and None in (library.meshes, library.microbatches):
        raise CallError("compare needs --meshes and --microbatches, or the names of CSV tables")
    wanted = names or [e.name for e in ENTRIES if e.name != "none" and not e.forward_only]
    results: list[tuple[str, Simulation]] = []
    for text in wanted:
        name, chunks = opt.name_and_chunks(text, library.chunks)
        source = opt.ScheduleOptions(name=name, meshes=library.meshes, microbatches=library.microbatches, chunks=chunks)
        try:
            results.append((text, play.run(source.load(play, costs), costs, play.fraction_for(name))))
        except ScheduleError as error:
            if asked:
                raise
            say(f"left out: {str(error).splitlines()[0]}")
    if not results:
        raise CallError("nothing to compare")
    base = _baseline(results[0][1].schedule, costs, play)
    if output is not None:
        out.draw_all([r for _, r in results], output)
    if as_json:
        rows = []
        for text, r in results:
            row = {"name": text, **r.summary()}
            gain = opt.gain_over(base, r)
            row["gain_over_1f1b"] = None if gain is None else round(gain, 6)
            if limit is not None:
                row["within_memory_limit"] = not meshes_over(r.peak_activations, limit)
            rows.append(row)
        typer.echo(json.dumps(rows, indent=2))
        return
    typer.echo(opt.table(results, base, limit), nl=False)
    say("bubble rates: by makespan, and by span (as in the zero-bubble papers); peak in microbatches of activations")


@app.command()
@explained
@opt.grouped
def search(
    sizes: opt.SizeOptions,
    prices: opt.CostOptions,
    memory_limit: opt.MemoryLimit = None,
    weight_fraction: Annotated[
        float, typer.Option(help="Fraction of the activations that a weight gradient keeps.")
    ] = 1.0,
    chunks: Annotated[str, typer.Option(help="Numbers of chunks per mesh to try, e.g. 1,2,4.")] = "1",
    measure: Annotated[str, typer.Option(help="What to minimize: makespan, or span if steps overlap.")] = "makespan",
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--no-exact", help="Prove optimality by mixed-integer programming; default: for small cases."
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Time limit of the exact solver in seconds.")] = 60.0,
    top: Annotated[int, typer.Option(help="Number of candidates to print.", min=1)] = 10,
    orders: opt.Orders = False,
    output: opt.Output = None,
    as_json: opt.Json = False,
) -> None:
    """Find the best schedule for given costs and memory; prove how good it is."""
    if measure not in ("makespan", "span"):
        raise CallError(f"unknown measure '{measure}'; use makespan or span")
    meshes, microbatches = sizes.meshes, sizes.microbatches
    if meshes is None or microbatches is None:
        raise CallError("search needs --meshes and --microbatches")
    check_output(str(output or "-"))
    costs, limit = prices.costs(), opt.limit_of(memory_limit)
    try:
        result = find(
            costs,
            limit,
            meshes=meshes,
            microbatches=microbatches,
            chunks=opt.whole_numbers(chunks, "chunks"),
            measure="span" if measure == "span" else "makespan",
            weight_fraction=weight_fraction,
            exact=exact,
            time_limit=time_limit,
        )
    except ScheduleError as error:
        if any(p.code == "memory" for p in error.problems):
            raise MpmdError(str(error)) from None  # a sensible question whose answer is no
        raise
    best = result.best
    if output is not None:
        out.write(best.schedule.to_csv(), output)
    if as_json:
        data: dict[str, Any] = {
            "best": best.name,
            "measure": result.measure,
            "lower_bound": round(result.lower_bound, 10),
            "gap": round(result.gap, 10),
            "proved": result.gap < 1e-6,
            "result": best.result.summary(),
            "candidates": [{"name": c.name, "fits": c.fits, **c.result.summary()} for c in result.candidates[:top]],
        }
        if orders:
            data["orders"] = best.schedule.texts()
        typer.echo(json.dumps(data, indent=2))
        return
    base = next((c.result.makespan for c in result.candidates if c.name == "1f1b"), None)
    typer.echo(opt.table([(c.name, c.result) for c in result.candidates[:top]], base, limit), nl=False)
    if result.gap < 1e-6:
        by = "the exact solver" if result.exact and result.exact.proved else "work, ramp and memory alone"
        proof = f"proved optimal by {by}"
    else:
        proof = f"at most {100 * result.gap:.2f} % above the bound {result.lower_bound:g}"
    typer.echo(f"best: {best.name}, {result.measure} {result.value(best):g}, {proof}")
    if orders:
        typer.echo(out.orders(best.schedule), nl=False)


def _event(e: Any) -> dict[str, Any]:
    return {"mesh": e.mesh, "action": str(e.step), "start": round(e.start, 10), "end": round(e.end, 10)}


def _described(schedule: Schedule) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "meshes": schedule.meshes,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "placement": list(schedule.placement.mesh_of),
        "placement_kind": schedule.placement.kind,
        "orders": schedule.texts(),
    }


def _baseline(first: Schedule, costs: Costs, play: opt.PlayOptions) -> float | None:
    """Return the makespan of 1F1B on the first schedule's meshes, where its costs apply."""
    try:
        plain = get_schedule("1f1b", first.meshes, first.microbatches)
        return dataclasses.replace(play, fused="block").run(plain, costs, None).makespan
    except ScheduleError:
        return None
