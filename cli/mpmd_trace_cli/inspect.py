"""`dump`, `show`, `diff` and `passes`."""

from __future__ import annotations

import inspect
import os
import re
from typing import Any

from mpmd_trace.diagnostics.messages import did_you_mean
from mpmd_trace.ir.text import parse
from mpmd_trace.passes import registry
from mpmd_trace.passes.option_text import option_text
from mpmd_trace.report.files import check_folder, write_folder
from mpmd_trace.report.ir_diff import changes, outline
from mpmd_trace.report.snapshots import Snapshots, read_index, unified_diff
from mpmd_trace_cli.console import data, say
from mpmd_trace_cli.status import CallError


def dump_program(file: str, out: str, debug_info: bool, tree: bool = False) -> list[dict[str, Any]]:
    """Compile the program and write its snapshots; gives the index."""
    from mpmd_trace_cli.program import load_program  # late: `passes` does without jax

    check_folder(out)
    program = load_program(file)
    snapshots = Snapshots(debug_info=debug_info, keep_changes=True, keep_tree=tree)
    lowered = program.jitted().lower_lazily(*program.args, hooks=[snapshots])
    snapshots.start(parse(lowered.traced.mlir_text()))
    _ = lowered.partitioned
    write_folder(out, snapshots.files(diffs=True))
    for entry in snapshots.index:
        if entry["changed"]:
            counts = entry["ops"]
            fragments = counts.get("mpmd.fragment", 0) + counts.get("mpmd.fragment_call", 0)
            say(
                f"{entry['index']:3}  {entry['milliseconds']:9.1f} ms  {sum(counts.values()):7} ops "
                f"{fragments:5} fragments  {entry['pass']}"
            )
    say(f"wrote {len(snapshots.texts)} snapshots to {out}/")
    return snapshots.index


def show_program(file: str, stage: str) -> str:
    """Return the program as text."""
    from mpmd_trace_cli.program import load_program  # late: `passes` does without jax

    if stage not in ("jaxpr", "ir", "stablehlo", "mpmd", "plan"):
        raise CallError(f"--stage is jaxpr, ir, mpmd or plan, not '{stage}'")
    program = load_program(file)
    lowered: Any = program.jitted().lower_lazily(*program.args)
    text: str = lowered.as_text("stablehlo" if stage == "ir" else stage)
    return text


def _snapshots(folder: str) -> tuple[str, list[str]]:
    """Return the folder with the snapshots, which may be inside of what `run` wrote, and their names."""
    if not os.path.isdir(folder):
        raise CallError(f"there is no folder {folder}; write one with mpmd-trace dump FILE --out {folder}")
    for place in (folder, os.path.join(folder, "passes")):
        files = os.listdir(place) if os.path.isdir(place) else []
        names = sorted(n for n in files if re.fullmatch(r"\d{3,}_.*\.mlir", n))
        if names:
            return place, names
    raise CallError(f"{folder} has no snapshots; write some with mpmd-trace dump FILE --out FOLDER")


def _find(folder: str, names: list[str], wanted: str) -> str:
    if wanted.isdigit():
        return _numbered(folder, names, int(wanted))
    matching = [n for n in names if n == wanted] or [n for n in names if n.startswith(wanted)]
    matching = matching or [n for n in names if wanted in n]
    if len(matching) == 1 and wanted:
        return matching[0]
    listed = "\n  ".join(matching or names)
    what = f"{len(matching)} snapshots are" if matching else "no snapshot is"
    raise CallError(f"{what} called '{wanted}'; {'choose one of' if matching else 'there are'}\n  {listed}")


def _numbered(folder: str, names: list[str], number: int) -> str:
    """Return the snapshot of a pass, or the last one before it if that pass changed nothing."""
    before = [n for n in names if int(n.partition("_")[0]) <= number]
    if before and int(before[-1].partition("_")[0]) == number:
        return before[-1]
    try:
        passes = {entry["index"]: entry["pass"] for entry in read_index(folder)}
    except (OSError, ValueError, KeyError, TypeError):
        passes = {}
    if number not in passes or not before:
        last = max(passes, default=int(names[-1].partition("_")[0]))
        raise CallError(f"there is no pass {number}; the last one is {last}")
    say(f"{passes[number]} ({number}) changed nothing: this is {before[-1]}")
    return before[-1]


def diff_snapshots(folder: str, a: str, b: str, *, things: bool = False) -> str:
    """Return a unified diff of two snapshots, given by number or (part of their) names, or what became of `things`."""
    place, names = _snapshots(folder)
    texts = []
    for wanted in (a, b):
        name = _find(place, names, wanted)
        with open(os.path.join(place, name), encoding="utf-8") as file:
            texts.append((name, file.read()))
    result = unified_diff(texts[0][1], texts[1][1], texts[0][0], texts[1][0])
    if things and result:
        return changes(*(outline(parse(text, filename=name)) for name, text in texts)).text(most=40)
    if not result:
        say(f"{texts[0][0]} and {texts[1][0]} are the same")
    return result


def list_passes(name: str | None) -> list[dict[str, Any]]:
    """Name, kind, summary and options of every pass and pipeline."""
    result = []
    for kind, table in (("pass", registry.PASSES), ("pipeline", registry.PIPELINES)):
        for key in table:
            if name not in (None, key):
                continue
            cls = registry.pass_class(key) or registry.pipeline_class(key)
            assert cls is not None
            options = [
                {
                    "name": option,
                    "type": field.type if isinstance(field.type, str) else inspect.formatannotation(field.type),
                    "default": _default(field.default),
                    "help": field.metadata["help"],
                }
                for option, field in cls.options()
            ]
            result.append({"name": key, "kind": kind, "summary": cls.summary, "options": options})
    if name is not None and not result:
        known = [*registry.PASSES, *registry.PIPELINES]
        near = did_you_mean(name, known) or "; mpmd-trace passes lists them"
        raise CallError(f"there is no pass or pipeline '{name}'{near}")
    return result


def print_passes(name: str | None, json: bool) -> None:
    """Print the list of `passes` as text or JSON."""
    entries = list_passes(name)
    if json:
        data(entries)
        return
    for entry in entries:
        data(f"{entry['name']}\n    {entry['summary']}")
        for option in entry["options"]:
            data(f"      {option['name']}={option['default']}  ({option['type']}) {option['help']}")


def _default(value: Any) -> Any:
    """As JSON: numbers as they are, everything else as text."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else option_text(value)
