"""`mpmd-regroup-sums`: products of sums of several meshes with thin matrices are summed on each mesh."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.ops import UnassignOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning

#: The gradients of both matrices of LoRA on a table of WIDE columns that two meshes read, over two microbatches.
MODULE = """
!t = tensor<8xWIDExf32>
!a = !mpmd.mesh_tensor<"a", !t>
!b = !mpmd.mesh_tensor<"b", !t>
func.func public @main(%p: !a, %p1: !a, %q: !b, %q1: !b, %l: tensor<2xWIDExf32>, %r: tensor<8x2xf32>)
    -> (tensor<8x2xf32>, tensor<2xWIDExf32>) attributes {
    topology = #mpmd.topology<<"a": <["x"=2]>>, <"b": <["x"=2]>>>} {
  %u = mpmd.unassign %p : (!a) -> !t
  %u1 = mpmd.unassign %p1 : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %v1 = mpmd.unassign %q1 : (!b) -> !t
  %g = stablehlo.add %u, %v : !t
  %h = stablehlo.add %u1, %v1 : !t
  %0 = stablehlo.dot_general %g, %l, contracting_dims = [1] x [1] : (!t, tensor<2xWIDExf32>) -> tensor<8x2xf32>
  %1 = stablehlo.dot_general %h, %l, contracting_dims = [1] x [1] : (!t, tensor<2xWIDExf32>) -> tensor<8x2xf32>
  %2 = stablehlo.dot_general %g, %r, contracting_dims = [0] x [0] : (!t, tensor<8x2xf32>) -> tensor<WIDEx2xf32>
  %3 = stablehlo.dot_general %h, %r, contracting_dims = [0] x [0] : (!t, tensor<8x2xf32>) -> tensor<WIDEx2xf32>
  %4 = stablehlo.transpose %2, dims = [1, 0] : (tensor<WIDEx2xf32>) -> tensor<2xWIDExf32>
  %5 = stablehlo.transpose %3, dims = [1, 0] : (tensor<WIDEx2xf32>) -> tensor<2xWIDExf32>
  %6 = stablehlo.add %0, %1 : tensor<8x2xf32>
  %7 = stablehlo.add %4, %5 : tensor<2xWIDExf32>
  return %6, %7 : tensor<8x2xf32>, tensor<2xWIDExf32>
}
"""


@pytest.mark.parametrize(("wide", "apart"), [(8, True), (2, False)])
def test_products_with_thin_matrices(wide: int, apart: bool) -> None:
    text = MODULE.replace("WIDE", str(wide))
    module = parse(text)
    run_passes(module, "mpmd-regroup-sums")
    sums = [op for op in module.main.body if op.name == "stablehlo.add"]
    made = [[value.defining_op for value in op.operands] for op in sums]
    meshes = [{op.mesh_type.mesh for op in ops if isinstance(op, UnassignOp)} for ops in made]
    assert any(len(found) == 2 for found in meshes) != apart
    assert_same_meaning(parse(text), module)
