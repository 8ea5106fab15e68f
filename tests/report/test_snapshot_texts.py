"""The texts of snapshots are those of the module."""

from __future__ import annotations

from pathlib import Path

from mpmd_trace.ir.ops import Module
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.report.snapshots import Snapshots
from mpmd_trace_cli.program import load_program

TINY = Path(__file__).parents[1] / "programs" / "tiny.py"


def test_snapshots_are_the_modules_as_text() -> None:
    program = load_program(str(TINY))
    snapshots, expected = Snapshots(), []

    def keep(run: PassRun, module: Module) -> None:
        if run.changed:
            expected.append(str(module))

    _ = program.jitted().lower_lazily(*program.args, hooks=[snapshots, keep]).partitioned
    assert list(snapshots.texts.values()) == expected and len(expected) > 20
