module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0:3 = mpmd.fragment<mesh="m0", origin=[]> (%arg2) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<2x2xf32>) {
      %1 = stablehlo.slice %arg3 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x2xf32>) -> tensor<2xf32>
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
      %3 = stablehlo.slice %arg3 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %4 = stablehlo.reshape %3 : (tensor<1x2xf32>) -> tensor<2xf32>
      mpmd.return %2, %cst, %4 : tensor<2xf32>, tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>)
    %5 = mpmd.fragment<mesh="m1", origin=[]> () {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
      mpmd.return %cst : tensor<2x2xf32>
    } : () -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %6:2 = mpmd.call @loss(%arg0, %arg1, %0#0, %0#1, %5) {call_counter = 0 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %7:2 = mpmd.call @loss(%arg0, %arg1, %0#2, %6#0, %6#1) {call_counter = 1 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    return %7#0, %7#1 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
  func.func private @loss(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2xf32>>, %arg3: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg4: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %arg2) (%arg5: tensor<2x2xf32>, %arg6: tensor<2xf32>) {
      %1 = stablehlo.dot_general %arg5, %arg6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %1 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %2 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %3:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %2, %arg4) (%arg7: tensor<2x2xf32>, %arg8: tensor<2xf32>, %arg9: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %4 = stablehlo.multiply %arg8, %cst_0 : tensor<2xf32>
      %5 = stablehlo.dot_general %cst, %arg7, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %6 = stablehlo.dot_general %cst, %4, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %7 = stablehlo.add %arg9, %6 : tensor<2x2xf32>
      mpmd.return %5, %7 : tensor<2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %8 = mpmd.transfer %3#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %9 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%arg2, %8, %arg3) (%arg10: tensor<2xf32>, %arg11: tensor<2xf32>, %arg12: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %10 = stablehlo.multiply %arg11, %cst : tensor<2xf32>
      %11 = stablehlo.dot_general %10, %arg10, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %12 = stablehlo.add %arg12, %11 : tensor<2x2xf32>
      mpmd.return %12 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    return %9, %3#1 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
