"""`mpmd-trace compare`: our partitioner beside the C++ one of jaxlib, op for op and by execution."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np

from mpmd_trace.backend.load import load
from mpmd_trace.passes.cpp_engine import partition_with_cpp
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.passes.request import Phases
from mpmd_trace.report.files import check_folder, write_folder
from mpmd_trace_cli.console import data, say
from mpmd_trace_cli.program import copied, load_program
from mpmd_trace_devtools.numbers import without_key
from mpmd_trace_devtools.operand_order import with_sorted_operands

_PHASES: tuple[Phases, ...] = ("import", "optimize", "all")


def compare_program(
    file: str, *, lines: int = 20, out: str | None = None, execute: bool = True, as_json: bool = False
) -> dict[str, Any]:
    """Partition the program with both engines at each phase, with the reference's placement, and run both results.

    Gives, per phase, whether the modules are equal, whether they are so but for the order of operands, the CPU seconds
    of both, and where they differ, of which the first lines of the first difference are printed unless it is wanted
    `as_json`; and the largest difference of the results.  `out`: a folder for the texts and differences of phases that
    differ.  Raises `MpmdError` when an engine refuses the program.
    """
    if out is not None:
        check_folder(out)
    program = load_program(file)
    lowered = program.jitted().lower_lazily(*program.args)
    request = lowered.request_with_rules
    text = lowered.traced.mlir_text()
    report: dict[str, Any] = {"phases": {}}
    modules: dict[str, Any] = {}
    files: dict[str, str] = {}
    shown = as_json
    for phase in _PHASES:
        ours = partition_as(text, request, phases=phase)
        theirs = partition_with_cpp(text, request, phases=phase)
        modules = {"python": ours.module, "cpp": theirs.module}
        a, b = ours.as_text(), theirs.as_text()
        seconds = [round(sum(r.seconds for r in one.runs), 4) for one in (ours, theirs)]
        summary: dict[str, Any] = {"equal": a == b, "seconds": seconds[0], "seconds_cpp": seconds[1]}
        report["phases"][phase] = summary
        verdict = "equal"
        if a != b:
            sorted_a, sorted_b = (str(with_sorted_operands(module)) for module in modules.values())
            summary["equal_but_for_operand_order"] = sorted_a == sorted_b
            verdict = "equal but for the order of operands" if sorted_a == sorted_b else "different"
        say(f"{phase:9} {verdict}; {seconds[0]:.2f} s, C++ {seconds[1]:.2f} s")
        if a != b:
            # Without what only the order makes different, if there is something else.
            cpp, python = (b, a) if sorted_a == sorted_b else (sorted_b, sorted_a)
            lines_of = difflib.unified_diff(cpp.splitlines(), python.splitlines(), "cpp", "python", lineterm="", n=1)
            difference = list(lines_of)
            summary["difference"] = difference[:lines]
            files |= {f"{phase}.python.mlir": a, f"{phase}.cpp.mlir": b, f"{phase}.diff": "\n".join(difference) + "\n"}
            if not shown:
                shown = True
                data("\n".join(line[:200] for line in difference[:lines]))
                if len(difference) > lines:
                    say(f"... and {len(difference) - lines} more lines" + ("" if out else "; --out FOLDER has all"))
    if out is not None:
        write_folder(out, files.items())
        say(f"wrote {out}/: {', '.join(files) or 'nothing, for nothing differs'}")
    if execute and not lowered.config.is_abstract:
        report["largest_difference"] = _execute(program, lowered, modules)
        say(f"results of both differ by at most {report['largest_difference']:.1e}")
    return report


def _execute(program: Any, lowered: Any, modules: dict[str, Any]) -> float:
    flat = [*lowered.traced.constants, *program.arrays(program.dynamic(program.args))]
    results = []
    for module in modules.values():
        loaded = load(module, dict(lowered.config.topology), host_callbacks=lowered.traced.host_callbacks)
        # Copies, because the program may give its arguments away.
        values = loaded(*copied([without_key(x) for x in flat]))
        results.append([np.asarray(v, dtype=np.float64) for v in values])
    differences = [float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(*results, strict=True)]
    return float(np.max(differences, initial=0.0))  # NaN, if one is
