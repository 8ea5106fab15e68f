module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%arg0: tensor<4x4xf32> {jax.buffer_donor = true}, %arg1: tensor<4xf32> {jax.buffer_donor = true}, %arg2: tensor<4x4xf32> {jax.buffer_donor = true}, %arg3: tensor<4xf32> {jax.buffer_donor = true}, %arg4: tensor<4x4xf32> {jax.buffer_donor = true}, %arg5: tensor<4xf32> {jax.buffer_donor = true}, %arg6: tensor<4x4xf32> {jax.buffer_donor = true}, %arg7: tensor<4xf32> {jax.buffer_donor = true}, %arg8: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg9: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {jax.result_info = "result[0][0][0][0]"}, tensor<4xf32> {jax.result_info = "result[0][0][0][1]"}, tensor<4x4xf32> {jax.result_info = "result[0][0][1][0]"}, tensor<4xf32> {jax.result_info = "result[0][0][1][1]"}, tensor<4x4xf32> {jax.result_info = "result[0][1][0][0]"}, tensor<4xf32> {jax.result_info = "result[0][1][0][1]"}, tensor<4x4xf32> {jax.result_info = "result[0][1][1][0]"}, tensor<4xf32> {jax.result_info = "result[0][1][1][1]"}, tensor<f32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %8 = stablehlo.slice %arg8 [0:4, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %9 = stablehlo.slice %arg9 [0:4, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %10:9 = mpmd.call @loss_fn(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %8, %9) {call_counter = 0 : ui32} : (tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<f32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>)
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.add %cst_7, %10#0 : tensor<f32>
    %12 = stablehlo.add %0, %10#1 : tensor<4x4xf32>
    %13 = stablehlo.add %1, %10#2 : tensor<4xf32>
    %14 = stablehlo.add %2, %10#3 : tensor<4x4xf32>
    %15 = stablehlo.add %3, %10#4 : tensor<4xf32>
    %16 = stablehlo.add %4, %10#5 : tensor<4x4xf32>
    %17 = stablehlo.add %5, %10#6 : tensor<4xf32>
    %18 = stablehlo.add %6, %10#7 : tensor<4x4xf32>
    %19 = stablehlo.add %7, %10#8 : tensor<4xf32>
    %20 = stablehlo.slice %arg8 [4:8, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %21 = stablehlo.slice %arg9 [4:8, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %22:9 = mpmd.call @loss_fn(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %20, %21) {call_counter = 1 : ui32} : (tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<f32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>)
    %23 = stablehlo.add %11, %22#0 : tensor<f32>
    %24 = stablehlo.add %12, %22#1 : tensor<4x4xf32>
    %25 = stablehlo.add %13, %22#2 : tensor<4xf32>
    %26 = stablehlo.add %14, %22#3 : tensor<4x4xf32>
    %27 = stablehlo.add %15, %22#4 : tensor<4xf32>
    %28 = stablehlo.add %16, %22#5 : tensor<4x4xf32>
    %29 = stablehlo.add %17, %22#6 : tensor<4xf32>
    %30 = stablehlo.add %18, %22#7 : tensor<4x4xf32>
    %31 = stablehlo.add %19, %22#8 : tensor<4xf32>
    %cst_8 = stablehlo.constant dense<5.000000e-03> : tensor<f32>
    %32 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %33 = stablehlo.multiply %32, %24 : tensor<4x4xf32>
    %34 = stablehlo.subtract %arg0, %33 : tensor<4x4xf32>
    %cst_9 = stablehlo.constant dense<5.000000e-03> : tensor<f32>
    %35 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %36 = stablehlo.multiply %35, %25 : tensor<4xf32>
    %37 = stablehlo.subtract %arg1, %36 : tensor<4xf32>
    %cst_10 = stablehlo.constant dense<5.000000e-03> : tensor<f32>
    %38 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %39 = stablehlo.multiply %38, %26 : tensor<4x4xf32>
    %40 = stablehlo.subtract %arg2, %39 : tensor<4x4xf32>
    %cst_11 = stablehlo.constant dense<5.000000e-03> : tensor<f32>
    %41 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %42 = stablehlo.multiply %41, %27 : tensor<4xf32>
    %43 = stablehlo.subtract %arg3, %42 : tensor<4xf32>
    %cst_12 = stablehlo.constant dense<5.000000e-03> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %45 = stablehlo.multiply %44, %28 : tensor<4x4xf32>
    %46 = stablehlo.subtract %arg4, %45 : tensor<4x4xf32>
    %cst_13 = stablehlo.constant dense<5.000000e-03> : tensor<f32>
    %47 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %48 = stablehlo.multiply %47, %29 : tensor<4xf32>
    %49 = stablehlo.subtract %arg5, %48 : tensor<4xf32>
    %cst_14 = stablehlo.constant dense<5.000000e-03> : tensor<f32>
    %50 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %51 = stablehlo.multiply %50, %30 : tensor<4x4xf32>
    %52 = stablehlo.subtract %arg6, %51 : tensor<4x4xf32>
    %cst_15 = stablehlo.constant dense<5.000000e-03> : tensor<f32>
    %53 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %54 = stablehlo.multiply %53, %31 : tensor<4xf32>
    %55 = stablehlo.subtract %arg7, %54 : tensor<4xf32>
    %cst_16 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %56 = stablehlo.divide %23, %cst_16 : tensor<f32>
    return %34, %37, %40, %43, %46, %49, %52, %55, %56 : tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<f32>
  }
  func.func private @loss_fn(%arg0: tensor<4x4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<4x4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4x4xf32>, %arg5: tensor<4xf32>, %arg6: tensor<4x4xf32>, %arg7: tensor<4xf32>, %arg8: tensor<4x4xf32>, %arg9: tensor<4x4xf32>) -> (tensor<f32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>) {
    %0:4 = mpmd.named_computation<"stage0"> (%arg0, %arg1, %arg2, %arg3, %arg8) (%arg10: tensor<4x4xf32>, %arg11: tensor<4xf32>, %arg12: tensor<4x4xf32>, %arg13: tensor<4xf32>, %arg14: tensor<4x4xf32>) {
      %4 = stablehlo.dot_general %arg14, %arg10, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %5 = stablehlo.broadcast_in_dim %arg11, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
      %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %7 = stablehlo.add %4, %6 : tensor<4x4xf32>
      %8 = stablehlo.tanh %7 : tensor<4x4xf32>
      %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %9 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %10 = stablehlo.add %9, %8 : tensor<4x4xf32>
      %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %11 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %12 = stablehlo.subtract %11, %8 : tensor<4x4xf32>
      %13 = stablehlo.multiply %10, %12 : tensor<4x4xf32>
      %14 = stablehlo.dot_general %8, %arg12, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %15 = stablehlo.broadcast_in_dim %arg13, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
      %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %17 = stablehlo.add %14, %16 : tensor<4x4xf32>
      %18 = stablehlo.tanh %17 : tensor<4x4xf32>
      %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %19 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %20 = stablehlo.add %19, %18 : tensor<4x4xf32>
      %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %21 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %22 = stablehlo.subtract %21, %18 : tensor<4x4xf32>
      %23 = stablehlo.multiply %20, %22 : tensor<4x4xf32>
      mpmd.return %18, %13, %8, %23 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
    %1:5 = mpmd.named_computation<"stage1"> (%arg4, %arg5, %arg6, %arg7, %0#0, %arg9) (%arg10: tensor<4x4xf32>, %arg11: tensor<4xf32>, %arg12: tensor<4x4xf32>, %arg13: tensor<4xf32>, %arg14: tensor<4x4xf32>, %arg15: tensor<4x4xf32>) {
      %4 = stablehlo.dot_general %arg14, %arg10, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %5 = stablehlo.broadcast_in_dim %arg11, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
      %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %7 = stablehlo.add %4, %6 : tensor<4x4xf32>
      %8 = stablehlo.tanh %7 : tensor<4x4xf32>
      %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %9 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %10 = stablehlo.add %9, %8 : tensor<4x4xf32>
      %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %11 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %12 = stablehlo.subtract %11, %8 : tensor<4x4xf32>
      %13 = stablehlo.multiply %10, %12 : tensor<4x4xf32>
      %14 = stablehlo.dot_general %8, %arg12, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %15 = stablehlo.broadcast_in_dim %arg13, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
      %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %17 = stablehlo.add %14, %16 : tensor<4x4xf32>
      %18 = stablehlo.tanh %17 : tensor<4x4xf32>
      %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %19 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %20 = stablehlo.add %19, %18 : tensor<4x4xf32>
      %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %21 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %22 = stablehlo.subtract %21, %18 : tensor<4x4xf32>
      %23 = stablehlo.multiply %20, %22 : tensor<4x4xf32>
      %24 = stablehlo.subtract %18, %arg15 : tensor<4x4xf32>
      %25 = stablehlo.multiply %24, %24 : tensor<4x4xf32>
      %cst_4 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %26 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %27 = stablehlo.multiply %26, %24 : tensor<4x4xf32>
      %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %28 = stablehlo.reduce(%25 init: %cst_5) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
      %cst_6 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
      %29 = stablehlo.divide %28, %cst_6 : tensor<f32>
      mpmd.return %29, %13, %8, %23, %27 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2:5 = mpmd.named_computation<"stage1"(1)> (%arg4, %0#0, %1#1, %arg6, %1#2, %1#3, %1#4, %cst) (%arg10: tensor<4x4xf32>, %arg11: tensor<4x4xf32>, %arg12: tensor<4x4xf32>, %arg13: tensor<4x4xf32>, %arg14: tensor<4x4xf32>, %arg15: tensor<4x4xf32>, %arg16: tensor<4x4xf32>, %arg17: tensor<f32>) {
      %cst_0 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
      %4 = stablehlo.divide %arg17, %cst_0 : tensor<f32>
      %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
      %6 = stablehlo.multiply %5, %arg16 : tensor<4x4xf32>
      %7 = stablehlo.multiply %6, %arg15 : tensor<4x4xf32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
      %9 = stablehlo.reshape %8 : (tensor<4xf32>) -> tensor<1x4xf32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %10 = stablehlo.reduce(%9 init: %cst_2) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
      %11 = stablehlo.dot_general %7, %arg14, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %12 = stablehlo.transpose %11, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %13 = stablehlo.dot_general %7, %arg13, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %14 = stablehlo.multiply %13, %arg12 : tensor<4x4xf32>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %15 = stablehlo.reduce(%14 init: %cst_3) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
      %16 = stablehlo.reshape %15 : (tensor<4xf32>) -> tensor<1x4xf32>
      %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %17 = stablehlo.reduce(%16 init: %cst_4) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
      %18 = stablehlo.dot_general %14, %arg11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %19 = stablehlo.transpose %18, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %20 = stablehlo.dot_general %14, %arg10, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %19, %17, %12, %10, %20 : tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>) -> (tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>)
    %3:4 = mpmd.named_computation<"stage0"(1)> (%arg8, %0#1, %arg2, %0#2, %0#3, %2#4) (%arg10: tensor<4x4xf32>, %arg11: tensor<4x4xf32>, %arg12: tensor<4x4xf32>, %arg13: tensor<4x4xf32>, %arg14: tensor<4x4xf32>, %arg15: tensor<4x4xf32>) {
      %4 = stablehlo.multiply %arg15, %arg14 : tensor<4x4xf32>
      %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %5 = stablehlo.reduce(%4 init: %cst_0) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
      %6 = stablehlo.reshape %5 : (tensor<4xf32>) -> tensor<1x4xf32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
      %8 = stablehlo.dot_general %4, %arg13, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %9 = stablehlo.transpose %8, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %10 = stablehlo.dot_general %4, %arg12, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %11 = stablehlo.multiply %10, %arg11 : tensor<4x4xf32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %12 = stablehlo.reduce(%11 init: %cst_2) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
      %13 = stablehlo.reshape %12 : (tensor<4xf32>) -> tensor<1x4xf32>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %14 = stablehlo.reduce(%13 init: %cst_3) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
      %15 = stablehlo.dot_general %11, %arg10, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %16 = stablehlo.transpose %15, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %16, %14, %9, %7 : tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>)
    return %1#0, %3#0, %3#1, %3#2, %3#3, %2#0, %2#1, %2#2, %2#3 : tensor<f32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4xf32>
  }
}
