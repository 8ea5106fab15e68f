"""`mpmd-trace`: the commands and their options.  Those that need jax load it when they are called."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Annotated, NoReturn

import typer

from mpmd_trace import __version__
from mpmd_trace.diagnostics.source_files import from_here
from mpmd_trace.passes.registry import PASSES, PIPELINES
from mpmd_trace.report.files import check_folder
from mpmd_trace_cli import INTERRUPTED
from mpmd_trace_cli._plan_options import PlanOptions
from mpmd_trace_cli._schedule_options import grouped
from mpmd_trace_cli.console import data, guard, keeps_output_apart, say
from mpmd_trace_cli.files import check_output
from mpmd_trace_cli.inspect import diff_snapshots, dump_program, print_passes, show_program
from mpmd_trace_cli.plugins import load_passes
from mpmd_trace_cli.reduce import reduce_file
from mpmd_trace_cli.schedule import app as schedule_app
from mpmd_trace_cli.status import FOUND

#: Each command's examples: a command line, and what it is for.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("run examples/char_gpt.py", "train, compare with jax.jit, write out/"),
        ("run model.py:big --set steps=20 --trace steps.json", "another program of the file, for ui.perfetto.dev"),
        ("run examples/char_gpt.py --processes 4", "the same in four processes"),
    ),
    "compile": (("compile model.py -o model.mpmd", "mpmd_trace.load('model.mpmd') runs it"),),
    "launch": (
        ("launch -n 4 --devices 2 train.py --lr 0.1", "four processes with two CPU devices each; --lr is the script's"),
        ("launch -n 4 --restarts 2 --log-dir logs train.py", "after a failure, restart without the failed process"),
    ),
    "dump": (("dump model.py --out dump", "then: mpmd-trace diff dump 12 20"),),
    "explore": (
        ("explore model.py --out pages", "then open pages/index.html"),
        ("explore model.py --measure --serve", "with measured times, on a local server"),
    ),
    "bisect": (("bisect model.py", "the first pass that changes the numbers"),),
    "show": (("show model.py --stage plan", "the list of programs and transfers of a step"),),
    "compare": (("compare model.py", "needs jaxlib 0.12 or newer"),),
    "plan": (
        ("plan model.py", "for the program's own number of microbatches"),
        ("plan model.py --microbatches 4,8,16", "also compare these numbers of microbatches"),
        ("plan model.py --measure --memory-limit 8000", "from measured times, with at most 8000 MiB on a device"),
    ),
    "check": (
        ("check model.py -n 4", "four processes that share the devices"),
        ("check model.py -n 4 --process 0", "what process 0 does in a step"),
    ),
    "diff": (("diff dump 12 20", "two snapshots of mpmd-trace dump"),),
    "reduce": (
        (
            "reduce bad.mlir --check ./fails.sh -o small.mlir",
            "fails.sh exits with 0 if the module still shows the problem",
        ),
    ),
    "explain": (
        ("explain model.py", "what each mesh holds, and what is sent"),
        ('explain model.py --value "input 2"', "why the third array of the arguments is on its mesh"),
    ),
    "passes": (("passes mpmd-call-inline", "the options of one pass"),),
}


def examples(command: str) -> str:
    """Return the end of the help page of a command, in which paragraphs become lines."""
    return "\n\n".join(["Examples:", *(f"mpmd-trace {line}  # {text}" for line, text in EXAMPLES[command])])


app = typer.Typer(
    name="mpmd-trace",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile a single-device JAX program into a pipeline over several meshes, and inspect every stage.",
    epilog="Exit status: 0 fine, 1 found something (numbers differ, the program cannot be compiled, a deadlock), 2 "
    "wrong call or missing file, 3 the program raised an exception.",
)

File = Annotated[str, typer.Argument(help="FILE.py, FILE.py:name or package.module:name")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[str, typer.Option("--out", help="The output folder; replaced if it exists.")]
Target = Annotated[
    str | None,
    typer.Option(
        help="Compile for devices that this machine lacks: tpu:v5e:2x4 (docs/tpus.md), gpu:h100:8 (docs/gpus.md)."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field of the Program, such as steps=3 or loss_tolerance=1e-2."),
]


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
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print the whole traceback of an exception in the program.")
    ] = False,
) -> None:
    """Options of all commands."""


@app.command(epilog=examples("run"))
@keeps_output_apart
def run(
    file: File,
    out: Out = "out",
    settings: Settings = None,
    processes: Annotated[
        int, typer.Option(help="Number of processes on this machine; FILE must call mpmd_trace.initialize().")
    ] = 1,
    trace: Annotated[
        str | None, typer.Option(help="Write three measured steps to this file, for ui.perfetto.dev.")
    ] = None,
    peak_flops: Annotated[
        float | None,
        typer.Option(help="Peak FLOP/s of one device, for MFU; known for common GPUs and TPUs (dense bfloat16)."),
    ] = None,
    json: Json = False,
) -> None:
    """Compile and run a program, compare it with plain jax.jit, and write a report."""
    from mpmd_trace_cli.launch import Job, is_launched, launch  # late: needs jaxlib

    if not is_launched():
        check_folder(out)
        if trace is not None:
            check_output(trace)
        if processes != 1:
            raise typer.Exit(launch(Job(["-m", "mpmd_trace_cli.entry", *sys.argv[1:]], processes, first_is_plain=True)))
    from mpmd_trace_cli.run import run_program  # late: needs jax

    report = run_program(file, out, settings or [], trace=trace, peak=peak_flops, quiet=json)
    if json and report:
        data(report)


@app.command(epilog=examples("compile"))
@keeps_output_apart
def compile(
    file: File,
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", help="The output file, for mpmd_trace.load; with --target a folder for the HLO."),
    ] = None,
    settings: Settings = None,
    target: Target = None,
    json: Json = False,
) -> None:
    """Compile a program and save it; mpmd_trace.load runs the file without tracing or compiling."""
    from mpmd_trace_cli.compile import compile_program  # late: needs jax

    if target is not None:
        from mpmd_trace_cli.compile import as_text, compile_for_target  # late: needs jax

        report = compile_for_target(file, target, out, settings or [])
        data(report if json else as_text(report))
        raise typer.Exit(1 if report["fits"] is False else 0)
    if out is None:
        raise typer.BadParameter("missing: name the file that is written", param_hint="--out")
    saved = compile_program(file, out, settings or [])
    if json:
        data(saved)


@app.command(epilog=examples("launch"), context_settings={"allow_interspersed_args": False})
def launch(
    script: Annotated[str, typer.Argument(help="A Python script that calls mpmd_trace.initialize().")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    processes: Annotated[int, typer.Option("-n", "--processes", help="Number of processes to start.")] = 2,
    devices: Annotated[int | None, typer.Option(help="Number of CPU devices per process.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds without a heartbeat after which a process counts as failed (300).")
    ] = None,
    log_dir: Annotated[
        str | None, typer.Option(help="Write the output of each process to N.log in this folder.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(help="How many times to restart, without the failed processes, after a failure.")
    ] = 0,
) -> None:
    """Run a script in several processes on this machine; the first failure terminates all of them."""
    from mpmd_trace_cli.launch import Job, launch  # late: needs jaxlib

    job = Job([script, *(arguments or [])], processes, devices, timeout, log_dir, restarts)
    raise typer.Exit(launch(job))


@app.command(epilog=examples("dump"))
@keeps_output_apart
def dump(
    file: File,
    out: Out = "dump",
    debug_info: Annotated[bool, typer.Option(help="Print source locations.")] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Also write each function, like -mlir-print-ir-tree-dir.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a numbered snapshot after each pass that changed something, with op counts, time and diff."""
    index = dump_program(file, out, debug_info, tree)
    if json:
        data({"passes": index})


