"""`mpmd-copy-constants`."""

# ruff: noqa: E501 (MLIR text)
from __future__ import annotations

from mpmd_trace.passes.variants import CopyScalars
from util import run


def test_scalars_for_inferred_fragments() -> None:
    text = """
        func.func @main() -> (!A, !mpmd.mesh_tensor<"alpha", tensor<f32>>, !mpmd.mesh_tensor<"alpha", tensor<f32>>) attributes {topology = #topo} {
          %0:2 = mpmd.fragment<mesh="alpha", origin=[]> () () {
            %c = stablehlo.constant dense<1.0> : tensor<4xf32>
            %d = stablehlo.constant dense<2.0> : tensor<f32>
            mpmd.return %c, %d : tensor<4xf32>, tensor<f32>
          } : () -> (!A, !mpmd.mesh_tensor<"alpha", tensor<f32>>)
          %1:2 = mpmd.fragment<mesh="alpha", origin=[]> (%0#0, %0#1) (%x: tensor<4xf32>, %y: tensor<f32>) {
            mpmd.return %x, %y : tensor<4xf32>, tensor<f32>
          } : (!A, !mpmd.mesh_tensor<"alpha", tensor<f32>>) -> (!A, !mpmd.mesh_tensor<"alpha", tensor<f32>>)
          %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0#1) {call_counter = 0 : ui32} (%y: tensor<f32>) {
            mpmd.return %y : tensor<f32>
          } : (!mpmd.mesh_tensor<"alpha", tensor<f32>>) -> !mpmd.mesh_tensor<"alpha", tensor<f32>>
          return %1#0, %1#1, %2 : !A, !mpmd.mesh_tensor<"alpha", tensor<f32>>, !mpmd.mesh_tensor<"alpha", tensor<f32>>
        }
        """
    last = run(text, [CopyScalars()]).main.body.ops[-3:-1]
    copied = [[op.result.type.text for op in one.regions[0].block if op.name == "stablehlo.constant"] for one in last]
    assert copied == [["tensor<f32>"], []]
