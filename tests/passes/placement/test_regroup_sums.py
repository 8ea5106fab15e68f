"""`mpmd-regroup-sums`: products of sums of several meshes with thin matrices are summed on each mesh."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.core import Value
from mpmd_trace.ir.ops import UnassignOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from oracle import assert_same_meaning

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


def test_terms_that_all_meshes_have_come_first() -> None:
    """Meshes `a` and `c` have terms of other types besides those of `b`, `c` in front of them."""
    ins = {"a": (4, 8, 6), "b": (4, 8), "c": (5, 4, 8)}
    names = [(mesh, f"%{mesh}{i}", f"tensor<{size}xf32>") for mesh in ins for i, size in enumerate(ins[mesh])]
    lines, total = ["%z = stablehlo.constant dense<0.0> : tensor<f32>"], None
    for mesh, name, type in names:
        one = f"%s{name[1:]}"
        lines.append(f'%u{name[1:]} = mpmd.unassign {name} : (!mpmd.mesh_tensor<"{mesh}", {type}>) -> {type}')
        lines.append(
            f"{one} = stablehlo.reduce(%u{name[1:]} init: %z) applies stablehlo.add across dimensions = [0] : "
            f"({type}, tensor<f32>) -> tensor<f32>"
        )
        if total is not None:
            lines.append(f"%t{name[1:]} = stablehlo.add {total}, {one} : tensor<f32>")
        total = one if total is None else f"%t{name[1:]}"
    topology = ", ".join(f'<"{mesh}": <["x"=2]>>' for mesh in ins)
    args = ", ".join(f'{name}: !mpmd.mesh_tensor<"{mesh}", {type}>' for mesh, name, type in names)
    body = "\n".join(lines)
    text = (
        f"func.func public @main({args}) -> tensor<f32> attributes {{topology = #mpmd.topology<{topology}>}} {{\n"
        f"{body}\nreturn {total} : tensor<f32>\n}}"
    )
    module = parse(text)
    run_passes(module, "mpmd-regroup-sums")
    assert_same_meaning(parse(text), module)

    def sizes(value: Value) -> list[int]:
        op = value.defining_op
        assert op is not None
        if op.name == "stablehlo.reduce":
            return list(op.operand(0).type.shape)
        return [size for operand in op.operands for size in sizes(operand)]

    assert sizes(module.main.body.terminator.operand(0)) == [4, 8, 6, 4, 8, 4, 8, 5]
