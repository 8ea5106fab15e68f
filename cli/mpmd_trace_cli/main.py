"""`mpmd-trace`: the commands and their options.  Those that need jax load it when they are called."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Annotated, NoReturn

import typer

from mpmd_trace import __version__
from mpmd_trace.passes.registry import PASSES, PIPELINES
from mpmd_trace_cli._plan_options import PlanOptions
from mpmd_trace_cli._schedule_options import grouped
from mpmd_trace_cli.inspect import diff_snapshots, dump_program, print_passes, show_program
from mpmd_trace_cli.plugins import load_passes
from mpmd_trace_cli.reduce import reduce_file
from mpmd_trace_cli.schedule import app as schedule_app
from mpmd_trace_cli.talk import data, from_here, guard, programs_talk, say

__all__ = ["app", "main"]

app = typer.Typer(
    name="mpmd-trace",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile a single-device JAX program into a pipeline over several meshes, and look at every step.",
)

File = Annotated[str, typer.Argument(help="FILE.py, FILE.py:name or package.module:name")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Out = Annotated[str, typer.Option("--out", help="The folder to write; replaced whole.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Overwrite a field of the program: steps=3.")]


def _version(wanted: bool) -> None:
    if wanted:
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib")]
        data(f"mpmd-trace {__version__} ({', '.join(versions)}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions and exit.")
    ] = False,
) -> None:
    """Options of all commands."""


@app.command()
@programs_talk
def run(
    file: File,
    out: Out = "out",
    settings: Settings = None,
    processes: Annotated[
        int, typer.Option(help="In how many processes on this machine; FILE calls mpmd_trace.initialize() then.")
    ] = 1,
    trace: Annotated[str | None, typer.Option(help="A file for three measured steps, for ui.perfetto.dev.")] = None,
    peak_flops: Annotated[
        float | None,
        typer.Option(help="Peak FLOP/s of one device, for MFU; known for common GPUs and TPUs (dense bfloat16)."),
    ] = None,
    json: Json = False,
) -> None:
    """Compile and run a program, compare it with plain jax.jit, and write a report."""
    from mpmd_trace_cli.launch import Job, is_launched, launch  # late: needs jaxlib

    if processes != 1 and not is_launched():
        raise typer.Exit(launch(Job(["-m", "mpmd_trace_cli.entry", *sys.argv[1:]], processes, first_is_plain=True)))
    from mpmd_trace_cli.run import run_program  # late: needs jax

    report = run_program(file, out, settings or [], trace=trace, peak=peak_flops, quiet=json)
    if json and report:
        data(report)


@app.command()
@programs_talk
def compile(
    file: File,
    out: Annotated[str, typer.Option("-o", "--out", help="The file to write, for mpmd_trace.load.")],
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Compile a program and write it to a file, which mpmd_trace.load runs without tracing and compiling."""
    from mpmd_trace_cli.compile import compile_program  # late: needs jax

    found = compile_program(file, out, settings or [])
    if json:
        data(found)


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    script: Annotated[str, typer.Argument(help="A Python script that calls mpmd_trace.initialize().")],
    arguments: Annotated[list[str] | None, typer.Argument(help="For the script.")] = None,
    processes: Annotated[int, typer.Option("-n", "--processes", help="How many processes to start.")] = 2,
    devices: Annotated[int | None, typer.Option(help="CPU devices of each process.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds without a sign of life that make a process an error (300).")
    ] = None,
    log_dir: Annotated[str | None, typer.Option(help="A folder for the output of each process, N.log.")] = None,
    restarts: Annotated[
        int, typer.Option(help="How often to start again, without the processes that failed, when one has.")
    ] = 0,
) -> None:
    """Run a script in several processes on this machine; the first that fails ends all."""
    from mpmd_trace_cli.launch import Job, launch  # late: needs jaxlib

    job = Job([script, *(arguments or [])], processes, devices, timeout, log_dir, restarts)
    raise typer.Exit(launch(job))


@app.command()
@programs_talk
def dump(
    file: File,
    out: Out = "dump",
    debug_info: Annotated[bool, typer.Option(help="Print source locations.")] = False,
    tree: Annotated[bool, typer.Option("--tree", help="Also each function, as -mlir-print-ir-tree-dir.")] = False,
    json: Json = False,
) -> None:
    """Write a numbered snapshot for each pass that changed something, with op counts, time and diff."""
    index = dump_program(file, out, debug_info, tree)
    if json:
        data({"passes": index})


