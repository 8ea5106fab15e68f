"""`explore`: pages that show a program after each pass, its step in time, and the schedules beside it."""

from __future__ import annotations

import functools
import http.server
import os
from collections.abc import Sequence
from typing import Any

from mpmd_trace.diagnostics.source_files import from_here
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.report.explain import before_placement, explain_ends, explain_places
from mpmd_trace.report.explorer import Recorder, explorer_files, measured_rows, program_facts
from mpmd_trace.report.files import check_folder, write_folder
from mpmd_trace.report.snapshots import read_index
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace_cli.console import say
from mpmd_trace_cli.files import read_text
from mpmd_trace_cli.status import CallError


def explore(file: str, out: str, settings: Sequence[str], *, measure: bool, errors: bool = False) -> str:
    """Write the pages for a program, a folder of snapshots or a module in text; gives the path of the first one.

    Raises `MpmdError` and `OSError` as the commands that write such folders do.
    """
    check_folder(out)
    if _is_inside(file, out):
        raise CallError(f"{file} is in {out}, which would be replaced; choose another folder to write to")
    if os.path.isdir(file):
        files = explorer_files(file, _of_snapshots(file))
    elif file.endswith(".mlir"):
        recorder = Recorder()
        recorder.start(_module(file))
        files = explorer_files(file, recorder)
    else:
        files = _of_program(file, settings, measure, errors)
    write_folder(out, files)
    page = os.path.join(out, "index.html")
    say(f"wrote {page}: open it in a browser")
    return page


def _is_inside(file: str, folder: str) -> bool:
    file, folder = os.path.realpath(file), os.path.realpath(folder)
    return os.path.exists(file) and f"{file}{os.sep}".startswith(f"{folder}{os.sep}")


def _of_program(file: str, settings: Sequence[str], measure: bool, errors: bool) -> Any:
    from mpmd_trace_cli.program import copied, load_program  # late: other files need no JAX

    program = load_program(file, settings)
    recorder, actions = Recorder(), FragmentActions()
    lowered = program.jitted().lower_lazily(*program.args, hooks=[recorder, actions])
    traced = lowered.traced
    recorder.names = [*(f"constant {i}" for i in range(len(traced.constants))), *(leaf.name for leaf in traced.inputs)]
    recorder.results = [leaf.name for leaf in traced.outputs]
    more: dict[str, Any] = {}
    if errors:
        from mpmd_trace_devtools.numbers import Numbers  # late: as above

        numbers = Numbers.of(program, lowered)
        recorder.error, more["tolerance"] = numbers.error, numbers.tolerance
    recorder.start(parse(traced.mlir_text()))
    estimated = lowered.estimated
    plan = estimated.plan
    more["assignment"] = program.config.name_to_mesh_assignment
    of_plan: dict[str, Any] = {"costs": [executable.cost["flops"] for executable in estimated.runtime.own_executables]}
    texts: dict[str, Any] = {}
    before = before_placement(lowered)
    if before is not None:
        texts["why"] = _why(before, lowered.request, [*recorder.names, *recorder.results])
        more["why"] = True
    if measure:
        compiled = lowered.compile()
        compiled(*program.dynamic(copied(program.args)))
        timelines = [compiled.measure(*program.dynamic(copied(program.args)))[1] for _ in range(3)]
        plan = compiled.program.plan
        of_plan["measured"] = measured_rows(timelines)
        of_plan["facts"], hlo = program_facts(compiled)
        texts |= hlo
    return explorer_files(program.name, recorder, plan, actions, more, of_plan, texts)


def _why(module: Module, request: PartitionRequest, names: Sequence[str]) -> dict[str, Any]:
    """Return what `mpmd-trace explain` says of arguments and results, and of the places of unnamed code."""
    ends, places = explain_ends(module, request), explain_places(module, request)
    return {
        "ends": {name: _first_lines(str(one)) for name, one in zip(names, ends, strict=True)},
        "places": {
            at: [(one.meshes, _first_lines(str(one), 8)) for one in placements] for at, placements in places.items()
        },
    }


def _first_lines(text: str, most: int = 16, width: int = 400) -> str:
    """Return the text without what a norm over all gradients adds: a chain from every parameter."""
    lines = from_here(text).splitlines()
    more = [f"  ... {len(lines) - most} more lines: mpmd-trace explain"] if len(lines) > most else []
    return "\n".join([*(line if len(line) <= width else f"{line[:width]}..." for line in lines[:most]), *more])


def _module(path: str) -> Module:
    text, name = read_text(path)
    return parse(text, filename=name)


def _of_snapshots(folder: str) -> Recorder:
    """Return the views of what `dump` or `run` wrote."""
    for place in (folder, os.path.join(folder, "passes")):
        try:
            index = read_index(place)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        recorder = Recorder()
        for entry in index:
            if entry.get("changed") and "file" in entry:
                recorder.snapshot(entry["index"], entry["pass"], _module(os.path.join(place, entry["file"])))
        return recorder
    raise CallError(f"{folder} has no snapshots; write some with mpmd-trace dump FILE --out {folder}")


def serve(folder: str, port: int) -> None:
    """Serve a folder on this machine alone, until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        say(f"http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)")
        server.serve_forever()
