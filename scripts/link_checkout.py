"""Make this checkout importable in the environment that runs this file, and write its command `mpmd-trace`.

`pip install -e .` does the same, but builds a wheel for it.
"""

import sys
import sysconfig
import tomllib
from pathlib import Path

root = Path(__file__).resolve().parents[1]
setuptools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
folders = [f"{root / folder}\n" for folder in setuptools["packages"]["find"]["where"]]
Path(sysconfig.get_path("purelib"), "mpmd_trace.pth").write_text("".join(folders))
command = Path(sysconfig.get_path("scripts"), "mpmd-trace")
command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m mpmd_trace "$@"\n')
command.chmod(0o755)
