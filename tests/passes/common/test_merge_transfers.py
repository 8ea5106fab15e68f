"""`mpmd-merge-transfers`."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from oracle import assert_same_meaning
from util import PRELUDE, run

BEFORE = """
func.func @mt(%p: !S, %q: !S) -> !T attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<f32>
  } : (!S, !S) -> (!S, !S)
  %1 = mpmd.transfer %0#0 : (!S) -> !T
  %2 = mpmd.transfer %0#1 : (!S) -> !T
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%2, %1) (%x: tensor<f32>, %y: tensor<f32>) {
    %s = stablehlo.subtract %x, %y : tensor<f32>
    mpmd.return %s : tensor<f32>
  } : (!T, !T) -> !T
  return %3 : !T
}
"""


PASS = "mpmd-merge-transfers"


def program(type: str, second: str | None = None, *, alpha: str = "", beta: str = "") -> str:
    """Two values of this type (or two types) go from alpha to beta."""
    second = second or type
    a, b = (f'!mpmd.mesh_tensor<"alpha", {t}{alpha}>' for t in (type, second))
    c, d = (f'!mpmd.mesh_tensor<"beta", {t}{beta}>' for t in (type, second))
    return f"""
    func.func @main(%p: {a}, %q: {b}) -> {c} attributes {{topology = #topo}} {{
      %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: {type}, %y: {second}) {{
        mpmd.return %x, %y : {type}, {second}
      }} : ({a}, {b}) -> ({a}, {b})
      %1 = mpmd.transfer %0#0 : ({a}) -> {c}
      %2 = mpmd.transfer %0#1 : ({b}) -> {d}
      %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: {type}, %y: {second}) {{
        mpmd.return %x : {type}
      }} : ({c}, {d}) -> {c}
      return %3 : {c}
    }}
    """


def concatenated(module: Module) -> list[str]:
    """The types that are sent together."""
    return [op.results[0].type.text for op in module.main.body if "concat_transfer" in op.attrs]


MESH = 'sdy.mesh @mesh = <["x"=2]>' + PRELUDE


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        (program("tensor<f32>"), "tensor<2xf32>"),
        (program("tensor<1x1xi32>"), "tensor<2x1x1xi32>"),
        (program("tensor<f32>", alpha=', memory_kind="device"'), "tensor<2xf32>"),
        (program("tensor<f32>", beta=', memory_kind="pinned_host"'), "tensor<2xf32>"),
        (program("tensor<1xf32>", alpha=", sharding=<@mesh, [{?}]>"), "tensor<2x1xf32>"),
        (program("tensor<2xf32>"), None),
        (program("tensor<f32>", "tensor<1xf32>"), None),
        (program("tensor<f32>", "tensor<i32>"), None),
        (program("tensor<f32>", alpha=', memory_kind="pinned_host"'), None),
    ],
)
def test_what_is_sent_together(text: str, sent: str | None) -> None:
    found = concatenated(run(text, PASS, MESH))
    assert found == ([] if sent is None else [f'!mpmd.mesh_tensor<"beta", {sent}>'])


def test_each_consumer_gets_the_values_that_it_had() -> None:
    before = parse(PRELUDE + BEFORE.replace("@mt", "@main"))
    after = run_passes(before.clone(), PASS)
    assert concatenated(after)
    assert_same_meaning(before, after)


def test_bundles_are_not_bundled_again_and_bodies_are_shared() -> None:
    module = run(program("tensor<f32>"), f"{PASS},mpmd-fragment-dce")
    once = str(module)
    run_passes(module, PASS)
    assert str(module) == once
    step = program("tensor<f32>").replace("@main", "private @step")
    a, b = '!mpmd.mesh_tensor<"alpha", tensor<f32>>', '!mpmd.mesh_tensor<"beta", tensor<f32>>'
    calls = "\n".join(f"%{i} = mpmd.call @step(%p, %q) : ({a}, {a}) -> {b}" for i in range(4))
    main = f"func.func @main(%p: {a}, %q: {a}) -> {b} attributes {{topology = #topo}} {{ {calls}\nreturn %3 : {b}\n}}"
    many = run(main + step, f"mpmd-call-inline,{PASS}")
    assert len(concatenated(many)) == 4
    assert len({id(op.body) for op in many.main.body if isinstance(op, FragmentOp)}) == 2
