// passes: mpmd-cut-in-calls
!x = tensor<4xi32>
!i = tensor<i32>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>>

// ----- Numbers that differ from call to call are indices, and others are not
func.func public @main(%x: !x) -> (!x, !x, !x) attributes {topology = #meshes} {
  %same = stablehlo.constant dense<7> : !i
  %c0 = stablehlo.constant dense<0> : !i
  %c1 = stablehlo.constant dense<1> : !i
  %r0 = mpmd.call @f(%x, %c0, %same) {call_counter = 0 : ui32} : (!x, !i, !i) -> !x
  %r1 = mpmd.call @f(%x, %c1, %same) {call_counter = 1 : ui32} : (!x, !i, !i) -> !x
  %r2 = mpmd.call @f(%x, %c0, %same) {call_counter = 2 : ui32} : (!x, !i, !i) -> !x
  return %r0, %r1, %r2 : !x, !x, !x
}
func.func private @f(%u: !x, %i: !i, %n: !i) -> !x attributes {topology = #meshes} {
  %0 = stablehlo.add %i, %n : !i
  %1 = stablehlo.broadcast_in_dim %0, dims = [] : (!i) -> !x
  %2 = stablehlo.multiply %u, %1 : !x
  return %2 : !x
}
// =>
func.func public @main(%arg0: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<7> : tensor<i32>
  %0 = mpmd.call @f(%arg0, %c, %c_1) {call_counter = 0 : ui32} : (tensor<4xi32>, tensor<i32>, tensor<i32>) -> tensor<4xi32>
  %1 = mpmd.call @f(%arg0, %c_0, %c_1) {call_counter = 1 : ui32} : (tensor<4xi32>, tensor<i32>, tensor<i32>) -> tensor<4xi32>
  %2 = mpmd.call @f(%arg0, %c, %c_1) {call_counter = 2 : ui32} : (tensor<4xi32>, tensor<i32>, tensor<i32>) -> tensor<4xi32>
  return %0, %1, %2 : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
}
func.func private @f(%arg0: tensor<4xi32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<4xi32> attributes {topology = #meshes} {
  %0 = stablehlo.add %arg1, %arg2 : tensor<i32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<4xi32>
  %2 = stablehlo.multiply %arg0, %1 : tensor<4xi32>
  return %2 : tensor<4xi32>
}