@app.command()
@programs_talk
def explore(
    file: Annotated[str, typer.Argument(help="A program, a folder that dump or run wrote, or a module (.mlir).")],
    out: Annotated[str, typer.Option("--out", help="The folder to write; replaced whole.")] = "out/explore",
    measure: Annotated[bool, typer.Option("--measure", help="Also compile, run and measure the program.")] = False,
    errors: Annotated[
        bool, typer.Option("--errors", help="Also compute how far the results are off after each pass.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the pages on this machine until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(help="The port to serve on; 0 takes a free one.", min=0, max=65535)] = 0,
    settings: Settings = None,
) -> None:
    """Write pages for the browser: the program after each pass, values, the step in time, schedules."""
    from mpmd_trace_cli import explore as pages  # late: needs jax

    pages.explore(file, out, settings or [], measure=measure, errors=errors)
    if serve:
        pages.serve(out, port)


@app.command()
@programs_talk
def bisect(
    file: File,
    tolerance: Annotated[float | None, typer.Option(help="How far a result may be off, relative to its norm.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Look at every pass, without halving.")] = False,
    seconds: Annotated[float, typer.Option(help="How long to shrink what shows the fault; 0 for not.")] = 60.0,
    out: Annotated[str | None, typer.Option("--out", "-o", help="A file for that module.")] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Find the pass that first gives other numbers than plain jax.jit, and a small module that shows it."""
    from mpmd_trace_cli.bisect import bisect_program, tell  # late: needs jax

    report = bisect_program(file, settings or [], tolerance=tolerance, every=every, seconds=seconds, out=out)
    if json:
        data(report)
    else:
        tell(report)


@app.command()
@programs_talk
def show(file: File, stage: Annotated[str, typer.Option(help="jaxpr, ir, mpmd or plan")] = "mpmd") -> None:
    """Print a program: as traced by JAX, as IR with named computations, as exported, or as execution plan."""
    data(show_program(file, stage))


@app.command()
@programs_talk
def compare(
    file: File,
    lines: Annotated[int, typer.Option(help="How many lines of the first difference to print.")] = 20,
    out: Annotated[str | None, typer.Option(help="A folder for what differs; replaced whole.")] = None,
    execute: Annotated[bool, typer.Option(help="Also run what both engines make.")] = True,
    json: Json = False,
) -> None:
    """Partition with this package and with jaxlib's C++ partitioner; show where they differ."""
    from mpmd_trace_cli.compare import compare_program  # late: needs jax

    report = compare_program(file, lines=lines, out=out, execute=execute, as_json=json)
    if json:
        data(report)


@app.command()
@programs_talk
@grouped
def plan(file: File, options: PlanOptions, settings: Settings = None, json: Json = False) -> None:
    """Find the best stages, microbatches and schedule for a program, from the costs of its own parts."""
    from mpmd_trace_cli.plan import plan_program  # late: needs jax

    plan_program(file, options, settings or [], as_json=json)


@app.command()
@programs_talk
def check(
    file: File,
    processes: Annotated[
        int | None, typer.Option("--processes", "-n", help="Processes that share the devices; one a mesh without.")
    ] = None,
    process: Annotated[int | None, typer.Option(help="Print what this one does, action by action.")] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Prove that a program comes to its end on several processes, or print who waits for whom in a circle."""
    from mpmd_trace_cli.check import check_program  # late: needs jax

    check_program(file, settings or [], processes=processes, process=process, as_json=json)


@app.command()
def diff(
    folder: Annotated[str, typer.Argument(help="A folder that dump wrote.")],
    a: Annotated[str, typer.Argument(help="A snapshot: its number or the start of its name.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    things: Annotated[bool, typer.Option("--things", help="Fragments and transfers, not lines.")] = False,
) -> None:
    """Show what changed between two snapshots."""
    data(diff_snapshots(folder, a, b, things=things))


@app.command(add_help_option=False)
def opt() -> None:
    """Run passes on MLIR text: an MLIR opt driver.  mpmd-trace opt --help tells its flags."""
    raise AssertionError("entry.py runs it; it is here to be listed")


@app.command()
def reduce(
    file: Annotated[str, typer.Argument(help="A file of MLIR text; - is stdin.")],
    check: Annotated[str, typer.Option("--check", help="A command: exit status 0 means still interesting.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The file to write; - is stdout.")] = "-",
    timeout: Annotated[float, typer.Option(help="Seconds a check may take; longer ones fail.")] = 60.0,
    allow_unregistered_dialect: Annotated[
        bool, typer.Option(help="Accept ops of dialects that are not known.")
    ] = False,
) -> None:
    """Shrink a module as long as a command, which gets its path as last argument (or for {}), succeeds."""
    reduce_file(file, check, out, timeout, allow_unregistered_dialect)


@app.command()
@programs_talk
def explain(
    file: Annotated[str, typer.Argument(help="A program (as for run), or a file of MLIR text.")],
    value: Annotated[
        str | None,
        typer.Option("--value", help="A name, input 2, result 0, a place (model.py:12), %3 of a text; all without."),
    ] = None,
    infer_transfers: Annotated[
        bool, typer.Option(help="For MLIR text: as the option of mesh inference of that name.")
    ] = True,
    json: Json = False,
) -> None:
    """Tell why a value is on its mesh; without a value, what each mesh holds and what moves between them."""
    from mpmd_trace_cli.explain import as_json, explain_placement, explain_value  # late: needs jax

    if value is None:
        explain_placement(file, as_json=json)
    else:
        found = explain_value(file, value, infer_transfers)
        data(as_json(found) if json else from_here(str(found)))


@app.command()
def passes(
    name: Annotated[
        str | None, typer.Argument(help="Only this pass or pipeline.", autocompletion=lambda: [*PASSES, *PIPELINES])
    ] = None,
    load_pass_plugin: Annotated[
        list[str] | None, typer.Option(help="A Python file with passes of your own; may be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """List every pass and pipeline with its options."""
    if load_pass_plugin:
        for file in load_pass_plugin:
            load_passes(file)

    print_passes(name, json)


app.add_typer(schedule_app, name="schedule")


def main(arguments: list[str]) -> NoReturn:
    """Runs a command.  Exits with 0, 1 (the program is wrong), 2 (the call is wrong) or 130 (Ctrl-C)."""
    try:
        status = guard(lambda: app(arguments, prog_name="mpmd-trace"))
    except SystemExit as stop:
        if stop.code == 130:  # the library under the commands keeps it to itself
            say("interrupted")
        raise
    sys.exit(status)
