module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0:3 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg2, %arg0) {arg_attrs = [{}, {}], call_counter = 0 : ui32, res_attrs = [{}, {}, {}]} (%arg3: tensor<2x2xf32>, %arg4: tensor<2x2xf32>) {
      %1 = stablehlo.slice %arg3 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x2xf32>) -> tensor<2xf32>
      %3 = stablehlo.slice %arg3 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %4 = stablehlo.reshape %3 : (tensor<1x2xf32>) -> tensor<2xf32>
      %5 = stablehlo.dot_general %arg4, %2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %2, %4, %5 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>)
    %6 = mpmd.transfer %0#2 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %7:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %6) {arg_attrs = [{}, {tf.aliasing_output = 1 : i32}], call_counter = 0 : ui32, res_attrs = [{}, {}]} (%arg5: tensor<2x2xf32>, %arg6: tensor<2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %8 = stablehlo.multiply %arg6, %cst_0 : tensor<2xf32>
      %9 = stablehlo.dot_general %cst, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %10 = stablehlo.dot_general %cst, %8, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %10, %9 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %11 = mpmd.transfer %7#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %12 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %0#1) {arg_attrs = [{}, {}], call_counter = 1 : ui32, res_attrs = [{}]} (%arg7: tensor<2x2xf32>, %arg8: tensor<2xf32>) {
      %13 = stablehlo.dot_general %arg7, %arg8, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %13 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %14 = mpmd.transfer %12 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %15:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %14, %7#0) {arg_attrs = [{}, {tf.aliasing_output = 0 : i32}, {tf.aliasing_output = 1 : i32}], call_counter = 1 : ui32, res_attrs = [{}, {}]} (%arg9: tensor<2x2xf32>, %arg10: tensor<2xf32>, %arg11: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %16 = stablehlo.multiply %arg10, %cst_0 : tensor<2xf32>
      %17 = stablehlo.dot_general %cst, %arg9, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %18 = stablehlo.dot_general %cst, %16, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %19 = stablehlo.add %arg11, %18 : tensor<2x2xf32>
      mpmd.return %17, %19 : tensor<2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %20 = mpmd.transfer %15#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %21 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#0, %11) {arg_attrs = [{jax.buffer_donor = true}, {jax.buffer_donor = true}], call_counter = 0 : ui32, res_attrs = [{}]} (%arg12: tensor<2xf32>, %arg13: tensor<2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %22 = stablehlo.multiply %arg13, %cst : tensor<2xf32>
      %23 = stablehlo.dot_general %22, %arg12, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %23 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %24 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#1, %20, %21) {arg_attrs = [{jax.buffer_donor = true}, {jax.buffer_donor = true}, {tf.aliasing_output = 0 : i32}], call_counter = 1 : ui32, res_attrs = [{}]} (%arg14: tensor<2xf32>, %arg15: tensor<2xf32>, %arg16: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %25 = stablehlo.multiply %arg15, %cst : tensor<2xf32>
      %26 = stablehlo.dot_general %25, %arg14, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %27 = stablehlo.add %arg16, %26 : tensor<2x2xf32>
      mpmd.return %27 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    return %24, %15#1 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
