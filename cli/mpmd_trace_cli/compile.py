"""`mpmd-trace compile`: a program as a file; for a target what XLA says of it there, and its HLO."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from mpmd_trace.api.compiled import Compiled
from mpmd_trace.api.program import Program
from mpmd_trace.api.request import device_memory
from mpmd_trace.diagnostics.tables import Table
from mpmd_trace.diagnostics.tables import as_text as as_tables
from mpmd_trace.report.files import check_folder, write_folder
from mpmd_trace_cli import placement_report
from mpmd_trace_cli.console import compiling, progress, say
from mpmd_trace_cli.files import check_output
from mpmd_trace_cli.program import load_program


def compile_program(file: str, out: str, settings: Sequence[str]) -> dict[str, Any]:
    """Compile the program of `file` and write it to the file `out`; its numbers.  Raises `MpmdError`."""
    check_output(out, folders=True)
    compiled = _compiled(load_program(file, settings))
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    compiled.save(out)
    size = os.path.getsize(out)
    programs = len(compiled.program.plan.programs)
    say(f"wrote {out}: {programs} programs, {size:,} bytes; mpmd_trace.load reads it (load only what you trust)")
    return {"file": out, "programs": programs, "bytes": size, "meshes": list(compiled.program.topology)}


def compile_for_target(file: str, target: str, out: str | None, settings: Sequence[str]) -> dict[str, Any]:
    """Compile the program of `file` for a target; return what is known of it, and write its HLO to the folder `out`.

    Raises `MpmdError`, also where XLA refuses a program that takes more memory than a device has.
    """
    if out is not None:
        check_folder(out)
    compiled = _compiled(load_program(file, settings, target))
    report = _report(compiled, target)
    if out is not None:
        programs = compiled.executables()
        write_folder(
            out, ((re.sub(r"[^\w.-]", "_", f"{one.name}.{one.mesh}") + ".hlo", one.as_text()) for one in programs)
        )
        say(f"wrote the HLO of {len(report['programs'])} programs to {out}")
    return report


def _compiled(program: Program) -> Compiled:
    with progress() as shown:
        task = shown.add_task("trace, passes", total=1, info=program.name)
        lowered = program.jitted().lower(*program.args)
        shown.update(task, completed=1)
        return lowered.compile(progress=compiling(shown))


def _report(compiled: Compiled, target: str) -> dict[str, Any]:
    limit, costs = device_memory(compiled.lowered.config), compiled.cost_analysis()
    if not costs["flops"]:  # XLA's compiler for GPUs says nothing of its programs
        costs = {**compiled.lowered.cost_analysis(), "estimated": True}
    memory = compiled.memory_analysis()
    return {
        "target": target,
        "device_kind": next(iter(compiled.program.topology.values())).devices.flat[0].device_kind,
        "memory_of_a_device": limit,
        "fits": None if limit is None else all(one.peak <= limit for one in memory.values()),
        "meshes": {
            mesh: {
                "devices": compiled.program.plan.devices[mesh],
                **{part: getattr(one, part) for part in ("peak", "arguments", "results", "temporary", "code")},
            }
            for mesh, one in memory.items()
        },
        "programs": [
            {
                "name": one.name,
                "mesh": one.mesh,
                "runs": one.runs,
                "compiled_as": one.compiled_as,
                "flops": (cost := costs["programs"][name]).get("flops", 0.0),
                "bytes_accessed": cost.get("bytes accessed", 0.0),
                # XLA says less than nothing where it does not know.
                "optimal_seconds": seconds if (seconds := cost.get("optimal_seconds", -1.0)) >= 0 else None,
                "temporary": (bytes_of := one.memory_analysis()).temp_size_in_bytes,
                "arguments": bytes_of.argument_size_in_bytes,
                "results": bytes_of.output_size_in_bytes,
            }
            for name, one in zip(costs["programs"], compiled.executables(), strict=True)
        ],
        "flops": costs["flops"],
        "estimated": costs.get("estimated", False),
        "transfers": costs["transfers"],
        "bytes_transferred": costs["bytes transferred"],
        "collectives": placement_report.collectives_data(compiled.collectives()),
    }


def as_text(report: dict[str, Any]) -> str:
    """Return a report as tables."""
    limit = report["memory_of_a_device"]
    parts = ("devices", "arguments", "results", "temporary", "code", "peak")
    held = [[mesh, *(f"{one[part]:,}" for part in parts)] for mesh, one in report["meshes"].items()]
    programs = []
    for one in report["programs"]:
        seconds = one["optimal_seconds"]
        counts = (f"{one[part] / 1e6:,.2f}" for part in ("flops", "bytes_accessed"))
        time = "unknown" if seconds is None else f"{1e6 * seconds:,.1f}"
        programs.append([one["name"], one["mesh"], str(one["runs"]), *counts, f"{one['temporary']:,}", time])
    head = ["program", "mesh", "runs", "Mflop", "MB accessed", "temporary", "µs"]
    tables = [
        Table(f"bytes on a {report['device_kind']} of each mesh", ["mesh", *parts], held),
        Table("programs: one device, one run", head, programs, words=2),
    ]
    text = as_tables(tables) + "\n"
    if report["estimated"]:
        text += "FLOPs and bytes accessed are counted from the program: XLA's compiler for GPUs does not say them\n"
    else:
        text += "µs: XLA's own estimate (optimal_seconds), where it has one for all parts of a program\n"
    return text + fit_text({mesh: one["peak"] for mesh, one in report["meshes"].items()}, limit)


def fit_text(peaks: dict[str, int], limit: int | None) -> str:
    """Return whether a step fits into the memory of a device."""
    if limit is None:
        return "how much memory a device has is not known: make_config(device_memory=...) says it\n"
    above = {mesh: peak - limit for mesh, peak in peaks.items() if peak > limit}
    if not above:
        most = max(peaks, key=lambda mesh: peaks[mesh])
        return f"fits: mesh '{most}' takes most, {peaks[most]:,} of {limit:,} bytes of a device\n"
    listed = ", ".join(f"{more:,} bytes too many on mesh '{mesh}'" for mesh, more in above.items())
    return f"does not fit into {limit:,} bytes of a device: {listed}\n"
