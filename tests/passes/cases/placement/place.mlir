// passes: mpmd-place
!t = tensor<f32>
!a = !mpmd.mesh_tensor<"a", tensor<f32>>
!b = !mpmd.mesh_tensor<"b", tensor<f32>>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>

// ----- What nothing ties goes to the first mesh
func.func public @main(%total: !t, %count: !t, %loss: !b) -> (!t, !t) attributes {topology = #meshes} {
  %one = stablehlo.constant dense<1.0> : !t
  %u = mpmd.unassign %loss : (!b) -> !t
  %0 = stablehlo.add %total, %u : !t
  %1 = stablehlo.add %count, %one : !t
  return %0, %1 : !t, !t
}
// =>
func.func public @main(%arg0: !b, %arg1: tensor<f32>, %arg2: !b) -> (!b, !a) attributes {topology = #meshes} {
  %0 = mpmd.unassign {origin = "placed_in"} %arg0 : (!b) -> tensor<f32>
  %1 = mpmd.unassign %arg2 : (!b) -> tensor<f32>
  %2 = mpmd.fragment<mesh="b", origin=[]> (%arg0, %arg2) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<f32>, %arg4: tensor<f32>) {
    %9 = stablehlo.add %arg3, %arg4 : tensor<f32>
    mpmd.return %9 : tensor<f32>
  } : (!b, !b) -> !b
  %3 = mpmd.unassign %2 : (!b) -> tensor<f32>
  %4 = mpmd.assign %arg1 : (tensor<f32>) -> !a
  %5 = mpmd.fragment<mesh="a", origin=[]> (%4) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<f32>) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %9 = stablehlo.add %arg3, %cst : tensor<f32>
    mpmd.return %9 : tensor<f32>
  } : (!a) -> !a
  %6 = mpmd.unassign %5 : (!a) -> tensor<f32>
  %7 = mpmd.assign {origin = "placed_out"} %3 : (tensor<f32>) -> !b
  %8 = mpmd.assign {origin = "placed_out"} %6 : (tensor<f32>) -> !a
  return %7, %8 : !b, !a
}

// ----- Results that belong together share a mesh
// A count goes where the total is.
func.func public @main(%total: !t, %count: !t, %loss: !b) -> (!t {mpmd.together = 0 : i64}, !t {mpmd.together = 0 : i64}) attributes {topology = #meshes} {
  %one = stablehlo.constant dense<1.0> : !t
  %u = mpmd.unassign %loss : (!b) -> !t
  %0 = stablehlo.add %total, %u : !t
  %1 = stablehlo.add %count, %one : !t
  return %0, %1 : !t, !t
}
// =>
func.func public @main(%arg0: !b, %arg1: !b, %arg2: !b) -> (!b, !b) attributes {topology = #meshes} {
  %0 = mpmd.unassign {origin = "placed_in"} %arg0 : (!b) -> tensor<f32>
  %1 = mpmd.unassign {origin = "placed_in"} %arg1 : (!b) -> tensor<f32>
  %2 = mpmd.unassign %arg2 : (!b) -> tensor<f32>
  %3:2 = mpmd.fragment<mesh="b", origin=[]> (%arg0, %arg2, %arg1) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<f32>, %arg4: tensor<f32>, %arg5: tensor<f32>) {
    %8 = stablehlo.add %arg3, %arg4 : tensor<f32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %9 = stablehlo.add %arg5, %cst : tensor<f32>
    mpmd.return %8, %9 : tensor<f32>, tensor<f32>
  } : (!b, !b, !b) -> (!b, !b)
  %4 = mpmd.unassign %3#0 : (!b) -> tensor<f32>
  %5 = mpmd.unassign %3#1 : (!b) -> tensor<f32>
  %6 = mpmd.assign {origin = "placed_out"} %4 : (tensor<f32>) -> !b
  %7 = mpmd.assign {origin = "placed_out"} %5 : (tensor<f32>) -> !b
  return %6, %7 : !b, !b
}
