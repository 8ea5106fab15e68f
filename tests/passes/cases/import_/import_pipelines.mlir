// passes: mpmd-infer-mesh-pipeline{infer-transfers=true}
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>

// ----- Loop with a value on one mesh
// The reference cannot analyze a loop twice and aborts.
func.func @main(%a: !T) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.for (%a) {iterations = 4 : ui32} (%x: !T, %i: tensor<ui32>) {
    %2 = stablehlo.add %x, %x : !T
    mpmd.return %2 : !T
  } : !T
  %1 = mpmd.assign {origin = "s"} %0 : (!T) -> !P1
  return %1 : !P1
}
// =>
func.func @main(%arg0: !P1) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.for (%arg0) {iterations = 4 : ui32} (%arg1: !P1, %index: tensor<ui32>) {
    %1 = mpmd.fragment<mesh="p1", origin=[]> (%arg1) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg2: !T) {
      %2 = stablehlo.add %arg2, %arg2 : !T
      mpmd.return %2 : !T
    } : (!P1) -> !P1
    mpmd.return %1 : !P1
  } : !P1
  return %0 : !P1
}

// ----- Unassigned names stop the import
// passes: mpmd-import-pipeline{name-to-mesh-assignment=first@m1}
// From names to fragments.
module {
  func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<f32>) attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %cb = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %x2 = stablehlo.multiply %x, %cb : tensor<4x4xf32>
    %1 = mpmd.named_computation<"first"> (%w0, %x2) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %10 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %10 : tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = mpmd.named_computation<"second"> (%w1, %1) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %10 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %10 : tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    return %2, %3 : tensor<4x4xf32>, tensor<f32>
  }
}
// error: named computation 'second' is not assigned to a mesh
