"""A bug of ours on the command line: its traceback, and what to send with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Command

from mpmd_trace.backend import runtime

TINY = Path(__file__).parents[1] / "programs" / "tiny.py"


@pytest.mark.parametrize("where", ["load", "command"])
def test_a_bug_is_told(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str) -> None:
    names: dict[str, object] = {}
    exec(compile("def broken(*args):\n    assert not args, 'no'", runtime.__file__, "exec"), names)
    if where == "load":
        monkeypatch.setattr(runtime, "make_steps", names["broken"])
    else:
        monkeypatch.setattr("mpmd_trace_cli.run.load_program", names["broken"])
    status, _, said = command("run", str(TINY), "--out", str(tmp_path / "out"))
    assert status == 1
    assert "Traceback" in said and "internal error: AssertionError: no (backend/runtime.py:2, in broken)\n" in said
    assert "This is a bug in mpmd_trace, not in your program" in said
