"""`mpmd-split-loops`: loops over values of several meshes that depend on each other are unrolled."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning

#: Each iteration needs the inner product of what the other mesh has made.
MODULE = """
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
!t = tensor<4xf32>
func.func public @main(%p: !a, %q: !b, %flag: tensor<i1>) -> (!t, !t) attributes {
    topology = #mpmd.topology<<"a": <["x"=2]>>, <"b": <["x"=2]>>>} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %start = stablehlo.constant dense<START> : tensor<i32>
BODY
}
"""

LOOP = """
  %l:3 = stablehlo.while(%i = %start, %c = %u, %d = %v) : tensor<i32>, !t, !t
  cond {
    %end = stablehlo.constant dense<3> : tensor<i32>
    %less = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %dot = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (!t, !t) -> tensor<f32>
    %fill = stablehlo.broadcast_in_dim %dot, dims = [] : (tensor<f32>) -> !t
    %x = stablehlo.subtract %c, %fill : !t
    %y = stablehlo.add %d, %fill : !t
    stablehlo.return %next, %x, %y : tensor<i32>, !t, !t
  }
"""

CONDITIONAL = f"""
  %0:2 = "stablehlo.if"(%flag) ({{
{LOOP}
    stablehlo.return %l#1, %l#2 : !t, !t
  }}, {{
    stablehlo.return %v, %u : !t, !t
  }}) : (tensor<i1>) -> (!t, !t)
  return %0#0, %0#1 : !t, !t
"""


@pytest.mark.parametrize("start", [0, 2, 3])
@pytest.mark.parametrize("body", [LOOP + "  return %l#1, %l#2 : !t, !t", CONDITIONAL], ids=["plain", "conditional"])
def test_a_loop_that_runs_a_known_number_of_times_is_unrolled(start: int, body: str) -> None:
    text = MODULE.replace("BODY", body).replace("START", str(start))
    module = parse(text)
    run_passes(module, "mpmd-open-conditionals,mpmd-split-loops")
    names = [op.name for op in module.main.body]
    assert "stablehlo.while" not in names and names.count("stablehlo.dot_general") == 3 - start
    assert_same_meaning(parse(text), module)


def test_a_loop_whose_end_is_computed_stays() -> None:
    text = MODULE.replace("BODY", LOOP + "  return %l#1, %l#2 : !t, !t")
    text = text.replace("compare LT, %i, %end", "compare LT, %end, %i").replace("START", "9")
    module = parse(text)
    run_passes(module, "mpmd-split-loops")
    assert [op.name for op in module.main.body].count("stablehlo.while") == 1
