"""`mpmd-trace`: the commands and their options."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ..ir.diagnostics import MpmdError
from .talk import data, guard, say

__all__ = ["app", "main"]

app = typer.Typer(
    name="mpmd-trace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Compile a single-device JAX program into a pipeline over several meshes, and look at every step.",
)

File = Annotated[str, typer.Argument(help="FILE.py, FILE.py:name or package.module:name")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Out = Annotated[str, typer.Option("--out", help="The folder to write; replaced whole.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Overwrite a field of the program: steps=3.")
]


@app.command()
def run(file: File, out: Out = "out", settings: Settings = None, json: Json = False) -> None:
    """Compile and run a program, compare it with plain jax.jit, and write a report."""
    from .run import run_program

    report = run_program(file, out, settings or [], quiet=json)
    if json:
        data(report)


@app.command()
def dump(
    file: File,
    out: Out = "dump",
    debug_info: Annotated[bool, typer.Option(help="Print source locations.")] = False,
    json: Json = False,
) -> None:
    """Write a numbered snapshot for each pass that changed something, with op counts, time and diff."""
    from .inspect import dump_program

    index = dump_program(file, out, debug_info)
    if json:
        data({"passes": index})


@app.command()
def show(
    file: File,
    stage: Annotated[str, typer.Option(help="jaxpr, ir, mpmd or plan")] = "mpmd",
) -> None:
    """Print a program: as traced by JAX, as IR with named computations, as exported, or as execution plan."""
    from .inspect import show_program

    data(show_program(file, stage))


@app.command()
def diff(
    folder: Annotated[str, typer.Argument(help="A folder that dump wrote.")],
    a: Annotated[str, typer.Argument(help="A snapshot: its number or the start of its name.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """Show what changed between two snapshots."""
    from .inspect import diff_snapshots

    data(diff_snapshots(folder, a, b))


@app.command()
def passes(
    name: Annotated[str | None, typer.Argument(help="Only this pass or pipeline.")] = None,
    json: Json = False,
) -> None:
    """List every pass and pipeline with its options."""
    from .inspect import list_passes

    found = list_passes(name)
    if json:
        data(found)
        return
    for entry in found:
        data(f"{entry['name']}\n    {entry['summary']}")
        for option in entry["options"]:
            data(f"      {option['name']}={option['default']}  ({option['type']}) {option['help']}")


def _mount() -> None:
    from .schedule import app as schedule_app

    app.add_typer(schedule_app, name="schedule")


def main(arguments: list[str] | None = None) -> None:
    """The entry point.  Exits with 0, 1 (the program is wrong) or 2 (the call is wrong)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["opt"]:
        from .opt import main as opt

        sys.exit(opt(arguments[1:]))
    if arguments[:1] in (["schedule"], ["--help"], []):
        _mount()
    status: list[Any] = []

    def call() -> None:
        try:
            app(arguments, standalone_mode=True, prog_name="mpmd-trace")
        except SystemExit as stop:
            status.append(stop.code)

    failed = guard(call)
    sys.exit(failed or (status[0] if status and status[0] is not None else 0))


__all__ += ["MpmdError", "say"]

if __name__ == "__main__":
    main()
