"""`mpmd-trace bisect`: a pass that breaks a program is found, with a small module that shows how."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Command, Writer

from mpmd_trace.backend.runtime import Runtime
from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.cse import Cse
from mpmd_trace_devtools import bisect as bisection
from mpmd_trace_devtools.execution import wrong_instruction
from mpmd_trace_devtools.numbers import Numbers, largest
from mpmd_trace_devtools.reduce import count_ops

TINY = str(Path(__file__).parent.parent / "programs" / "tiny.py")


@pytest.fixture
def wrong_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mpmd-cse` swaps the operands of subtractions, too."""
    right = Cse.run

    def swap(body: Region) -> bool:
        found = [op for op in body.block if op.name == "stablehlo.subtract"]
        for op in found:
            a, b = op.operands
            op.set_operand(0, b)
            op.set_operand(1, a)
        return bool(found)

    def run(self: Cse, module: Module, diagnostics: Any) -> Any:
        right(self, module, diagnostics)
        for op in module.main.body:
            if isinstance(op, FragmentOp):
                op.regions[0] = map_ops(op.regions[0], "swap", swap)
        return True

    monkeypatch.setattr(Cse, "run", run)


def test_what_is_right(command: Command) -> None:
    result = command("bisect", TINY, "--all", "--json")
    report = json.loads(result.out)
    assert result.status == 0 and report["wrong"] is None
    assert report["passes"][0]["spec"] == "traced" and len(report["passes"]) > 20
    assert all(row["error"] < 1e-6 for row in [*report["passes"], report["executed"]])
    result = command("bisect", TINY, "--tolerance=-1")
    assert (result.status, result.err) == (2, "error: --tolerance is -1; it must be a number from 0 on\n")


