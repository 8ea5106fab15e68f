module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32>, %arg2: tensor<2x2xf32>) -> (tensor<2x2xf32> {jax.result_info = "result.first.weight"}, tensor<2x2xf32> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0 = stablehlo.slice %arg2 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2xf32>) -> tensor<2xf32>
    %2:2 = mpmd.call @loss(%arg0, %arg1, %1) {call_counter = 0 : ui32} : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    %3 = stablehlo.slice %arg2 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x2xf32>) -> tensor<2xf32>
    %5:2 = mpmd.call @loss(%arg0, %arg1, %4) {call_counter = 1 : ui32} : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    %6 = stablehlo.add %2#0, %5#0 : tensor<2x2xf32>
    %7 = stablehlo.add %2#1, %5#1 : tensor<2x2xf32>
    return %6, %7 : tensor<2x2xf32>, tensor<2x2xf32>
  }
  func.func private @loss(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32>, %arg2: tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %0 = mpmd.named_computation<"first"> (%arg0, %arg2) (%arg3: tensor<2x2xf32>, %arg4: tensor<2xf32>) {
      %1 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %1 : tensor<2xf32>
    } : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %3 = stablehlo.multiply %0, %2 : tensor<2xf32>
    %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %5:2 = mpmd.named_computation<"second"(1)> (%3, %arg1, %4) (%arg5: tensor<2xf32>, %arg6: tensor<2x2xf32>, %arg7: tensor<2xf32>) {
      %6 = stablehlo.dot_general %arg7, %arg6, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %7 = stablehlo.dot_general %arg7, %arg5, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %7, %6 : tensor<2x2xf32>, tensor<2xf32>
    } : (tensor<2xf32>, tensor<2x2xf32>, tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>)
    %8 = stablehlo.multiply %5#1, %2 : tensor<2xf32>
    %9 = mpmd.named_computation<"first"(1)> (%arg2, %8) (%arg8: tensor<2xf32>, %arg9: tensor<2xf32>) {
      %10 = stablehlo.dot_general %arg9, %arg8, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %10 : tensor<2x2xf32>
    } : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
    return %9, %5#0 : tensor<2x2xf32>, tensor<2x2xf32>
  }
}
