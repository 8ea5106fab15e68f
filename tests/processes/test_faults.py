"""A process that dies, stops, or sends nothing is named by the others, in time; `injections.py` has many more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from injections import inject

from util import nightly


@pytest.mark.parametrize(
    # On a mesh over processes faults are for `make faults`, where time does not press.
    ("kind", "victim", "options"),
    [
        nightly("kill", 0, ()),  # as in what goes on from a checkpoint, below
        nightly("stop", 1, ()),
        nightly("withhold", 1, ()),
        nightly("cut", 1, ()),
        ("bug", 1, ()),
        nightly("withhold", 0, ("measured",)),
    ],
)
def test_the_others_name_who_is_at_fault(kind: str, victim: int, options: tuple[str, ...]) -> None:
    # A machine that does much else lets a process that is well wait for seconds, too.
    processes = 3 if "measured" in options else 2  # one waits for the value, another one for the timeline
    assert inject(kind, victim, 1, 2, processes=processes, options=options, timeout=10.0, late=120.0) == []


def test_the_rest_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "elastic.py"
    arguments = ["-n", "2", "--devices", "1", "--restarts", "1", str(script), "--folder", str(tmp_path), "--kill", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "mpmd_trace_cli.entry", "launch", *arguments],
        capture_output=True,
        text=True,
        timeout=1200,
        env={k: v for k, v in os.environ.items() if not k.startswith("JAX_")},
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"step (\d+) of 20 on (\d) processes", done.stdout) == [
        ("5", "2"), ("10", "2"), ("15", "1"), ("20", "1")
    ]  # fmt: skip
    assert "from the end of a process to the next step" in done.stdout
