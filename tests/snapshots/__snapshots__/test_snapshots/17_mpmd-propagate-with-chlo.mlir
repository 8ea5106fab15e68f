module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>> {jax.result_info = "result.first.weight"}, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>> {jax.result_info = "result.second.weight"}) attributes {topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=2]>>>} {
    %0:3 = mpmd.fragment<mesh="m0", origin=[]> (%arg2) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<2x2xf32>) {
      %1 = sdy.constant dense<0.000000e+00> : tensor<2x2xf32>
      %2 = stablehlo.slice %arg3 [0:1, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x2xf32>) -> tensor<2xf32>
      %4 = stablehlo.slice %arg3 [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %5 = stablehlo.reshape %4 : (tensor<1x2xf32>) -> tensor<2xf32>
      mpmd.return %3, %1, %5 : tensor<2xf32>, tensor<2x2xf32>, tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>)
    %6 = mpmd.fragment<mesh="m1", origin=[]> () {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
      %7 = sdy.constant dense<0.000000e+00> : tensor<2x2xf32>
      mpmd.return %7 : tensor<2x2xf32>
    } : () -> !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
    %8 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %0#0) {call_counter = 0 : ui32} (%arg4: tensor<2x2xf32>, %arg5: tensor<2xf32>) {
      %9 = stablehlo.dot_general %arg4, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %9 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %10 = mpmd.transfer %8 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %11:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %10, %6) {call_counter = 0 : ui32} (%arg6: tensor<2x2xf32>, %arg7: tensor<2xf32>, %arg8: tensor<2x2xf32>) {
      %12 = sdy.constant dense<1.000000e+00> : tensor<2xf32>
      %13 = sdy.constant dense<3.000000e+00> : tensor<2xf32>
      %14 = stablehlo.multiply %arg7, %13 : tensor<2xf32>
      %15 = stablehlo.dot_general %12, %arg6, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %16 = stablehlo.dot_general %12, %14, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %17 = stablehlo.add %arg8, %16 : tensor<2x2xf32>
      mpmd.return %15, %17 : tensor<2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %18 = mpmd.transfer %11#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %19 = mpmd.fragment<mesh="m0", origin=["first"]> (%arg0, %0#2) {call_counter = 1 : ui32} (%arg9: tensor<2x2xf32>, %arg10: tensor<2xf32>) {
      %20 = stablehlo.dot_general %arg9, %arg10, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      mpmd.return %20 : tensor<2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %21 = mpmd.transfer %19 : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<2xf32>>
    %22:2 = mpmd.fragment<mesh="m1", origin=["second"(1)]> (%arg1, %21, %11#1) {call_counter = 1 : ui32} (%arg11: tensor<2x2xf32>, %arg12: tensor<2xf32>, %arg13: tensor<2x2xf32>) {
      %23 = sdy.constant dense<1.000000e+00> : tensor<2xf32>
      %24 = sdy.constant dense<3.000000e+00> : tensor<2xf32>
      %25 = stablehlo.multiply %arg12, %24 : tensor<2xf32>
      %26 = stablehlo.dot_general %23, %arg11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2x2xf32>) -> tensor<2xf32>
      %27 = stablehlo.dot_general %23, %25, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %28 = stablehlo.add %arg13, %27 : tensor<2x2xf32>
      mpmd.return %26, %28 : tensor<2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"m1", tensor<2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>)
    %29 = mpmd.transfer %22#0 : (!mpmd.mesh_tensor<"m1", tensor<2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2xf32>>
    %30 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#0, %18, %0#1) {call_counter = 0 : ui32} (%arg14: tensor<2xf32>, %arg15: tensor<2xf32>, %arg16: tensor<2x2xf32>) {
      %31 = sdy.constant dense<3.000000e+00> : tensor<2xf32>
      %32 = stablehlo.multiply %arg15, %31 : tensor<2xf32>
      %33 = stablehlo.dot_general %32, %arg14, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %34 = stablehlo.add %arg16, %33 : tensor<2x2xf32>
      mpmd.return %34 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    %35 = mpmd.fragment<mesh="m0", origin=["first"(1)]> (%0#2, %29, %30) {call_counter = 1 : ui32} (%arg17: tensor<2xf32>, %arg18: tensor<2xf32>, %arg19: tensor<2x2xf32>) {
      %36 = sdy.constant dense<3.000000e+00> : tensor<2xf32>
      %37 = stablehlo.multiply %arg18, %36 : tensor<2xf32>
      %38 = stablehlo.dot_general %37, %arg17, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      %39 = stablehlo.add %arg19, %38 : tensor<2x2xf32>
      mpmd.return %39 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2xf32>>, !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>
    return %35, %22#1 : !mpmd.mesh_tensor<"m0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"m1", tensor<2x2xf32>>
  }
}
