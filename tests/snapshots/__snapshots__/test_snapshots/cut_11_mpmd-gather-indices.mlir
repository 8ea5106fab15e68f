module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0:2 = mpmd.fragment<mesh="m0", origin=[]> () {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
      %c = stablehlo.constant dense<0> : tensor<i32>
      %c_0 = stablehlo.constant dense<1> : tensor<i32>
      mpmd.return %c, %c_0 : tensor<i32>, tensor<i32>
    } : () -> (!mpmd.mesh_tensor<"m0", tensor<i32>>, !mpmd.mesh_tensor<"m0", tensor<i32>>)
    %1 = mpmd.fragment<mesh="m0", origin=[]> () {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
      mpmd.return %cst : tensor<2x2xf32>
    } : () -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %2 = mpmd.fragment<mesh="m1", origin=[]> () {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
      mpmd.return %cst : tensor<2x2xf32>
    } : () -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %3:2 = mpmd.call @loss(%arg0, %arg1, %arg2, %1, %2, %0#0) {call_counter = 0 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<i32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %4:2 = mpmd.call @loss(%arg0, %arg1, %arg2, %3#0, %3#1, %0#1) {call_counter = 1 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<i32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    return %4#0, %4#1 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
  func.func private @loss(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg3: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg4: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg5: !mpmd.mesh_tensor<"m0", tensor<i32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %arg2, %arg5) (%arg6: tensor<2x2xf32>, %arg7: tensor<2x2xf32>, %arg8: tensor<i32>) {
      %c = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.dynamic_slice %arg7, %arg8, %c, sizes = [1, 2] : (tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x2xf32>) -> tensor<2xf32>
      %3 = stablehlo.dot_general %arg6, %2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %3 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<i32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %4 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %5:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %4) (%arg9: tensor<2x2xf32>, %arg10: tensor<2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %6 = stablehlo.multiply %arg10, %cst_0 : tensor<2xf32>
      %7 = stablehlo.dot_general %cst, %arg9, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %8 = stablehlo.dot_general %cst, %6, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %8, %7 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %9 = mpmd.transfer %5#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %10 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%arg2, %arg5, %9) (%arg11: tensor<2x2xf32>, %arg12: tensor<i32>, %arg13: tensor<2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %11 = stablehlo.multiply %arg13, %cst : tensor<2xf32>
      %c = stablehlo.constant dense<0> : tensor<i32>
      %12 = stablehlo.dynamic_slice %arg11, %arg12, %c, sizes = [1, 2] : (tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
      %13 = stablehlo.reshape %12 : (tensor<1x2xf32>) -> tensor<2xf32>
      %14 = stablehlo.dot_general %11, %13, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %14 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<i32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %15 = mpmd.fragment<mesh="m0", origin=[]> (%arg3, %10) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg14: tensor<2x2xf32>, %arg15: tensor<2x2xf32>) {
      %16 = stablehlo.add %arg14, %arg15 : tensor<2x2xf32>
      mpmd.return %16 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %17 = mpmd.fragment<mesh="m1", origin=[]> (%arg4, %5#0) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg16: tensor<2x2xf32>, %arg17: tensor<2x2xf32>) {
      %18 = stablehlo.add %arg16, %arg17 : tensor<2x2xf32>
      mpmd.return %18 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    return %15, %17 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
