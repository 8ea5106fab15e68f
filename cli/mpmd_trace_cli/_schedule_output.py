"""Where the schedule commands put what they have to say: stdout, stderr, files."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NoReturn

import typer

from mpmd_trace.schedules import Simulation, chrome_trace, draw, save_png, to_svg


def say(text: str) -> None:
    """Talk goes to stderr."""
    typer.echo(text, err=True)


def draw_all(results: list[Simulation], output: Path) -> None:
    """Draws several simulations into one file, in the form its suffix names."""
    form = form_of(output)
    if form == "png":
        save_png(draw(*results), output)
        say(f"wrote {output}")
    elif form == "svg":
        write(to_svg(draw(*results)), output)
    elif form == "trace":
        write(chrome_trace(*results), output)
    else:
        refuse(f"cannot draw into {output}; use a name that ends in .svg, .png or .json")


def form_of(output: Path | None) -> str:
    """What the suffix of a file asks for; a text grid without a file."""
    suffix = "" if output is None else output.suffix.lower()
    return {".svg": "svg", ".png": "png", ".csv": "csv", ".json": "trace"}.get(suffix, "grid")


def terminal_width() -> int | None:
    """The width of the terminal; no limit when stdout is a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def write(text: str, output: Path | None) -> None:
    """Text to a file, or to stdout without one."""
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        say(f"wrote {output}")


def refuse(message: str) -> NoReturn:
    """One message on stderr, and exit code 2."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
