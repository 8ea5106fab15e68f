"""`explain`: why a value of a program, or of a module, is on its mesh; what each mesh of a program holds."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.api.request import device_memory
from mpmd_trace.backend.collectives import CollectivesReport
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.report.explain import Explanation, before_placement, explain, rules_of
from mpmd_trace.report.placement_reasons import reasons
from mpmd_trace.report.query import UnknownName
from mpmd_trace_cli import placement_report
from mpmd_trace_cli.compile import fit_text
from mpmd_trace_cli.console import data
from mpmd_trace_cli.files import read_text
from mpmd_trace_cli.program import load_program
from mpmd_trace_cli.status import CallError


def explain_value(file: str, value: str, infer_transfers: bool, target: str | None = None) -> Explanation:
    """Explain where the value is.  Raises `MpmdError`.

    MLIR text (`*.mlir` or `-`) is taken as it is: a module before mesh inference.  Programs are traced and
    brought there.
    """
    if file == "-" or file.endswith(".mlir"):
        text, name = read_text(file)
        module = parse(text, filename=name)
        if not module.mpmd_functions:
            raise MpmdError(f"no function in {name} has a topology, so there are no meshes to explain")
        if value.startswith("%"):
            value = _place_of_name(text, name, value)
        return _explained(module, value, infer_transfers=infer_transfers)
    if value.startswith("%"):
        raise CallError(
            f"'{value}' is a name in a text: explain the text (mpmd-trace dump writes some), or a name, "
            "an input, a result or a place of the program"
        )
    program = load_program(file, target=target)
    lowered = program.jitted().lower_lazily(*program.args)
    before, results = before_placement(lowered), lowered.traced.out_names
    if before is None:
        raise MpmdError(f"{os.path.basename(file)} has no meshes to choose from")
    if value in results:
        value = f"result {results.index(value)}"
    return _explained(before, value, **rules_of(lowered.request))


def _explained(module: Module, value: str, **rules: Any) -> Explanation:
    """Return the explanation of a value.  Raises `CallError` if there is none of that name."""
    try:
        return explain(module, value, **rules)
    except UnknownName as error:
        raise CallError(error.diagnostics) from None


def _place_of_name(text: str, name: str, value: str) -> str:
    """Return the input, or the place, of what a text calls `%value`.  Raises `CallError` when it calls nothing so."""
    lines = text.splitlines()
    own = re.escape(value)
    for line in lines:
        head = re.match(r"\s*func\.func (?:public )?@[^(]*\((.*)", line)
        inputs = re.findall(r"(%[\w$.-]+): ", head.group(1)) if head is not None else []
        if value in inputs:
            return f"input {inputs.index(value)}"
    defines = re.compile(rf"\s*(?:%[\w$.-]+(?::\d+)?, )*{own}(?::\d+)?(?:, .*)? = ")
    numbers = [number for number, line in enumerate(lines, 1) if defines.match(line)]
    if not numbers:
        raise CallError(f"nothing in {name} is called {value}")
    return f"{name}:{numbers[0]}"


def explain_placement(file: str, target: str | None = None, *, as_json: bool) -> None:
    """Print what each mesh of a program holds, what is sent between and inside of them, and what passes did about it.

    The program is compiled, unless its meshes have no devices.  Raises `MpmdError`.
    """
    if file == "-" or file.endswith(".mlir"):
        if file != "-":
            read_text(file)  # is missing, rather than a value
        raise CallError(f"of a module one value is explained: mpmd-trace explain {file} --value 'input 0'")
    program = load_program(file, target=target)
    first = program.jitted().lower(*program.args)
    lowered: PartitionedProgram = first
    report, collectives, fits = first.placement_report(), CollectivesReport(), ""
    if not program.config.is_abstract:
        compiled = first.compile()
        lowered, report, collectives = compiled.lowered, compiled.placement_report(), compiled.collectives()
        if target is not None:
            fits = fit_text(
                {m: held.peak for m, held in compiled.memory_analysis().items()}, device_memory(program.config)
            )
    why = reasons(report, lowered)
    if as_json:
        more = placement_report.facts_data(program.config, lowered, collectives)
        data({**placement_report.as_data(report, why), **more})
        return
    told = placement_report.as_text(report, why, file)
    data(told + placement_report.facts_text(program.config, lowered, collectives, fits))


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as plain data; places as text."""
    plain = dataclasses.asdict(explanation)
    for placement in plain["placements"]:
        placement["location"] = str(placement["location"])
    return plain
