"""Snapshots print each body once, and the text is that of the module."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpmd_trace.ir import pretty
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.pretty import PrettyPrinter
from mpmd_trace.ir.printer import print_region
from mpmd_trace.ir.text import parse
from mpmd_trace.jax_compat.mlir import prettify
from mpmd_trace.passes.manager import PassRun
from mpmd_trace.report.snapshots import Snapshots
from mpmd_trace_cli.program import load_program

TINY = Path(__file__).parents[1] / "programs" / "tiny.py"


def test_snapshots_are_the_modules_as_text() -> None:
    program = load_program(str(TINY))
    snapshots, expected = Snapshots(), []

    def keep(run: PassRun, module: Module) -> None:
        if run.changed:
            expected.append(str(module))

    _ = program.jitted().lower_lazily(*program.args, hooks=[snapshots, keep]).partitioned
    assert list(snapshots.texts.values()) == expected and len(expected) > 20


FRAGMENT = """
    %{name}:2 = mpmd.fragment<mesh="m", origin=["f"]> (%{of}) (%a: tensor<4xf32>) {{
      %b = stablehlo.{op} %a {{note = "{note}"}} : tensor<4xf32>
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %c = stablehlo.reduce(%b init: %z) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
       reducer(%p: tensor<f32>, %q: tensor<f32>) {{
        %r = stablehlo.maximum %p, %q : tensor<f32>
        %s = stablehlo.add %r, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}
      mpmd.return %b, %c : tensor<4xf32>, tensor<f32> }} : (!m) -> (!m, !s)"""
EMPTY = """
    %{name} = mpmd.fragment<mesh="m", origin=[]> () () {{
      %z = stablehlo.constant dense<0.0> : tensor<4xf32>
      %b = stablehlo.negate %z : tensor<4xf32>
      mpmd.return %b : tensor<4xf32> }} : () -> !m"""


CONSTANT = "\n    %outside = stablehlo.constant dense<1.0> : tensor<f32>"


def fragment(name: str, of: str = "x", op: str = "negate", note: str = "") -> str:
    return FRAGMENT.format(name=name, of=of, op=op, note=note)


def module_of(bodies: dict[str, Region], *lines: str) -> Module:
    """A module whose fragments have these bodies, as equal stages share them; the others are added."""
    functions = [line for line in lines if "func.func" in line]
    text = """
!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
!s = !mpmd.mesh_tensor<"m", tensor<f32>>
module {
  func.func @main(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {"""
    text += "".join(line for line in lines if line not in functions) + "\n    return %x : !m }"
    module = parse(text + "".join(functions) + "}")
    for op in module.walk():
        for i, region in enumerate(op.regions):
            if region.frozen:
                op.regions[i] = bodies.setdefault(print_region(region), region)
    return module


NESTED = """
  func.func @nested(%x: !m, %n: tensor<i1>) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    %w = "stablehlo.if"(%n) ({
      %y = mpmd.named_computation<"f"> (%n) (%a: tensor<i1>) {
        %b = stablehlo.not %a : tensor<i1>
        mpmd.return %b : tensor<i1> } : (tensor<i1>) -> tensor<i1>
      stablehlo.return %y : tensor<i1> }, { stablehlo.return %n : tensor<i1> }) : (tensor<i1>) -> tensor<i1>
    %v = mpmd.named_computation<"f"> (%w) (%a: tensor<i1>) {
        %b = stablehlo.not %a : tensor<i1>
        mpmd.return %b : tensor<i1> } : (tensor<i1>) -> tensor<i1>
    return %x : !m }"""
ELSEWHERE = NESTED.replace("@nested(%x: !m, %n: tensor<i1>)", "@nested(%n: tensor<i1>, %o: !m, %x: !m)")
STRINGS = [fragment("u", note="100%5 of %arg0"), fragment("v"), fragment("w", note="100%5 of %arg0")]


@pytest.mark.parametrize("second", [
    [fragment("u"), fragment("v"), EMPTY.format(name="w"), EMPTY.format(name="z")],
    [*(EMPTY.format(name=f"e{i}") for i in range(12)), fragment("u"), fragment("v", "e3")],
    [*STRINGS, EMPTY.format(name="e")],
    [CONSTANT, fragment("u"), fragment("v")],
    [fragment("u"), NESTED],
    [fragment("u"), ELSEWHERE],
], ids=["again", "other numbers", "strings", "named values outside", "nested", "other arguments"])  # fmt: skip
def test_bodies_move(second: list[str]) -> None:
    bodies: dict[str, Region] = {}
    first = [fragment("u"), EMPTY.format(name="w"), EMPTY.format(name="t")]
    modules = [module_of(bodies, *lines) for lines in (first, second, second[:1])]
    printer = PrettyPrinter()
    for module in modules * 2:
        assert printer.text(module) == str(module)


def test_mlir_prints_a_body_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(pretty, "prettify", lambda text: [seen.append(text), prettify(text)][1])
    printer = PrettyPrinter()
    module = module_of({}, fragment("u"), fragment("v", "u#0"), fragment("w"))
    for _ in range(2):
        assert printer.text(module).count("stablehlo.negate") == 3
    assert [text.count("stablehlo.negate") for text in seen] == [1, 0]
