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
// =>
module {
  func.func public @main(%w0: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>, %w1: !mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, %x: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>) -> (!mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m2", tensor<f32>>) attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
    %0 = mpmd.fragment<mesh="m1", origin=["first"]> (%w0, %x) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %cst = stablehlo.constant dense<2.0> : tensor<4x4xf32>
      %3 = stablehlo.multiply %b, %cst : tensor<4x4xf32>
      %4 = stablehlo.dot_general %a, %3, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %4 : tensor<4x4xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>
    %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m2", tensor<4x4xf32>>
    %2:2 = mpmd.fragment<mesh="m2", origin=["second"]> (%w1, %1) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %3 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %cst = stablehlo.constant dense<0.0> : tensor<f32>
      %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
      mpmd.return %3, %4 : tensor<4x4xf32>, tensor<f32>
    } : (!mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m2", tensor<4x4xf32>>) -> (!mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m2", tensor<f32>>)
    return %2#0, %2#1 : !mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m2", tensor<f32>>
  }
}
