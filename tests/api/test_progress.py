"""What is told while a program is compiled."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from mpmd_trace.diagnostics import progress
from pipelines import config, topology


def _step(x: jax.Array) -> jax.Array:
    for name in ("a", "b"):
        x = mt.named_computation(jnp.sin, name=name)(x)
    return x


def _jitted() -> Any:
    return mt.jit(_step, config({"a": "m0", "b": "m1"}, topology=topology(size=1)))


def test_the_logger_tells_trace_passes_and_xla_with_times(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mpmd_trace"):
        _jitted()(jnp.ones(3))
    lines = [record.getMessage() for record in caplog.records if record.name == "mpmd_trace"]
    assert [line.split()[0] for line in lines] == ["trace", "passes", "XLA"]
    assert all(re.fullmatch(r"\w+ of _step: \d+\.\d\d s", line) for line in lines)
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_each_program_is_told_on_the_level_of_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="mpmd_trace"):
        _jitted()(jnp.ones(3))
    lines = [record.getMessage() for record in caplog.records if "programs" in record.getMessage()]
    assert [line.split(",")[0] for line in lines] == ["XLA of _step: 1 of 2 programs", "XLA of _step: 2 of 2 programs"]


def test_programs_are_counted_in_the_stage_that_compiles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    count = progress.Compiling.count

    def counted(self: progress.Compiling, *args: Any) -> None:
        count(self, *args)
        told.append(str(self).rpartition(",")[0])

    monkeypatch.setattr(progress.Compiling, "count", counted)
    _jitted()(jnp.ones(3))
    stages = [f"compiling _step: {what}" for what in ("trace", "passes", "XLA")]
    assert told == [*stages, f"{stages[-1]} 1 of 2 programs", f"{stages[-1]} 2 of 2 programs"]


def test_jax_log_compiles_asks_for_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    with jax.log_compiles():
        _jitted()(jnp.ones(3))
    lines = [r for r in caplog.records if r.name == "mpmd_trace"]
    assert len(lines) == 3 and {r.levelno for r in lines} == {logging.WARNING}


def test_a_script_without_a_terminal_tells_in_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "TOLD_AFTER", 0.02)
    with progress.compiling("slow") as shown, progress.stage("XLA", "slow"):
        assert shown is not None
        shown.count(3, 20, "p3")
        deadline = time.monotonic() + 30
        while len(caplog.records) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "compiling slow: XLA 3 of 20 programs, 0 s" and len(lines) > 1
    assert caplog.records[0].levelno == logging.WARNING


def test_a_short_one_tells_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    _jitted()(jnp.ones(3))
    assert capfd.readouterr().err == ""


def test_no_library_of_bars_is_loaded_where_there_is_no_terminal() -> None:
    script = "import sys; from mpmd_trace.diagnostics import progress\n"
    script += "with progress.compiling('step') as shown: shown._thread.join(0.2)\n"
    script += "assert 'rich' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


_SCRIPT = """
import time
from mpmd_trace.diagnostics import progress
progress.BAR_AFTER = 0.0
{around}
    shown.what = "XLA"
    shown.count(7, 20, "p7_layer3")
    time.sleep(1.5)
"""


def _in_a_terminal(script: str) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=theirs, stdout=theirs) as process:
        os.close(theirs)
        found = b""
        try:
            while part := os.read(ours, 4096):
                found += part
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0, found
    os.close(ours)
    return found.decode()


def test_a_bar_in_a_terminal() -> None:
    found = _in_a_terminal(_SCRIPT.format(around="with progress.compiling('step') as shown:"))
    for text in ("compiling step: XLA", "7/20", "p7_layer3"):
        assert text in found


def test_no_bar_beside_that_of_a_tool() -> None:
    around = "with progress.without_bar(), progress.compiling('step') as none:\n    shown = progress.Compiling"
    script = _SCRIPT.format(around=around).replace('shown.count(7, 20, "p7_layer3")', "assert none is None")
    assert _in_a_terminal(script) == ""
