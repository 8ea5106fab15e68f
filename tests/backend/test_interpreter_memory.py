"""The interpreter computes what it computed before once, wherever a pass has put it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpmd_trace.ir.text import parse
from mpmd_trace_devtools import interpreter

ONE_BY_ONE = """
func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (tensor<4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.add %arg0, %arg1 : tensor<4xf32>
  %1 = stablehlo.subtract %0, %arg1 : tensor<4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.OP across dimensions = [0]
      : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %1, %2 : tensor<4xf32>, tensor<f32>
}
"""
ARGS = [np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)]


def _computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ops that are computed, in order."""
    names: list[str] = []
    run = interpreter.Interpreter._run

    def seen(self: Any, op: Any, step: Any, inputs: Any) -> Any:
        names.append(op.name.removeprefix("stablehlo."))
        return run(self, op, step, inputs)

    monkeypatch.setattr(interpreter.Interpreter, "_run", seen)
    return names


def test_ops_on_arrays_of_another_module_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names, remembered = _computed(monkeypatch), interpreter.Remembered()
    module = parse(ONE_BY_ONE.replace("OP", "add"))
    total = interpreter.interpret(module, ARGS, remembered=remembered)[1]
    assert total == 6 and names == ["constant", "add", "subtract", "reduce"]
    names.clear()
    # Equal arrays in other places of memory; another op, with others after it, has other operands or attributes.
    other = ONE_BY_ONE.replace("OP", "maximum").replace("subtract %0, %arg1", "subtract %arg1, %0")
    least = interpreter.interpret(parse(other), [a.copy() for a in ARGS], remembered=remembered)[1]
    assert least == 0 and names == ["subtract", "reduce"]


def test_what_has_no_room_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names, remembered = _computed(monkeypatch), interpreter.Remembered(room=4)
    for _ in range(2):
        interpreter.interpret(parse(ONE_BY_ONE.replace("OP", "add")), ARGS, remembered=remembered)
    assert names == ["constant", "add", "subtract", "reduce", "add", "subtract", "reduce"]
