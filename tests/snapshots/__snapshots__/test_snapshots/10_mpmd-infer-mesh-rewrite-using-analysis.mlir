module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}, %arg1: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>}, %arg2: tensor<2x2xf32> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = mpmd.assign %arg2 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %1 = mpmd.fragment<mesh="m0", origin=[]> (%0) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<2x2xf32>) {
      %2 = stablehlo.slice %arg3 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x2xf32>) -> tensor<2xf32>
      mpmd.return %3 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %4 = mpmd.unassign %1 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %5 = mpmd.fragment<mesh="m0", origin=[]> () {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
      mpmd.return %cst : tensor<2x2xf32>
    } : () -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %6 = mpmd.unassign %5 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %7 = mpmd.fragment<mesh="m1", origin=[]> () {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
      mpmd.return %cst : tensor<2x2xf32>
    } : () -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %8 = mpmd.unassign %7 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %9 = mpmd.assign %arg0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %10 = mpmd.assign %arg1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %11 = mpmd.assign %4 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %12 = mpmd.assign %6 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %13 = mpmd.assign %8 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %14:2 = mpmd.call @loss(%9, %10, %11, %12, %13) {call_counter = 0 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %15 = mpmd.unassign %14#0 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %16 = mpmd.unassign %14#1 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %17 = mpmd.assign %arg2 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %18 = mpmd.fragment<mesh="m0", origin=[]> (%17) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg4: tensor<2x2xf32>) {
      %19 = stablehlo.slice %arg4 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %20 = stablehlo.reshape %19 : (tensor<1x2xf32>) -> tensor<2xf32>
      mpmd.return %20 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %21 = mpmd.unassign %18 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %22 = mpmd.assign %arg0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %23 = mpmd.assign %arg1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %24 = mpmd.assign %21 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %25 = mpmd.assign %15 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %26 = mpmd.assign %16 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %27:2 = mpmd.call @loss(%22, %23, %24, %25, %26) {call_counter = 1 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %28 = mpmd.unassign %27#0 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %29 = mpmd.unassign %27#1 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %30 = mpmd.assign {mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>, origin = "inferred_out"} %28 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %31 = mpmd.assign {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>, origin = "inferred_out"} %29 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    return %30, %31 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
  func.func private @loss(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>}, %arg2: !mpmd.mesh_tensor<"m0", tensor<2xf32>> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>}, %arg3: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>}, %arg4: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>}) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = mpmd.unassign %arg0 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %1 = mpmd.unassign %arg1 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %2 = mpmd.unassign %arg2 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %3 = mpmd.unassign %arg3 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %4 = mpmd.unassign %arg4 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %5 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %6 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %2 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %7 = mpmd.fragment<mesh="m0", origin=["first"]> (%5, %6) (%arg5: tensor<2x2xf32>, %arg6: tensor<2xf32>) {
      %8 = stablehlo.dot_general %arg5, %arg6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %8 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %9 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>, origin = "first"} %7 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %10 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["second"]>, origin = "second"} %1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %11 = mpmd.assign %9 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %12:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%10, %11) (%arg7: tensor<2x2xf32>, %arg8: tensor<2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %13 = stablehlo.multiply %arg8, %cst_0 : tensor<2xf32>
      %14 = stablehlo.dot_general %cst, %arg7, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %15 = stablehlo.dot_general %cst, %13, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %15, %14 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %16 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["inferred_out"]>, origin = "second"} %12#0 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %17 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m1"["second"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "second"} %12#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> tensor<2xf32>
    %18 = mpmd.assign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["inferred_in"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["first"]>, origin = "first"} %2 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %19 = mpmd.assign %17 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %20 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%18, %19) (%arg9: tensor<2xf32>, %arg10: tensor<2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %21 = stablehlo.multiply %arg10, %cst : tensor<2xf32>
      %22 = stablehlo.dot_general %21, %arg9, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %22 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %23 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"m0"["first"]>, mpmd.use_set = #mpmd.meshes_with_origins<"m0"["inferred_out"]>, origin = "first"} %20 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %24 = mpmd.assign %3 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %25 = mpmd.assign %23 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %26 = mpmd.fragment<mesh="m0", origin=[]> (%24, %25) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg11: tensor<2x2xf32>, %arg12: tensor<2x2xf32>) {
      %27 = stablehlo.add %arg11, %arg12 : tensor<2x2xf32>
      mpmd.return %27 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %28 = mpmd.unassign %26 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %29 = mpmd.assign %4 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %30 = mpmd.assign %16 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %31 = mpmd.fragment<mesh="m1", origin=[]> (%29, %30) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg13: tensor<2x2xf32>, %arg14: tensor<2x2xf32>) {
      %32 = stablehlo.add %arg13, %arg14 : tensor<2x2xf32>
      mpmd.return %32 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %33 = mpmd.unassign %31 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %34 = mpmd.assign %28 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %35 = mpmd.assign %33 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    return %34, %35 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
