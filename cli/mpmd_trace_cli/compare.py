"""`mpmd-trace compare`: our partitioner beside the C++ one of jaxlib, op for op and by execution."""

from __future__ import annotations

import difflib
from typing import Any

import jax
import numpy as np

from mpmd_trace.backend.load import load
from mpmd_trace.passes.cpp_engine import partition_with_cpp
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.passes.request import Phases
from mpmd_trace_cli.program import copied, load_program
from mpmd_trace_cli.talk import data, say

__all__ = ["compare_program"]

_PHASES: tuple[Phases, ...] = ("import", "optimize", "all")


def compare_program(file: str, *, lines: int = 60, execute: bool = True) -> dict[str, Any]:
    """Partition the program with both engines at each phase, print where they differ, and run both results.

    Gives, per phase, whether the modules are equal and the CPU seconds of both; and the largest difference of
    the results.  Raises `MpmdError` when an engine refuses the program.
    """
    program = load_program(file)
    lowered = program.jitted().lower_lazily(*program.args)
    request = lowered.request_with_rules
    text = lowered.traced.mlir_text()
    report: dict[str, Any] = {"phases": {}}
    modules: dict[str, Any] = {}
    for phase in _PHASES:
        ours = partition_as(text, request, phases=phase)
        theirs = partition_with_cpp(text, request, phases=phase)
        modules = {"python": ours.module, "cpp": theirs.module}
        a, b = ours.as_text(), theirs.as_text()
        seconds = [round(sum(r.seconds for r in one.runs), 4) for one in (ours, theirs)]
        report["phases"][phase] = {"equal": a == b, "seconds": seconds[0], "seconds_cpp": seconds[1]}
        verdict = "equal" if a == b else "different"
        say(f"{phase:9} {verdict}; {seconds[0]:.2f} s, C++ {seconds[1]:.2f} s")
        if a != b:
            found = list(difflib.unified_diff(b.splitlines(), a.splitlines(), "cpp", "python", lineterm="", n=1))
            data("\n".join(found[:lines]))
            if len(found) > lines:
                say(f"... and {len(found) - lines} more lines")
            break
    if execute and not lowered.config.is_abstract and "all" in report["phases"]:
        report["largest_difference"] = _execute(program, lowered, modules)
        say(f"results of both differ by at most {report['largest_difference']:.1e}")
    return report


def _execute(program: Any, lowered: Any, modules: dict[str, Any]) -> float:
    flat = [*lowered.traced.constants, *program.arrays(program.dynamic(program.args))]
    results = []
    for module in modules.values():
        loaded = load(
            module, dict(lowered.config.topology), host_callbacks=lowered.traced.host_callbacks
        )
        # Copies, because the program may give its arguments away.
        values = loaded(*copied([jax.random.key_data(x) if _is_key(x) else x for x in flat]))
        results.append([np.asarray(v, dtype=np.float64) for v in values])
    differences = [float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(*results, strict=True)]
    return float(np.max(differences, initial=0.0))  # NaN, if one is


def _is_key(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