@app.command(epilog=examples("explore"))
@keeps_output_apart
def explore(
    file: Annotated[str, typer.Argument(help="A program, an output folder of dump or run, or a module (.mlir).")],
    out: Annotated[str, typer.Option(help="The output folder; replaced if it exists.")] = "out/explore",
    measure: Annotated[bool, typer.Option("--measure", help="Also compile, run and measure the program.")] = False,
    errors: Annotated[
        bool, typer.Option("--errors", help="Also compute the error of the results after each pass.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the pages on this machine until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(help="The port to serve on; 0 takes a free one.", min=0, max=65535)] = 0,
    settings: Settings = None,
) -> None:
    """Write pages for the browser: the program after each pass, values, timeline, schedules."""
    from mpmd_trace_cli import explore as pages  # late: needs jax

    pages.explore(file, out, settings or [], measure=measure, errors=errors)
    if serve:
        pages.serve(out, port)


@app.command(epilog=examples("bisect"))
@keeps_output_apart
def bisect(
    file: File,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest accepted error of a result, relative to its norm.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every pass instead of a binary search.")] = False,
    seconds: Annotated[
        float, typer.Option(help="Time limit for reducing the failing module; 0 skips the reduction.")
    ] = 60.0,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Write the reduced module to this file.")] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Find the first pass whose result differs from plain jax.jit, and a small module that shows it."""
    from mpmd_trace_cli.bisect import bisect_program, is_wrong, tell  # late: needs jax

    report = bisect_program(file, settings or [], tolerance=tolerance, every=every, seconds=seconds, out=out)
    if json:
        data(report)
        if is_wrong(report):
            raise typer.Exit(FOUND)
    else:
        tell(report)


@app.command(epilog=examples("show"))
@keeps_output_apart
def show(file: File, stage: Annotated[str, typer.Option(help="jaxpr, ir, mpmd or plan")] = "mpmd") -> None:
    """Print a program: the jaxpr, the IR with named computations, the exported module, or the plan."""
    data(show_program(file, stage))


@app.command(epilog=examples("compare"))
@keeps_output_apart
def compare(
    file: File,
    lines: Annotated[int, typer.Option(help="Number of lines of the first difference to print.")] = 20,
    out: Annotated[
        str | None, typer.Option(help="Write the differences to this folder; replaced if it exists.")
    ] = None,
    execute: Annotated[bool, typer.Option(help="Also run the outputs of both engines.")] = True,
    json: Json = False,
) -> None:
    """Partition with this package and with jaxlib's C++ partitioner, and show where they differ."""
    from mpmd_trace_cli.compare import compare_program  # late: needs jax

    report = compare_program(file, lines=lines, out=out, execute=execute, as_json=json)
    if json:
        data(report)
    if not all(phase["equal"] or phase["equal_but_for_operand_order"] for phase in report["phases"].values()):
        raise typer.Exit(FOUND)


@app.command(epilog=examples("plan"))
@keeps_output_apart
@grouped
def plan(
    file: File, options: PlanOptions, settings: Settings = None, target: Target = None, json: Json = False
) -> None:
    """Find the best split into stages and the best schedule, from the costs of the program."""
    from mpmd_trace_cli.plan import plan_program  # late: needs jax

    plan_program(file, options, settings or [], target, as_json=json)


@app.command(epilog=examples("check"))
@keeps_output_apart
def check(
    file: File,
    processes: Annotated[
        int | None,
        typer.Option("--processes", "-n", help="Number of processes that share the devices; default: one per mesh."),
    ] = None,
    process: Annotated[int | None, typer.Option(help="Print the actions of this process.")] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Prove that a program cannot deadlock in several processes, or print the wait-for cycle."""
    from mpmd_trace_cli.check import check_program  # late: needs jax

    check_program(file, settings or [], processes=processes, process=process, as_json=json)


@app.command(epilog=examples("diff"))
def diff(
    folder: Annotated[str, typer.Argument(help="An output folder of dump.")],
    a: Annotated[str, typer.Argument(help="A snapshot: its number or the start of its name.")],
    b: Annotated[str, typer.Argument(help="Another snapshot, in the same form.")],
    things: Annotated[bool, typer.Option("--things", help="Compare fragments and transfers instead of lines.")] = False,
) -> None:
    """Show what changed between two snapshots."""
    data(diff_snapshots(folder, a, b, things=things))


@app.command(add_help_option=False)
def opt() -> None:
    """Run passes on MLIR text: an MLIR opt driver.  mpmd-trace opt --help lists its flags."""
    raise AssertionError("entry.py runs it; it is here to be listed")


@app.command(epilog=examples("reduce"))
def reduce(
    file: Annotated[str, typer.Argument(help="An MLIR file; - is stdin.")],
    check: Annotated[
        str,
        typer.Option(
            help="A command that gets the path of the module as its last argument, or in place of {}. It exits with 0 "
            "if the module still shows the problem."
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="The output file; - is stdout.")] = "-",
    timeout: Annotated[
        float, typer.Option(help="Time limit of the command in seconds; if it takes longer, it counts as failed.")
    ] = 60.0,
    allow_unregistered_dialect: Annotated[bool, typer.Option(help="Accept ops of unknown dialects.")] = False,
) -> None:
    """Make a module smaller as long as a command succeeds on it."""
    reduce_file(file, check, out, timeout, allow_unregistered_dialect)


@app.command(epilog=examples("explain"))
@keeps_output_apart
def explain(
    file: Annotated[str, typer.Argument(help="A program (as for run), or an MLIR file.")],
    value: Annotated[
        str | None,
        typer.Option(
            help="A name, an array of the arguments (input 2), an array of the results (result 0), a source line "
            "(model.py:12), or %3 in MLIR text."
        ),
    ] = None,
    infer_transfers: Annotated[
        bool, typer.Option(help="For MLIR text: the option infer-transfers of mesh inference.")
    ] = True,
    target: Target = None,
    json: Json = False,
) -> None:
    """Show what each mesh holds and what is sent; with --value, explain why a value is on its mesh."""
    from mpmd_trace_cli.explain import as_json, explain_placement, explain_value  # late: needs jax

    if value is None:
        explain_placement(file, target, as_json=json)
    else:
        explanation = explain_value(file, value, infer_transfers, target)
        data(as_json(explanation) if json else from_here(str(explanation)))


@app.command(epilog=examples("passes"))
def passes(
    name: Annotated[
        str | None,
        typer.Argument(help="List only this pass or pipeline.", autocompletion=lambda: [*PASSES, *PIPELINES]),
    ] = None,
    load_pass_plugin: Annotated[
        list[str] | None, typer.Option(help="A Python file with custom passes; may be repeated.")
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
    """Run a command and exit with its status (`status.py`)."""
    commands = [at for at, argument in enumerate(arguments) if not argument.startswith("-")]
    tracebacks = "--traceback" in arguments[: commands[0] if commands else None]
    try:
        status = guard(lambda: app(arguments, prog_name="mpmd-trace"), tracebacks=tracebacks)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # the library under the commands keeps it to itself
            say("interrupted")
        raise
    sys.exit(status)
