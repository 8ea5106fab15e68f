"""Benchmarks whose work is done by several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

#: Set in the processes of the job.
WORKER = "--worker"


def found_by_first(file: str, processes: int, devices: int, flags: str = "") -> Any:
    """What process 0 of a job that runs `file` with this script's arguments prints as JSON, behind everything else.

    Exits with the status of the job when it fails.
    """
    launch = [sys.executable, "-m", "mpmd_trace_cli.entry", "launch", "-n", str(processes), "--devices", str(devices)]
    env = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
    done = subprocess.run([*launch, file, *sys.argv[1:], WORKER], stdout=subprocess.PIPE, text=True, env=env)
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines() if line.startswith("[0] {")]
    if done.returncode or not lines:
        sys.exit(done.returncode or 1)
    return json.loads(lines[-1])
