module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}, %arg1: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>}, %arg2: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = mpmd.assign %arg2 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %1 = mpmd.fragment<mesh="m0", origin=[]> (%0) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<2x2xf32>) {
      %2 = stablehlo.slice %arg3 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x2xf32>) -> tensor<2xf32>
      mpmd.return %3 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %4 = mpmd.unassign %1 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %5 = mpmd.assign %arg0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %6 = mpmd.assign %arg1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %7 = mpmd.assign %4 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %8:2 = mpmd.call @loss(%5, %6, %7) {call_counter = 0 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %9 = mpmd.unassign %8#0 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %10 = mpmd.unassign %8#1 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %11 = mpmd.assign %arg2 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %12 = mpmd.fragment<mesh="m0", origin=[]> (%11) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg4: tensor<2x2xf32>) {
      %13 = stablehlo.slice %arg4 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %14 = stablehlo.reshape %13 : (tensor<1x2xf32>) -> tensor<2xf32>
      mpmd.return %14 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %15 = mpmd.unassign %12 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %16 = mpmd.assign %arg0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %17 = mpmd.assign %arg1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %18 = mpmd.assign %15 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %19:2 = mpmd.call @loss(%16, %17, %18) {call_counter = 1 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %20 = mpmd.unassign %19#0 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %21 = mpmd.unassign %19#1 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %22 = mpmd.assign %9 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %23 = mpmd.assign %20 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %24 = mpmd.fragment<mesh="m0", origin=[]> (%22, %23) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %25 = stablehlo.add %arg5, %arg6 : tensor<2x2xf32>
      mpmd.return %25 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %26 = mpmd.unassign %24 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %27 = mpmd.assign %10 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %28 = mpmd.assign %21 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %29 = mpmd.fragment<mesh="m1", origin=[]> (%27, %28) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg7: tensor<2x2xf32>, %arg8: tensor<2x2xf32>) {
      %30 = stablehlo.add %arg7, %arg8 : tensor<2x2xf32>
      mpmd.return %30 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %31 = mpmd.unassign %29 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %32 = mpmd.assign {mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>, origin = "inferred_out"} %26 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %33 = mpmd.assign {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>, origin = "inferred_out"} %31 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    return %32, %33 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
  func.func private @loss(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>}, %arg2: !mpmd.mesh_tensor<"m0", tensor<2xf32>> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = mpmd.unassign %arg0 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %1 = mpmd.unassign %arg1 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %2 = mpmd.unassign %arg2 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %3 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %4 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %2 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %5 = mpmd.fragment<mesh="m0", origin=["first"]> (%3, %4) (%arg3: tensor<2x2xf32>, %arg4: tensor<2xf32>) {
      %6 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %6 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %7 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>, origin = "first"} %5 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %8 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>, origin = "second"} %1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %9 = mpmd.assign %7 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %10:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%8, %9) (%arg5: tensor<2x2xf32>, %arg6: tensor<2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %11 = stablehlo.multiply %arg6, %cst_0 : tensor<2xf32>
      %12 = stablehlo.dot_general %cst, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %13 = stablehlo.dot_general %cst, %11, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %13, %12 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %14 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>, origin = "second"} %10#0 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %15 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "second"} %10#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> tensor<2xf32>
    %16 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %2 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %17 = mpmd.assign %15 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %18 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%16, %17) (%arg7: tensor<2xf32>, %arg8: tensor<2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %19 = stablehlo.multiply %arg8, %cst : tensor<2xf32>
      %20 = stablehlo.dot_general %19, %arg7, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %20 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %21 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>, origin = "first"} %18 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %22 = mpmd.assign %21 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %23 = mpmd.assign %14 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    return %22, %23 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
