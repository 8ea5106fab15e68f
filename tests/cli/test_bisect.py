"""`mpmd-trace bisect`: a pass that breaks a program is found, with a small module that shows how."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Command, runner

from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.cse_native import CseNative
from mpmd_trace.report.reduce import count_ops

TINY = str(Path(__file__).parent.parent / "programs" / "tiny.py")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return runner(capsys)


@pytest.fixture
def wrong_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mpmd-cse` swaps the operands of subtractions, too."""
    right = CseNative.run

    def swap(body: Region) -> bool:
        found = [op for op in body.block if op.name == "stablehlo.subtract"]
        for op in found:
            a, b = op.operands
            op.set_operand(0, b)
            op.set_operand(1, a)
        return bool(found)

    def run(self: CseNative, module: Module, diagnostics: Any) -> Any:
        right(self, module, diagnostics)
        for op in module.main.body:
            if isinstance(op, FragmentOp):
                op.regions[0] = map_ops(op.regions[0], "swap", swap)
        return True

    monkeypatch.setattr(CseNative, "run", run)


def test_what_is_right(command: Command) -> None:
    result = command("bisect", TINY, "--all", "--json")
    report = json.loads(result.out)
    assert result.status == 0 and report["wrong"] is None
    assert report["passes"][0]["spec"] == "traced" and len(report["passes"]) > 20
    assert all(row["error"] < 1e-6 for row in [*report["passes"], report["executed"]])
    result = command("bisect", TINY, "--tolerance", "0")  # jax.jit fuses what the interpreter does not
    assert result.status == 1 and "the program is wrong before the first pass: as traced, result[" in result.err


def test_a_wrong_pass_is_found_and_shown(command: Command, wrong_pass: None, tmp_path: Path) -> None:
    small = tmp_path / "small.mlir"
    result = command("bisect", TINY, "-o", str(small))
    found = r"error: mpmd-cse \(\d+\) is the first pass that changes numbers: result\[0\]"
    assert result.status == 1 and re.search(found, result.err)
    looked = [line for line in result.err.splitlines() if " right " in line or " wrong: " in line]
    assert 4 <= len(looked) <= 8
    module = parse(small.read_text())
    assert count_ops(module) < 12 and "stablehlo.subtract" in small.read_text()
    assert result.out.startswith("// mpmd-cse makes this compute something else:\n") and "subtract" in result.out


def test_programs_with_callbacks_are_told(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "talks.py"
    file.write_text(
        "import dataclasses, sys\n"
        f"sys.path.insert(0, {str(Path(TINY).parent)!r})\n"
        "import jax, tiny\n"
        "def step(ws, x):\n"
        "    jax.debug.print('hello')\n"
        "    return tiny.step(ws, x)\n"
        "program = dataclasses.replace(tiny.program(), fn=step, where=None)\n"
    )
    result = command("bisect", str(file))
    assert result.status == 1 and "talks.py:7" in result.err and "take the callbacks out" in result.err


KEYS_AND_STACKS = """
import jax, jax.numpy as jnp, numpy as np, mpmd_trace
from jax.sharding import Mesh

def step(ws, key, x):
    x = x + 0.1 * jax.random.normal(key, x.shape)
    x, _ = mpmd_trace.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, ws, name="blocks")
    return x, jax.random.fold_in(key, 1), ws * 2

meshes = {name: Mesh(np.array([device]), ("x",)) for name, device in zip("ab", jax.devices())}
config = mpmd_trace.make_config(meshes, {"blocks": ["a", "b"]})
ws = 0.3 * jax.random.normal(jax.random.key(0), (4, 4, 4))
args = (jax.device_put(ws, jax.devices()[1]), jax.random.key(3), jax.device_put(jnp.ones((2, 4)), jax.devices()[0]))
program = mpmd_trace.Program(step, args, config)
"""


def test_keys_stacked_layers_and_arrays_on_several_devices(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "stacked.py"
    file.write_text(KEYS_AND_STACKS)
    result = command("bisect", str(file), "--json")
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["wrong"] is None and report["executed"]["error"] < 1e-5