def test_a_program_may_be_wrong_as_traced(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Numbers.of

    def other(*args: Any) -> Numbers:
        numbers = right(*args)
        return dataclasses.replace(numbers, expected=[array + 1 for array in numbers.expected])

    monkeypatch.setattr(Numbers, "of", other)
    result = command("bisect", TINY)
    assert result.status == 1 and "the program is wrong before the first pass: as traced, result[" in result.err


def test_a_wrong_pass_may_break_down(
    command: Command, wrong_pass: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Cse.run

    def run(self: Cse, module: Module, diagnostics: Any) -> Any:
        if sum(isinstance(op, FragmentOp) for op in module.main.body) < 2:
            raise TypeError("too small")
        return wrong(self, module, diagnostics)

    monkeypatch.setattr(Cse, "run", run)
    small = tmp_path / "small.mlir"
    result = command("bisect", TINY, "-o", str(small))
    assert result.status == 1 and "is the first pass that changes numbers" in result.err
    assert small.read_text().count("mpmd.fragment<") >= 2


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


def test_ctrl_c_ends_the_reduction_alone(
    command: Command, wrong_pass: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = bisection._changes_numbers
    accepted: list[str] = []

    def changes_numbers(text: str, *more: Any) -> bool:
        if len(accepted) == 2:
            raise KeyboardInterrupt
        is_wrong = right(text, *more)
        accepted.extend([text] * is_wrong)
        return is_wrong

    monkeypatch.setattr(bisection, "_changes_numbers", changes_numbers)
    small = tmp_path / "small.mlir"
    result = command("bisect", TINY, "-o", str(small))
    assert result.status == 1 and "interrupted: " in result.err
    assert "mpmd-cse (" in result.err and "is the first pass that changes numbers" in result.err
    assert small.read_text() == accepted[-1] and len(accepted) == 2


class MakeOnes(FunctionPass):
    """A pass of a user, and a wrong one."""

    name = "make-ones"
    distributed_only = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        for op in function.body:
            if op.name == "stablehlo.constant":
                op.props["value"] = parse_attribute("dense<1.0> : tensor<2xf32>")
        return True


def test_a_pass_of_a_user_is_reduced() -> None:
    module = parse(
        "func.func @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {\n"
        "  %0 = stablehlo.constant dense<2.0> : tensor<2xf32>\n"
        "  %1 = stablehlo.tanh %arg0 : tensor<2xf32>\n"
        "  %2 = stablehlo.multiply %0, %1 : tensor<2xf32>\n"
        "  return %1, %2 : tensor<2xf32>, tensor<2xf32>\n}\n"
    )
    small = bisection.reduce_wrong_pass(module, [MakeOnes()], 1e-6, 60.0)
    assert small is not None and "stablehlo.constant" in small and count_ops(parse(small)) == 3
    assert bisection.reduce_wrong_pass(module, "canonicalize", 1e-6, 60.0) is None


def spoil(monkeypatch: pytest.MonkeyPatch, wanted: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """The first instruction whose description has the text `wanted` gives something else."""
    right = Runtime._call

    def call(self: Runtime, instruction: Any) -> Any:
        found, number = right(self, instruction), self.instructions.index(instruction)
        first = next((i for i, _ in enumerate(self.instructions) if wanted in self.describe(i)), None)
        return found if number != first else lambda arrays: change(found(arrays))

    monkeypatch.setattr(Runtime, "_call", call)


def test_a_wrong_execution_is_found(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    negated = lambda arrays: [-arrays[0], *arrays[1:]]  # noqa: E731
    with monkeypatch.context() as patch:
        spoil(patch, "(second, second(1))", negated)
        result = command("bisect", TINY)
    assert result.status == 1 and "every pass computes what jax.jit does, but the step, executed" in result.err
    said = r"In instruction \d+ of the plan, the run of @.* \(second, second\(1\)\) on mesh 'm1', "
    said += r"result 0 differs by 2.0e\+00"
    assert re.search(said, result.err.replace("\n", " ")), result.err
    with monkeypatch.context() as patch:
        spoil(patch, "to 'm1'", negated)
        report = json.loads(command("bisect", TINY, "--json").out)
    at = report["executed"]["instruction"]
    assert at["fault"] == "transfer" and at["what"].endswith("from mesh 'm0' to 'm1'")


def test_memory_that_is_given_away_too_early_is_found(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Any] = []

    def keep(arrays: list[Any]) -> list[Any]:
        lost[:] = arrays
        return arrays

    spoil(monkeypatch, "(first)", keep)
    program = importlib.import_module("tests.programs.tiny").program()
    lowered = program.jitted().lower(*program.args)
    loaded, numbers = lowered.compile().program, Numbers.of(program, lowered)
    found = wrong_instruction(loaded, lowered.partitioned.module, numbers.arguments, 1e-5)
    assert found[0] is None and largest(found[1], numbers.expected, numbers.results).size < 1e-5
    at = next(i for i in range(len(loaded.runtime.calls)) if "(second, " in loaded.runtime.describe(i))
    call = loaded.runtime.calls[at]
    loaded.runtime.calls[at] = lambda arrays: [call(arrays), *(array.delete() for array in lost)][0]
    wrong, _ = wrong_instruction(loaded, lowered.partitioned.module, numbers.arguments, 1e-5)
    assert wrong is not None and wrong.fault == "overwritten" and "(first)" in wrong.error.result


def test_programs_with_callbacks_are_told(command: Command, written: Writer) -> None:
    file = written(
        "import dataclasses, sys\n"
        f"sys.path.insert(0, {str(Path(TINY).parent)!r})\n"
        "import jax, tiny\n"
        "def step(ws, x):\n"
        "    jax.debug.print('hello')\n"
        "    return tiny.step(ws, x)\n"
        "program = dataclasses.replace(tiny.program(), fn=step, where=None)\n",
        "talks.py",
    )
    result = command("bisect", file)
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


def test_keys_stacked_layers_and_arrays_on_several_devices(command: Command, written: Writer) -> None:
    result = command("bisect", written(KEYS_AND_STACKS, "stacked.py"), "--json")
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["wrong"] is None and report["executed"]["error"] < 1e-5
