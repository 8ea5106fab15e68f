module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32>, %arg2: tensor<2x2xf32>) -> (tensor<2x2xf32> {jax.result_info = "result.first.weight"}, tensor<2x2xf32> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<2x2xf32>
    %0:2 = mpmd.call @loss(%arg0, %arg1, %arg2, %cst, %cst_1, %c) {call_counter = 0 : ui32} : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<i32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    %1:2 = mpmd.call @loss(%arg0, %arg1, %arg2, %0#0, %0#1, %c_0) {call_counter = 1 : ui32} : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<i32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    return %1#0, %1#1 : tensor<2x2xf32>, tensor<2x2xf32>
  }
  func.func private @loss(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32>, %arg2: tensor<2x2xf32>, %arg3: tensor<2x2xf32>, %arg4: tensor<2x2xf32>, %arg5: tensor<i32>) -> (tensor<2x2xf32>, tensor<2x2xf32>) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
    %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<2xf32>
    %0 = mpmd.assign {origin = "first"} %arg0 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_slice %arg2, %arg5, %c, sizes = [1, 2] : (tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x2xf32>) -> tensor<2xf32>
    %3 = mpmd.assign {origin = "first"} %2 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %4 = mpmd.fragment<mesh="m0", origin=["first"]> (%0, %3) (%arg6: tensor<2x2xf32>, %arg7: tensor<2xf32>) {
      %5 = stablehlo.dot_general %arg6, %arg7, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %5 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %6 = mpmd.unassign {origin = "first"} %4 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> tensor<2xf32>
    %7 = stablehlo.multiply %6, %cst_0 : tensor<2xf32>
    %8 = mpmd.assign {origin = "second"} %7 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %9 = mpmd.assign {origin = "second"} %arg1 : (tensor<2x2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %10 = mpmd.assign {origin = "second"} %cst : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %11:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%8, %9, %10) (%arg8: tensor<2xf32>, %arg9: tensor<2x2xf32>, %arg10: tensor<2xf32>) {
      %12 = stablehlo.dot_general %arg10, %arg9, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %13 = stablehlo.dot_general %arg10, %arg8, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %13, %12 : tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>)
    %14 = mpmd.unassign {origin = "second"} %11#0 : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %15 = mpmd.unassign {origin = "second"} %11#1 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> tensor<2xf32>
    %16 = stablehlo.multiply %15, %cst_0 : tensor<2xf32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %17 = stablehlo.dynamic_slice %arg2, %arg5, %c_1, sizes = [1, 2] : (tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
    %18 = stablehlo.reshape %17 : (tensor<1x2xf32>) -> tensor<2xf32>
    %19 = mpmd.assign {origin = "first"} %18 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %20 = mpmd.assign {origin = "first"} %16 : (tensor<2xf32>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %21 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%19, %20) (%arg11: tensor<2xf32>, %arg12: tensor<2xf32>) {
      %22 = stablehlo.dot_general %arg12, %arg11, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      mpmd.return %22 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %23 = mpmd.unassign {origin = "first"} %21 : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> tensor<2x2xf32>
    %24 = stablehlo.add %arg3, %23 : tensor<2x2xf32>
    %25 = stablehlo.add %arg4, %14 : tensor<2x2xf32>
    return %24, %25 : tensor<2x2xf32>, tensor<2x2xf32>
  }
}
