"""The programs of README and docs, and ways to run them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import textwrap
import warnings
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]


#: Why code in the docs is not run: that of other libraries, by its first line.
NOT_RUN = {
    "import torch\n": "needs PyTorch, and two processes with a GPU each",
    "import jaxpp.api as jaxpp\n": "needs JaxPP, which has no package for the supported versions of JAX",
    "from shardy.integrations.python.jax import mpmd\n": "needs Shardy's own Python package, which jaxlib lacks",
}


def blocks(name: str) -> list[str]:
    """Return the Python in fences, without what cannot run here."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)
    return [code for code in found if not code.startswith(tuple(NOT_RUN))]


#: In code of the docs that loads data by grain, whose threads read 500 batches ahead by default.
READING_LITTLE = "to_iter_dataset()", "to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1))"

_CODE = (ast.Call, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Dict)


def indented(name: str) -> list[str]:
    """Return the Python in indented blocks: what parses and calls, imports or defines something."""
    text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(), flags=re.S | re.M)
    result = []
    for part in re.findall(r"\n\n((?: {4,}.*\n|\n(?= {4}))+)", text + "\n"):
        code = textwrap.dedent(part)
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue
        if any(isinstance(node, _CODE) for node in ast.walk(tree)):
            result.append(code)
    return result


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
