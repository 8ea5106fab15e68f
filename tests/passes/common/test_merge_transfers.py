"""`mpmd-merge-transfers`."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, run

BEFORE = """
func.func @main(%p: !S, %q: !S) -> !T attributes {topology = #topo} {
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


def bundles(module: Module) -> int:
    """How often several values are sent together."""
    return sum("concat_transfer" in op.attrs for op in module.main.body)


def test_each_consumer_gets_the_values_that_it_had() -> None:
    before = parse(PRELUDE + BEFORE)
    after = run_passes(before.clone(), PASS)
    assert bundles(after) == 1
    assert_same_meaning(before, after)


def test_bundles_are_not_bundled_again_and_bodies_are_shared() -> None:
    module = run(BEFORE, f"{PASS},mpmd-fragment-dce")
    once = str(module)
    run_passes(module, PASS)
    assert str(module) == once
    step = BEFORE.replace("@main", "private @step")
    calls = "\n".join(f"%{i} = mpmd.call @step(%p, %q) : (!S, !S) -> !T" for i in range(4))
    main = f"func.func @main(%p: !S, %q: !S) -> !T attributes {{topology = #topo}} {{ {calls}\nreturn %3 : !T\n}}"
    many = run(main + step, f"mpmd-call-inline,{PASS}")
    assert bundles(many) == 4
    assert len({id(op.body) for op in many.main.body if isinstance(op, FragmentOp)}) == 2
