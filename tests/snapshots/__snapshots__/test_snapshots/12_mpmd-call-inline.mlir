module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0:2 = mpmd.fragment<mesh="m0", origin=[]> (%arg2) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<2x2xf32>) {
      %1 = stablehlo.slice %arg3 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x2xf32>) -> tensor<2xf32>
      %3 = stablehlo.slice %arg3 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %4 = stablehlo.reshape %3 : (tensor<1x2xf32>) -> tensor<2xf32>
      mpmd.return %2, %4 : tensor<2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>)
    %5 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %0#0) {call_counter = 0 : ui32} (%arg4: tensor<2x2xf32>, %arg5: tensor<2xf32>) {
      %6 = stablehlo.dot_general %arg4, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %6 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %7 = mpmd.transfer %5 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %8:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %7) {call_counter = 0 : ui32} (%arg6: tensor<2x2xf32>, %arg7: tensor<2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %9 = stablehlo.multiply %arg7, %cst_0 : tensor<2xf32>
      %10 = stablehlo.dot_general %cst, %arg6, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %11 = stablehlo.dot_general %cst, %9, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %11, %10 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %12 = mpmd.transfer %8#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %13 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#0, %12) {call_counter = 0 : ui32} (%arg8: tensor<2xf32>, %arg9: tensor<2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %14 = stablehlo.multiply %arg9, %cst : tensor<2xf32>
      %15 = stablehlo.dot_general %14, %arg8, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %15 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %16 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %0#1) {call_counter = 1 : ui32} (%arg10: tensor<2x2xf32>, %arg11: tensor<2xf32>) {
      %17 = stablehlo.dot_general %arg10, %arg11, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %17 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %18 = mpmd.transfer %16 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %19:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %18) {call_counter = 1 : ui32} (%arg12: tensor<2x2xf32>, %arg13: tensor<2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %20 = stablehlo.multiply %arg13, %cst_0 : tensor<2xf32>
      %21 = stablehlo.dot_general %cst, %arg12, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %22 = stablehlo.dot_general %cst, %20, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %22, %21 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %23 = mpmd.transfer %19#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %24 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#1, %23) {call_counter = 1 : ui32} (%arg14: tensor<2xf32>, %arg15: tensor<2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %25 = stablehlo.multiply %arg15, %cst : tensor<2xf32>
      %26 = stablehlo.dot_general %25, %arg14, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %26 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %27 = mpmd.fragment<mesh="m0", origin=[]> (%13, %24) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg16: tensor<2x2xf32>, %arg17: tensor<2x2xf32>) {
      %28 = stablehlo.add %arg16, %arg17 : tensor<2x2xf32>
      mpmd.return %28 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %29 = mpmd.fragment<mesh="m1", origin=[]> (%8#0, %19#0) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg18: tensor<2x2xf32>, %arg19: tensor<2x2xf32>) {
      %30 = stablehlo.add %arg18, %arg19 : tensor<2x2xf32>
      mpmd.return %30 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    return %27, %29 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
  func.func private @loss(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %arg2) (%arg3: tensor<2x2xf32>, %arg4: tensor<2xf32>) {
      %1 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %1 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %2 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %3:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %2) (%arg5: tensor<2x2xf32>, %arg6: tensor<2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %4 = stablehlo.multiply %arg6, %cst_0 : tensor<2xf32>
      %5 = stablehlo.dot_general %cst, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %6 = stablehlo.dot_general %cst, %4, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %6, %5 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %7 = mpmd.transfer %3#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %8 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%arg2, %7) (%arg7: tensor<2xf32>, %arg8: tensor<2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %9 = stablehlo.multiply %arg8, %cst : tensor<2xf32>
      %10 = stablehlo.dot_general %9, %arg7, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %10 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    return %8, %3#0 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
