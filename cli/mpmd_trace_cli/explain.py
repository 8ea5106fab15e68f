"""`explain`: why a value of a program, or of a module, is on its mesh; what each mesh of a program holds."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.report.explain import Explanation, explain
from mpmd_trace_cli.files import read_text
from mpmd_trace_cli.program import load_program
from mpmd_trace_cli.residence import as_data as residence_data
from mpmd_trace_cli.residence import as_text as residence_text
from mpmd_trace_cli.talk import data

__all__ = ["as_json", "explain_placement", "explain_value"]

#: After this pass computations are fragments, and mesh inference has not begun.
_READY = "mpmd-introduce-transfers"


class _Reached(Exception):
    """The pass has run."""


def explain_value(file: str, value: str, infer_transfers: bool) -> Explanation:
    """Explain where the value is.  Raises `MpmdError`.

    MLIR text (`*.mlir` or `-`) is taken as it is: a module before mesh inference.  Programs are traced and
    brought there.
    """
    if file == "-" or file.endswith(".mlir"):
        text, name = read_text(file)
        module = parse(text, filename=name)
        if not module.mpmd_functions:
            raise MpmdError(f"no function in {name} has a topology, so there are no meshes to explain")
        return explain(module, value, infer_transfers=infer_transfers)
    module, infers, same_mesh = _from_program(file)
    return explain(module, value, infer_transfers=infers, same_mesh=same_mesh)


def explain_placement(file: str, *, as_json: bool) -> None:
    """Print what each mesh of a program holds and what moves between them.  Raises `MpmdError`."""
    if file == "-" or file.endswith(".mlir"):
        raise MpmdError(f"of a module one value is explained: mpmd-trace explain {file} --value 'input 0'")
    program = load_program(file)
    found = program.jitted().lower(*program.args).residence()
    data(residence_data(found) if as_json else residence_text(found, file))


def as_json(found: Explanation) -> dict[str, Any]:
    """The explanation as plain data; places as text."""
    plain = dataclasses.asdict(found)
    for placement in plain["placements"]:
        placement["location"] = str(placement["location"])
    return plain


def _from_program(file: str) -> tuple[Module, bool, tuple[SameMesh, ...]]:
    """The program's module before mesh inference, whether it lets transfers be inferred, what shares a mesh."""
    found: list[Module] = []

    def hook(record: PassRun, module: Module) -> None:
        if record.spec.partition("{")[0] == _READY:
            found.append(module.clone())
            raise _Reached

    program = load_program(file)
    lowered = program.jitted().lower_lazily(*program.args, hooks=[hook])
    request = lowered.request
    with contextlib.suppress(_Reached):
        _ = lowered.partitioned
    if not found:
        raise MpmdError(f"{os.path.basename(file)} was partitioned without the pass {_READY}")
    return found[0], request.options.mpmd_infer_transfers, request.same_mesh
