module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}, %arg1: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>}, %arg2: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = stablehlo.slice %arg2 [0:1, 0:2] {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>} : (tensor<2x2xf32>) -> tensor<1x2xf32>
    %1 = stablehlo.reshape %0 {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>} : (tensor<1x2xf32>) -> tensor<2xf32>
    %cst = stablehlo.constant {mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>} dense<0.000000e+00> : tensor<2x2xf32>
    %cst_0 = stablehlo.constant {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>} dense<0.000000e+00> : tensor<2x2xf32>
    %2:2 = mpmd.call @loss(%arg0, %arg1, %1, %cst, %cst_0) {call_counter = 0 : ui32} : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    %3 = stablehlo.slice %arg2 [1:2, 0:2] {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>} : (tensor<2x2xf32>) -> tensor<1x2xf32>
    %4 = stablehlo.reshape %3 {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>} : (tensor<1x2xf32>) -> tensor<2xf32>
    %5:2 = mpmd.call @loss(%arg0, %arg1, %4, %2#0, %2#1) {call_counter = 1 : ui32} : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    %6 = mpmd.assign {mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>, origin = "inferred_out"} %5#0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %7 = mpmd.assign {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>, origin = "inferred_out"} %5#1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    return %6, %7 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
  func.func private @loss(%arg0: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}, %arg1: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>}, %arg2: tensor<2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}, %arg3: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>}, %arg4: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>}) -> (tensor<2x2xf32> {mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>}, tensor<2x2xf32> {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %cst = stablehlo.constant {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>} dense<1.000000e+00> : tensor<2xf32>
    %cst_0 = stablehlo.constant {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"], "m0"["first"]>} dense<3.000000e+00> : tensor<2xf32>
    %0 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %arg0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %1 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %arg2 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %2 = mpmd.fragment<mesh="m0", origin=["first"]> (%0, %1) (%arg5: tensor<2x2xf32>, %arg6: tensor<2xf32>) {
      %3 = stablehlo.dot_general %arg5, %arg6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %3 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %4 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>, origin = "first"} %2 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %5 = stablehlo.multiply %4, %cst_0 {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>} : tensor<2xf32>
    %6 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>, origin = "second"} %5 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %7 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>, origin = "second"} %arg1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %8 = mpmd.assign {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>, origin = "second"} %cst : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %9:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%6, %7, %8) (%arg7: tensor<2xf32>, %arg8: tensor<2x2xf32>, %arg9: tensor<2xf32>) {
      %10 = stablehlo.dot_general %arg9, %arg8, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %11 = stablehlo.dot_general %arg9, %arg7, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %11, %10 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %12 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>, origin = "second"} %9#0 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %13 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "second"} %9#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> tensor<2xf32>
    %14 = stablehlo.multiply %13, %cst_0 {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>} : tensor<2xf32>
    %15 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %arg2 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %16 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %14 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %17 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%15, %16) (%arg10: tensor<2xf32>, %arg11: tensor<2xf32>) {
      %18 = stablehlo.dot_general %arg11, %arg10, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %18 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %19 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>, origin = "first"} %17 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %20 = stablehlo.add %arg3, %19 {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>} : tensor<2x2xf32>
    %21 = stablehlo.add %arg4, %12 {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>} : tensor<2x2xf32>
    return %20, %21 : tensor<2x2xf32>, tensor<2x2xf32>
  }
}
