"""The programs of README and docs, and ways to run them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)


#: Asks for devices; in this process there are eight.
DEVICES = re.compile(r'^jax\.config\.update\("jax_num_cpu_devices", (\d+)\)\n', re.MULTILINE)


def run(code: str, tmp_path: Path) -> str:
    """Return what the program prints, in this process with as many devices as it asks for."""
    file = tmp_path / "doc.py"
    file.write_text(DEVICES.sub("", code))
    devices = jax.devices()[: max(map(int, DEVICES.findall(code)), default=8)]
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(action="ignore"),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        warnings.filterwarnings("error", "the loss is not linear")  # the docs show no such loss without a word
        patch.setattr(jax, "devices", lambda backend=None: devices)
        runpy.run_path(str(file), run_name="__main__")
    return printed.getvalue()


def run_alone(code: str, tmp_path: Path, **variables: str) -> str:
    """Return what the program prints in a process of its own."""
    file = tmp_path / "doc.py"
    file.write_text(code)
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
