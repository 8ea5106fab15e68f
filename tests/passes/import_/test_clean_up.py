"""Clean-up, done by MLIR while it reads the text, and what it leaves when that is not possible."""

from __future__ import annotations

from typing import Any

import pytest

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import Module, NamedComputationOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.import_.clean_up import CleanUp, read_clean
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.passes.partition import partition

PLAIN = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<4xf32>) {
    %1 = stablehlo.add %x, %x : tensor<4xf32>
    %2 = chlo.square %1 : tensor<4xf32> -> tensor<4xf32>
    %3 = chlo.square %1 : tensor<4xf32> -> tensor<4xf32>
    %4 = stablehlo.add %2, %3 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  %5 = stablehlo.negate %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""

WITH_CALL = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<4xf32>) {
    %1 = func.call @g(%x) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""

ARGUMENTS: dict[str, Any] = {
    "func_name": "step",
    "named_meshes": [("m", [("x", 2)])],
    "assignment": {"f": "m"},
    "input_meshes": [None],
    "output_meshes": [None],
}


def every_step(text: str) -> tuple[str, list[PassRun]]:
    """The result when a hook looks at each pass, the first one included."""
    seen: list[PassRun] = []

    def look(run: PassRun, _: Module) -> None:
        seen.append(run)

    return partition(text, **ARGUMENTS, hooks=[look]).as_text(), seen


@pytest.mark.parametrize("text", [PLAIN, WITH_CALL], ids=["plain", "with a call"])
def test_reading_and_cleaning_at_once_gives_what_the_pass_gives(text: str) -> None:
    found = partition(text, **ARGUMENTS)
    stepwise, seen = every_step(text)
    assert found.as_text() == stepwise
    assert [run.spec for run in found.runs] == [run.spec for run in seen]
    assert "chlo" not in found.as_text() and "call @g" not in found.as_text()


def test_calls_and_mistakes_take_the_steps() -> None:
    assert read_clean(WITH_CALL) is None
    assert read_clean("func.func @main() { nonsense }") is None


LAYERS = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<4xf32>) {
    %1 = chlo.square %x : tensor<4xf32> -> tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  %2 = mpmd.named_computation<"g"> (%0) (%x: tensor<4xf32>) {
    %1 = SQUARE
    mpmd.return %1 : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  %3 = mpmd.named_computation<"h"> (%2) (%x: tensor<4xf32>) {
    %1 = stablehlo.add %x, %x : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %3 : tensor<4xf32>
}
func.func private @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.mark.parametrize(
    "square", ["stablehlo.multiply %x, %x : tensor<4xf32>", "func.call @g(%x) : (tensor<4xf32>) -> tensor<4xf32>"]
)
def test_equal_layers_are_one_body(square: str) -> None:
    """Equal when clean-up is done, that is; another layer stays another body."""
    text = LAYERS.replace("SQUARE", square)
    module = parse(text)
    CleanUp().run(module, Diagnostics())
    read = read_clean(text)
    assert (read is None) == ("call" in square)
    for found in [module, *([] if read is None else [read[0]])]:
        f, g, h = (op.regions[0] for op in found.main.body if isinstance(op, NamedComputationOp))
        assert f is g and f is not h
