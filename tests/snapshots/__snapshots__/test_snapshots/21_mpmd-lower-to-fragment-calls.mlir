module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0:3 = mpmd.fragment_call<mesh="m0", origin=[]> @p0_inferred.step(%arg2) : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>)
    %1 = mpmd.fragment_call<mesh="m0", origin=["first"]> @p1_first_fwd_calls0to1.step(%arg0, %0#0) : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %2 = mpmd.transfer %1 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %3 = mpmd.fragment_call<mesh="m1", origin=[]> @p2_inferred.step() : () -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %4:2 = mpmd.fragment_call<mesh="m1", origin=["second"(1)]> @p3_second_bwd_calls0to1.step(%arg1, %2, %3) : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %5 = mpmd.transfer %4#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %6 = mpmd.fragment_call<mesh="m0", origin=["first"]> @p1_first_fwd_calls0to1.step(%arg0, %0#2) : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %7 = mpmd.transfer %6 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %8:2 = mpmd.fragment_call<mesh="m1", origin=["second"(1)]> @p3_second_bwd_calls0to1.step(%arg1, %7, %4#1) : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %9 = mpmd.transfer %8#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %10 = mpmd.fragment_call<mesh="m0", origin=["first"(1)]> @p4_first_bwd_calls0to1.step(%0#0, %5, %0#1) : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %11 = mpmd.fragment_call<mesh="m0", origin=["first"(1)]> @p4_first_bwd_calls0to1.step(%0#2, %9, %10) : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    return %11, %8#1 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
  func.func @p0_inferred.step(%arg0: tensor<2x2xf32>) -> (tensor<2xf32>, tensor<2x2xf32>, tensor<2xf32>) attributes {mesh_shape = #sdy.mesh<["data"=2]>, reserved_hbm_bytes = 16 : i64} {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
    %0 = stablehlo.slice %arg0 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2xf32>) -> tensor<2xf32>
    %2 = stablehlo.slice %arg0 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x2xf32>) -> tensor<2xf32>
    return %1, %cst, %3 : tensor<2xf32>, tensor<2x2xf32>, tensor<2xf32>
  }
  func.func @p1_first_fwd_calls0to1.step(%arg0: tensor<2x2xf32>, %arg1: tensor<2xf32>) -> tensor<2xf32> attributes {mesh_shape = #sdy.mesh<["data"=2]>, reserved_hbm_bytes = 48 : i64} {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func @p2_inferred.step() -> tensor<2x2xf32> attributes {mesh_shape = #sdy.mesh<["data"=2]>, reserved_hbm_bytes = 24 : i64} {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
    return %cst : tensor<2x2xf32>
  }
  func.func @p3_second_bwd_calls0to1.step(%arg0: tensor<2x2xf32>, %arg1: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %arg2: tensor<2x2xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<2xf32>, tensor<2x2xf32>) attributes {mesh_shape = #sdy.mesh<["data"=2]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
    %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
    %0 = stablehlo.multiply %arg1, %cst_0 : tensor<2xf32>
    %1 = stablehlo.dot_general %cst, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
    %2 = stablehlo.dot_general %cst, %0, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
    %3 = stablehlo.add %arg2, %2 : tensor<2x2xf32>
    return %1, %3 : tensor<2xf32>, tensor<2x2xf32>
  }
  func.func @p4_first_bwd_calls0to1.step(%arg0: tensor<2xf32> {jax.buffer_donor = true}, %arg1: tensor<2xf32> {jax.buffer_donor = true}, %arg2: tensor<2x2xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2x2xf32> attributes {mesh_shape = #sdy.mesh<["data"=2]>, reserved_hbm_bytes = 48 : i64} {
    %cst = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
    %0 = stablehlo.multiply %arg1, %cst : tensor<2xf32>
    %1 = stablehlo.dot_general %0, %arg0, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
    %2 = stablehlo.add %arg2, %1 : tensor<2x2xf32>
    return %2 : tensor<2x2xf32>
  }
}
