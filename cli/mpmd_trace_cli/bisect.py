"""`mpmd-trace bisect`: which pass first gives other numbers than plain `jax.jit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.api.lowered import Lowered
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace_cli.console import data, rounding_hint, say
from mpmd_trace_cli.files import check_output, write_text
from mpmd_trace_cli.program import copied, load_program
from mpmd_trace_cli.status import CallError
from mpmd_trace_devtools.bisect import Modules, Stage, bisect, reduce_wrong_pass
from mpmd_trace_devtools.execution import Wrong, wrong_instruction
from mpmd_trace_devtools.numbers import Error, Numbers, largest


def bisect_program(
    file: str,
    settings: Sequence[str],
    *,
    tolerance: float | None = None,
    every: bool = False,
    seconds: float = 60.0,
    out: str | None = None,
) -> dict[str, Any]:
    """Look for the first pass of a program after which its module computes something else, and tell.

    The arguments are those of `mpmd-trace bisect`; the tolerance is by default half of the digits of the numbers.

    Returns:
        `passes`: number, spec, error and result of each that was looked at; `wrong`: the number of the first wrong
        one, or None; `reduced`: the small module, or None; `executed`, where no pass is wrong: the error of the step
        that is executed, and if it is too large the first `instruction` that is wrong.

    Raises:
        MpmdError: where the program cannot be interpreted.
    """
    if tolerance is not None and not tolerance >= 0:
        raise CallError(f"--tolerance is {tolerance:g}; it must be a number from 0 on")
    if not seconds >= 0:
        raise CallError(f"--seconds is {seconds:g}; it is a time limit, or 0 to reduce nothing")
    if out is not None:
        check_output(out)
    program = load_program(file, settings)
    modules = Modules()
    lowered = program.jitted().lower_lazily(*program.args, hooks=[modules])
    numbers = Numbers.of(program, lowered)
    limit = numbers.tolerance if tolerance is None else tolerance
    modules.start(parse(lowered.traced.mlir_text()))
    _ = lowered.partitioned
    stages = modules.stages
    say(f"{len(stages)} modules; a result may differ from plain jax.jit by {limit:.1e} of its norm")
    culprit = bisect(stages, numbers, limit, every=every, say=lambda stage, error: say(_line(stage, error, limit)))
    looked = sorted(culprit.errors.items())
    report: dict[str, Any] = {
        "tolerance": limit,
        "passes": [
            {"pass": stages[at].number, "spec": stages[at].spec, "error": error.size, "result": error.result}
            for at, error in looked
        ],
        "wrong": None if culprit.wrong is None else stages[culprit.wrong].number,
        "reduced": None,
    }
    if culprit.wrong is None:
        report["executed"] = _executed(lowered, numbers, limit)
    elif culprit.wrong > 0 and seconds > 0:
        before, spec = stages[culprit.wrong - 1].module, stages[culprit.wrong].spec
        small = reduce_wrong_pass(before, spec, limit, seconds, say)
        report["reduced"] = small
        if small is not None and out is not None:
            write_text(out, small)
    return report


def is_wrong(report: dict[str, Any]) -> bool:
    """Return whether a pass, or the step that is executed, gives other numbers than `jax.jit`."""
    executed = report.get("executed")
    return report["wrong"] is not None or (executed is not None and not executed["error"] <= report["tolerance"])


def tell(report: dict[str, Any]) -> None:
    """Print the report.  Raises `MpmdError` when something is wrong."""
    limit, wrong = report["tolerance"], report["wrong"]
    by_number = {row["pass"]: row for row in report["passes"]}
    if wrong is None:
        executed = report["executed"]
        if executed is not None and not executed["error"] <= limit:
            raise MpmdError(
                f"every pass computes what jax.jit does, but the step, executed, does not: {executed['result']} "
                f"differs by {executed['error']:.1e} of its norm. {_blame(executed)}"
            )
        data("every module, and the step that is executed, computes what jax.jit does")
        return
    row = by_number[wrong]
    what = f"{row['result']} differs by {row['error']:.1e} of its norm"
    if wrong == 0:
        hint = rounding_hint(row["error"], "--tolerance accepts more")
        raise MpmdError(f"the program is wrong before the first pass: as traced, {what}{hint}")
    if report["reduced"] is not None:
        data(f"// {row['spec']} makes this compute something else:\n{report['reduced']}")
    raise MpmdError(f"{row['spec']} ({wrong}) is the first pass that changes numbers: {what}")


def _blame(executed: dict[str, Any]) -> str:
    """Return what the step, executed instruction by instruction, tells of the fault."""
    at, error = executed["instruction"], executed["instruction_error"]
    if at is None and error <= executed["tolerance"]:
        return "Executed one instruction after the other it is right: something is read or overwritten too early"
    if at is None:
        return "Each of its instructions is right for itself, so that the plan reads other values than the module"
    which = f"instruction {at['number']} of the plan, the {at['what']}"
    if at["fault"] == "overwritten":
        return f"In {which}, {at['result']} is read, which has changed since: its memory was donated too early"
    if at["fault"] == "transfer":
        return f"In {which}, {at['result']} is not what was sent"
    return (
        f"In {which}, {at['result']} differs by {at['error']:.1e} from what its ops give one by one for the "
        'same arrays: XLA compiled it wrongly; compiler_options={"xla_backend_optimization_level": 0} may tell'
    )


def _line(stage: Stage, error: Error, limit: float) -> str:
    verdict = "right" if error.size <= limit else f"wrong: {error.result}"
    return f"{stage.number:3}  {error.size:8.1e}  {verdict:24} {stage.spec[:80]}"


def _executed(lowered: Lowered, numbers: Numbers, limit: float) -> dict[str, Any] | None:
    """Return how far an executed step is off, and in which instruction that begins; None on abstract meshes."""
    if lowered.config.is_abstract:
        return None
    compiled = lowered.compile()
    results = compiled.program(*copied([jax.numpy.asarray(a) for a in numbers.arguments]))
    error = largest([np.asarray(r) for r in results], numbers.expected, numbers.results)
    report: dict[str, Any] = {"error": error.size, "result": error.result}
    if error.size <= limit:
        return report
    say(f"executed, {error.result} differs by {error.size:.1e}; one instruction after the other")
    given = copied([jax.numpy.asarray(a) for a in numbers.arguments])
    wrong, actual = wrong_instruction(compiled.program, lowered.partitioned.module, given, limit)
    at = None if wrong is None else {"number": wrong.number, "what": wrong.what, "fault": wrong.fault, **_error(wrong)}
    left = None if wrong is not None else largest(actual, numbers.expected, numbers.results).size
    return {**report, "tolerance": limit, "instruction": at, "instruction_error": left}


def _error(wrong: Wrong) -> dict[str, Any]:
    return {"error": wrong.error.size, "result": wrong.error.result}
