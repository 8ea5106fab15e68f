module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0:3 = mpmd.fragment<mesh="m0", origin=[]> (%arg2) {arg_attrs = [{}], mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"], res_attrs = [{}, {}, {}]} (%arg3: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
      %1 = stablehlo.slice %arg3 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x2xf32>) -> tensor<2xf32>
      %3 = stablehlo.slice %arg3 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %4 = stablehlo.reshape %3 : (tensor<1x2xf32>) -> tensor<2xf32>
      mpmd.return %2, %cst, %4 : tensor<2xf32>, tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>)
    %5 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %0#0) {arg_attrs = [{}, {}], call_counter = 0 : ui32, res_attrs = [{}]} (%arg4: tensor<2x2xf32>, %arg5: tensor<2xf32>) {
      %6 = stablehlo.dot_general %arg4, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %6 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %7 = mpmd.transfer %5 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %8 = mpmd.fragment<mesh="m1", origin=[]> () {arg_attrs = [], mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"], res_attrs = [{}]} () {
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
      mpmd.return %cst : tensor<2x2xf32>
    } : () -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %9:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %7, %8) {arg_attrs = [{}, {tf.aliasing_output = 0 : i32}, {tf.aliasing_output = 1 : i32}], call_counter = 0 : ui32, res_attrs = [{}, {}]} (%arg6: tensor<2x2xf32>, %arg7: tensor<2xf32>, %arg8: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %10 = stablehlo.multiply %arg7, %cst_0 : tensor<2xf32>
      %11 = stablehlo.dot_general %cst, %arg6, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %12 = stablehlo.dot_general %cst, %10, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %13 = stablehlo.add %arg8, %12 : tensor<2x2xf32>
      mpmd.return %11, %13 : tensor<2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %14 = mpmd.transfer %9#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %15 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %0#2) {arg_attrs = [{}, {}], call_counter = 1 : ui32, res_attrs = [{}]} (%arg9: tensor<2x2xf32>, %arg10: tensor<2xf32>) {
      %16 = stablehlo.dot_general %arg9, %arg10, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %16 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %17 = mpmd.transfer %15 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %18:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %17, %9#1) {arg_attrs = [{}, {tf.aliasing_output = 0 : i32}, {tf.aliasing_output = 1 : i32}], call_counter = 1 : ui32, res_attrs = [{}, {}]} (%arg11: tensor<2x2xf32>, %arg12: tensor<2xf32>, %arg13: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
      %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %19 = stablehlo.multiply %arg12, %cst_0 : tensor<2xf32>
      %20 = stablehlo.dot_general %cst, %arg11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %21 = stablehlo.dot_general %cst, %19, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.add %arg13, %21 : tensor<2x2xf32>
      mpmd.return %20, %22 : tensor<2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %23 = mpmd.transfer %18#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %24 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#0, %14, %0#1) {arg_attrs = [{jax.buffer_donor = true}, {jax.buffer_donor = true}, {tf.aliasing_output = 0 : i32}], call_counter = 0 : ui32, res_attrs = [{}]} (%arg14: tensor<2xf32>, %arg15: tensor<2xf32>, %arg16: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %25 = stablehlo.multiply %arg15, %cst : tensor<2xf32>
      %26 = stablehlo.dot_general %25, %arg14, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %27 = stablehlo.add %arg16, %26 : tensor<2x2xf32>
      mpmd.return %27 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %28 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#2, %23, %24) {arg_attrs = [{jax.buffer_donor = true}, {jax.buffer_donor = true}, {tf.aliasing_output = 0 : i32}], call_counter = 1 : ui32, res_attrs = [{}]} (%arg17: tensor<2xf32>, %arg18: tensor<2xf32>, %arg19: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
      %29 = stablehlo.multiply %arg18, %cst : tensor<2xf32>
      %30 = stablehlo.dot_general %29, %arg17, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %31 = stablehlo.add %arg19, %30 : tensor<2x2xf32>
      mpmd.return %31 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    return %28, %18#1 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
