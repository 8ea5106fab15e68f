module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0:3 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg2, %arg0) {call_counter = 0 : ui32} (%arg3: tensor<2x2xf32>, %arg4: tensor<2x2xf32>) {
      %1 = stablehlo.slice %arg3 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x2xf32>) -> tensor<2xf32>
      %3 = stablehlo.slice %arg3 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %4 = stablehlo.reshape %3 : (tensor<1x2xf32>) -> tensor<2xf32>
      %5 = stablehlo.dot_general %arg4, %2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %2, %4, %5 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>)
    %6 = mpmd.transfer %0#2 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %7:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %6) {call_counter = 0 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2xf32>) {
      %8 = sdy.constant dense<1.000000e+00> : tensor<2xf32>
      %9 = sdy.constant dense<3.000000e+00> : tensor<2xf32>
      %10 = stablehlo.multiply %arg6, %9 : tensor<2xf32>
      %11 = stablehlo.dot_general %8, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %12 = stablehlo.dot_general %8, %10, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %12, %11 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %13 = mpmd.transfer %7#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %14 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %0#1) {call_counter = 1 : ui32} (%arg7: tensor<2x2xf32>, %arg8: tensor<2xf32>) {
      %15 = stablehlo.dot_general %arg7, %arg8, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %15 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %16 = mpmd.transfer %14 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %17:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %16, %7#0) {call_counter = 1 : ui32} (%arg9: tensor<2x2xf32>, %arg10: tensor<2xf32>, %arg11: tensor<2x2xf32>) {
      %18 = sdy.constant dense<1.000000e+00> : tensor<2xf32>
      %19 = sdy.constant dense<3.000000e+00> : tensor<2xf32>
      %20 = stablehlo.multiply %arg10, %19 : tensor<2xf32>
      %21 = stablehlo.dot_general %18, %arg9, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %22 = stablehlo.dot_general %18, %20, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %23 = stablehlo.add %arg11, %22 : tensor<2x2xf32>
      mpmd.return %21, %23 : tensor<2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %24 = mpmd.transfer %17#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %25 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#0, %13) {call_counter = 0 : ui32} (%arg12: tensor<2xf32>, %arg13: tensor<2xf32>) {
      %26 = sdy.constant dense<3.000000e+00> : tensor<2xf32>
      %27 = stablehlo.multiply %arg13, %26 : tensor<2xf32>
      %28 = stablehlo.dot_general %27, %arg12, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %28 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %29 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#1, %24, %25) {call_counter = 1 : ui32} (%arg14: tensor<2xf32>, %arg15: tensor<2xf32>, %arg16: tensor<2x2xf32>) {
      %30 = sdy.constant dense<3.000000e+00> : tensor<2xf32>
      %31 = stablehlo.multiply %arg15, %30 : tensor<2xf32>
      %32 = stablehlo.dot_general %31, %arg14, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %33 = stablehlo.add %arg16, %32 : tensor<2x2xf32>
      mpmd.return %33 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    return %29, %17#1 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
