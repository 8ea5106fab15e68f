"""The output of the schedule commands: stdout, stderr, files."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import typer

from mpmd_trace.schedules import Picture, Schedule, Simulation, chrome_trace, draw, save_pdf, save_png, to_html, to_svg
from mpmd_trace_cli.console import say
from mpmd_trace_cli.files import write_text
from mpmd_trace_cli.status import CallError

#: What the ending of a file asks for.
FORMS = {
    ".svg": "svg",
    ".html": "html",
    ".pdf": "pdf",
    ".png": "png",
    ".csv": "csv",
    ".json": "trace",
    ".txt": "grid",
    "": "grid",
}
PICTURES = ("svg", "html", "pdf", "png")


def draw_all(results: list[Simulation], output: Path) -> None:
    """Draws several simulations into one file, in the form its ending names."""
    form = form_of(output)
    if form in PICTURES:
        save_picture(draw(*results), form, output)
    elif form == "trace":
        write(chrome_trace(*results), output)
    else:
        raise CallError(f"cannot draw into {output}; use a name that ends in .svg, .html, .pdf, .png or .json")


def save_picture(picture: Picture, form: str, output: Path | None) -> None:
    """Write a picture to a file; without one, those that are text to stdout."""
    if form == "svg":
        write(to_svg(picture), output)
    elif form == "html":
        write(to_html(picture, output.stem if output is not None else "schedule"), output)
    elif output is None:
        raise CallError(f"a {form.upper()} needs a file: add --output FILE.{form}")
    else:
        save_png(picture, output) if form == "png" else save_pdf(picture, output)
        say(f"wrote {output}")


def form_of(output: Path | None) -> str:
    """Return what the ending of a file asks for; a text grid without a file.  Endings that mean nothing are refused."""
    ending = "" if output is None else output.suffix.lower()
    if ending not in FORMS:
        raise CallError(
            f"{output} ends in {ending}, which is not a schedule format; use "
            f"{', '.join(name for name in FORMS if name)}, or say it with --format"
        )
    return FORMS[ending]


def orders(schedule: Schedule) -> str:
    """Return the order of each mesh, a line each."""
    return "".join(f"{mesh}: {' '.join(row)}\n" for mesh, row in enumerate(schedule.texts()))


def terminal_width() -> int | None:
    """Return the width of the terminal; no limit when stdout is a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def write(text: str, output: Path | None) -> None:
    """Text to a file, or to stdout without one."""
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(str(output), text)
        say(f"wrote {output}")
