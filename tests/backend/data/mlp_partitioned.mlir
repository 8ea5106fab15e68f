module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>> {jax.buffer_donor = true}, %arg1: !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>> {jax.buffer_donor = true}, %arg2: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>> {jax.buffer_donor = true}, %arg3: !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>> {jax.buffer_donor = true}, %arg4: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>> {jax.buffer_donor = true}, %arg5: !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>> {jax.buffer_donor = true}, %arg6: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>> {jax.buffer_donor = true}, %arg7: !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>> {jax.buffer_donor = true}, %arg8: !mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, %arg9: !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>> {jax.result_info = "result[0][0][0][0]"}, !mpmd.mesh_tensor<"m0", tensor<4xf32>> {jax.result_info = "result[0][0][0][1]"}, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>> {jax.result_info = "result[0][0][1][0]"}, !mpmd.mesh_tensor<"m0", tensor<4xf32>> {jax.result_info = "result[0][0][1][1]"}, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>> {jax.result_info = "result[0][1][0][0]"}, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>> {jax.result_info = "result[0][1][0][1]"}, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>> {jax.result_info = "result[0][1][1][0]"}, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>> {jax.result_info = "result[0][1][1][1]"}, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@mesh, []>> {jax.result_info = "result[1]"}) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>} {
    %0:6 = mpmd.fragment_call<mesh="m0", origin=["stage0"]> @p0_stage0_fwd_call0.step(%arg8, %arg0, %arg1, %arg2, %arg3) : (!mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %1 = mpmd.transfer %0#2 : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %2:6 = mpmd.fragment_call<mesh="m1", origin=["stage1"]> @p1_stage1_fwd_call0.step(%arg9, %arg4, %arg5, %arg6, %arg7, %1) : (!mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %3:5 = mpmd.fragment_call<mesh="m1", origin=["stage1"(1)]> @p2_stage1_bwd_call0.step(%arg4, %1, %2#2, %arg6, %2#3, %2#4, %2#5) : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %4 = mpmd.transfer %3#4 : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %5:4 = mpmd.fragment_call<mesh="m0", origin=["stage0"]> @p3_stage0_fwd_call1.step(%arg0, %arg1, %arg2, %arg3, %0#1) : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %6 = mpmd.transfer %5#0 : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %7:5 = mpmd.fragment_call<mesh="m1", origin=["stage1"]> @p4_stage1_fwd_call1.step(%arg4, %arg5, %arg6, %arg7, %6, %2#0) : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %8:6 = mpmd.fragment_call<mesh="m1", origin=["stage1"(1)]> @p5_stage1_bwd_call1.step(%arg4, %6, %7#1, %arg6, %7#2, %7#3, %7#4, %3#0, %arg5, %3#1, %3#2, %arg7, %3#3, %2#1, %7#0) : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@mesh, []>>) -> (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@mesh, []>>)
    %9 = mpmd.transfer %8#0 : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %10:4 = mpmd.fragment_call<mesh="m0", origin=["stage0"(1)]> @p6_stage0_bwd_call0.step(%0#0, %0#3, %arg2, %0#4, %0#5, %4) : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>)
    %11:4 = mpmd.fragment_call<mesh="m0", origin=["stage0"(1)]> @p7_stage0_bwd_call1.step(%0#1, %5#1, %arg2, %5#2, %5#3, %9, %arg0, %10#0, %arg1, %10#1, %10#2, %arg3, %10#3) : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@mesh, [{}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>>)
    return %11#0, %11#1, %11#2, %11#3, %8#1, %8#2, %8#3, %8#4, %8#5 : !mpmd.mesh_tensor<"m0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m0", tensor<4xf32>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@mesh, []>>
  }
  func.func @p0_stage0_fwd_call0.step(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg2: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg3: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg4: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<4x4xf32>
    %0 = stablehlo.slice %arg0 [0:4, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.slice %arg0 [4:8, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.reshape %arg2 : (tensor<4xf32>) -> tensor<1x4xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.add %2, %4 : tensor<4x4xf32>
    %6 = stablehlo.tanh %5 : tensor<4x4xf32>
    %7 = stablehlo.add %6, %cst : tensor<4x4xf32>
    %8 = stablehlo.subtract %cst, %6 : tensor<4x4xf32>
    %9 = stablehlo.multiply %7, %8 : tensor<4x4xf32>
    %10 = stablehlo.dot_general %6, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %11 = stablehlo.reshape %arg4 : (tensor<4xf32>) -> tensor<1x4xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %13 = stablehlo.add %10, %12 : tensor<4x4xf32>
    %14 = stablehlo.tanh %13 : tensor<4x4xf32>
    %15 = stablehlo.add %14, %cst : tensor<4x4xf32>
    %16 = stablehlo.subtract %cst, %14 : tensor<4x4xf32>
    %17 = stablehlo.multiply %15, %16 : tensor<4x4xf32>
    return %0, %1, %14, %9, %6, %17 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func @p1_stage1_fwd_call0.step(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg2: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg3: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg4: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg5: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<4x4xf32>
    %cst_2 = stablehlo.constant dense<2.000000e+00> : tensor<4x4xf32>
    %0 = stablehlo.slice %arg0 [0:4, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.slice %arg0 [4:8, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dot_general %arg5, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.reshape %arg2 : (tensor<4xf32>) -> tensor<1x4xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.add %2, %4 : tensor<4x4xf32>
    %6 = stablehlo.tanh %5 : tensor<4x4xf32>
    %7 = stablehlo.add %6, %cst_1 : tensor<4x4xf32>
    %8 = stablehlo.subtract %cst_1, %6 : tensor<4x4xf32>
    %9 = stablehlo.multiply %7, %8 : tensor<4x4xf32>
    %10 = stablehlo.dot_general %6, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %11 = stablehlo.reshape %arg4 : (tensor<4xf32>) -> tensor<1x4xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %13 = stablehlo.add %10, %12 : tensor<4x4xf32>
    %14 = stablehlo.tanh %13 : tensor<4x4xf32>
    %15 = stablehlo.add %14, %cst_1 : tensor<4x4xf32>
    %16 = stablehlo.subtract %cst_1, %14 : tensor<4x4xf32>
    %17 = stablehlo.multiply %15, %16 : tensor<4x4xf32>
    %18 = stablehlo.subtract %14, %0 : tensor<4x4xf32>
    %19 = stablehlo.multiply %18, %18 : tensor<4x4xf32>
    %20 = stablehlo.multiply %18, %cst_2 : tensor<4x4xf32>
    %21 = stablehlo.reduce(%19 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %22 = stablehlo.divide %21, %cst_0 : tensor<f32>
    return %1, %22, %9, %6, %17, %20 : tensor<4x4xf32>, tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func @p2_stage1_bwd_call0.step(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 4 : i32}, %arg2: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg3: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg4: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg5: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg6: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 132 : i64} {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<6.250000e-02> : tensor<4x4xf32>
    %0 = stablehlo.multiply %arg6, %cst_0 : tensor<4x4xf32>
    %1 = stablehlo.multiply %0, %arg5 : tensor<4x4xf32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.reshape %2 : (tensor<4xf32>) -> tensor<1x4xf32>
    %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %5 = stablehlo.dot_general %1, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %6 = stablehlo.transpose %5, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %8 = stablehlo.multiply %7, %arg2 : tensor<4x4xf32>
    %9 = stablehlo.reduce(%8 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %10 = stablehlo.reshape %9 : (tensor<4xf32>) -> tensor<1x4xf32>
    %11 = stablehlo.reduce(%10 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.dot_general %8, %arg1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %13 = stablehlo.transpose %12, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %14 = stablehlo.dot_general %8, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %13, %11, %6, %4, %14 : tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>
  }
  func.func @p3_stage0_fwd_call1.step(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg2: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg3: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg4: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 224 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<4x4xf32>
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.reshape %arg1 : (tensor<4xf32>) -> tensor<1x4xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.add %0, %2 : tensor<4x4xf32>
    %4 = stablehlo.tanh %3 : tensor<4x4xf32>
    %5 = stablehlo.add %4, %cst : tensor<4x4xf32>
    %6 = stablehlo.subtract %cst, %4 : tensor<4x4xf32>
    %7 = stablehlo.multiply %5, %6 : tensor<4x4xf32>
    %8 = stablehlo.dot_general %4, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %9 = stablehlo.reshape %arg3 : (tensor<4xf32>) -> tensor<1x4xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %11 = stablehlo.add %8, %10 : tensor<4x4xf32>
    %12 = stablehlo.tanh %11 : tensor<4x4xf32>
    %13 = stablehlo.add %12, %cst : tensor<4x4xf32>
    %14 = stablehlo.subtract %cst, %12 : tensor<4x4xf32>
    %15 = stablehlo.multiply %13, %14 : tensor<4x4xf32>
    return %12, %7, %4, %15 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func @p4_stage1_fwd_call1.step(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg2: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg3: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg4: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg5: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 1 : i32}) -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 228 : i64} {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<4x4xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<4x4xf32>
    %cst_1 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.reshape %arg1 : (tensor<4xf32>) -> tensor<1x4xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.add %0, %2 : tensor<4x4xf32>
    %4 = stablehlo.tanh %3 : tensor<4x4xf32>
    %5 = stablehlo.add %4, %cst_0 : tensor<4x4xf32>
    %6 = stablehlo.subtract %cst_0, %4 : tensor<4x4xf32>
    %7 = stablehlo.multiply %5, %6 : tensor<4x4xf32>
    %8 = stablehlo.dot_general %4, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %9 = stablehlo.reshape %arg3 : (tensor<4xf32>) -> tensor<1x4xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %11 = stablehlo.add %8, %10 : tensor<4x4xf32>
    %12 = stablehlo.tanh %11 : tensor<4x4xf32>
    %13 = stablehlo.add %12, %cst_0 : tensor<4x4xf32>
    %14 = stablehlo.subtract %cst_0, %12 : tensor<4x4xf32>
    %15 = stablehlo.multiply %13, %14 : tensor<4x4xf32>
    %16 = stablehlo.subtract %12, %arg5 : tensor<4x4xf32>
    %17 = stablehlo.multiply %16, %16 : tensor<4x4xf32>
    %18 = stablehlo.multiply %16, %cst : tensor<4x4xf32>
    %19 = stablehlo.reduce(%17 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %20 = stablehlo.divide %19, %cst_1 : tensor<f32>
    return %20, %7, %4, %15, %18 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func @p5_stage1_bwd_call1.step(%arg0: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32}, %arg2: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg3: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg4: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg5: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg6: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg7: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>, tf.aliasing_output = 1 : i32}, %arg8: tensor<4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg9: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>, tf.aliasing_output = 2 : i32}, %arg10: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>, tf.aliasing_output = 3 : i32}, %arg11: tensor<4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg12: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>, tf.aliasing_output = 4 : i32}, %arg13: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>, tf.aliasing_output = 5 : i32}, %arg14: tensor<f32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 64 : i64} {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<5.000000e-03> : tensor<4xf32>
    %cst_1 = stablehlo.constant dense<5.000000e-03> : tensor<4x4xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_3 = stablehlo.constant dense<6.250000e-02> : tensor<4x4xf32>
    %0 = stablehlo.multiply %arg6, %cst_3 : tensor<4x4xf32>
    %1 = stablehlo.multiply %0, %arg5 : tensor<4x4xf32>
    %2 = stablehlo.reduce(%1 init: %cst_2) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.reshape %2 : (tensor<4xf32>) -> tensor<1x4xf32>
    %4 = stablehlo.reduce(%3 init: %cst_2) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %5 = stablehlo.dot_general %1, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %6 = stablehlo.transpose %5, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %8 = stablehlo.multiply %7, %arg2 : tensor<4x4xf32>
    %9 = stablehlo.reduce(%8 init: %cst_2) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %10 = stablehlo.reshape %9 : (tensor<4xf32>) -> tensor<1x4xf32>
    %11 = stablehlo.reduce(%10 init: %cst_2) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.dot_general %8, %arg1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %13 = stablehlo.transpose %12, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %14 = stablehlo.dot_general %8, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %15 = stablehlo.add %arg7, %13 : tensor<4x4xf32>
    %16 = stablehlo.multiply %15, %cst_1 : tensor<4x4xf32>
    %17 = stablehlo.subtract %arg0, %16 : tensor<4x4xf32>
    %18 = stablehlo.add %arg9, %11 : tensor<4xf32>
    %19 = stablehlo.multiply %18, %cst_0 : tensor<4xf32>
    %20 = stablehlo.subtract %arg8, %19 : tensor<4xf32>
    %21 = stablehlo.add %arg10, %6 : tensor<4x4xf32>
    %22 = stablehlo.multiply %21, %cst_1 : tensor<4x4xf32>
    %23 = stablehlo.subtract %arg3, %22 : tensor<4x4xf32>
    %24 = stablehlo.add %arg12, %4 : tensor<4xf32>
    %25 = stablehlo.multiply %24, %cst_0 : tensor<4xf32>
    %26 = stablehlo.subtract %arg11, %25 : tensor<4xf32>
    %27 = stablehlo.add %arg13, %arg14 : tensor<f32>
    %28 = stablehlo.divide %27, %cst : tensor<f32>
    return %14, %17, %20, %23, %26, %28 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<f32>
  }
  func.func @p6_stage0_bwd_call0.step(%arg0: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg3: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg4: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg5: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 320 : i64} {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.multiply %arg5, %arg4 : tensor<4x4xf32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.reshape %1 : (tensor<4xf32>) -> tensor<1x4xf32>
    %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.dot_general %0, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %6 = stablehlo.dot_general %0, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.multiply %6, %arg1 : tensor<4x4xf32>
    %8 = stablehlo.reduce(%7 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %9 = stablehlo.reshape %8 : (tensor<4xf32>) -> tensor<1x4xf32>
    %10 = stablehlo.reduce(%9 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %11 = stablehlo.dot_general %7, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %12 = stablehlo.transpose %11, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %12, %10, %5, %3 : tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>
  }
  func.func @p7_stage0_bwd_call1.step(%arg0: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg3: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg4: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg5: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg6: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg7: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg8: tensor<4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg9: tensor<4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg10: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg11: tensor<4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg12: tensor<4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 64 : i64} {
    %cst = stablehlo.constant dense<5.000000e-03> : tensor<4xf32>
    %cst_0 = stablehlo.constant dense<5.000000e-03> : tensor<4x4xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.multiply %arg5, %arg4 : tensor<4x4xf32>
    %1 = stablehlo.reduce(%0 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.reshape %1 : (tensor<4xf32>) -> tensor<1x4xf32>
    %3 = stablehlo.reduce(%2 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.dot_general %0, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %6 = stablehlo.dot_general %0, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.multiply %6, %arg1 : tensor<4x4xf32>
    %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %9 = stablehlo.reshape %8 : (tensor<4xf32>) -> tensor<1x4xf32>
    %10 = stablehlo.reduce(%9 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %11 = stablehlo.dot_general %7, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %12 = stablehlo.transpose %11, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %13 = stablehlo.add %arg7, %12 : tensor<4x4xf32>
    %14 = stablehlo.multiply %13, %cst_0 : tensor<4x4xf32>
    %15 = stablehlo.subtract %arg6, %14 : tensor<4x4xf32>
    %16 = stablehlo.add %arg9, %10 : tensor<4xf32>
    %17 = stablehlo.multiply %16, %cst : tensor<4xf32>
    %18 = stablehlo.subtract %arg8, %17 : tensor<4xf32>
    %19 = stablehlo.add %arg10, %5 : tensor<4x4xf32>
    %20 = stablehlo.multiply %19, %cst_0 : tensor<4x4xf32>
    %21 = stablehlo.subtract %arg2, %20 : tensor<4x4xf32>
    %22 = stablehlo.add %arg12, %3 : tensor<4xf32>
    %23 = stablehlo.multiply %22, %cst : tensor<4xf32>
    %24 = stablehlo.subtract %arg11, %23 : tensor<4xf32>
    return %15, %18, %21, %24 : tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>
  }
}
