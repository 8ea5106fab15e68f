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

// ----- Parts of equal size are rows
// Each op of the callee that uses the argument has a cut of its own.
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [4:6, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s2 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r2 = mpmd.call @f(%s2, %y) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1, %r2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}
// =>
func.func @main(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<2> : tensor<i32>
  %c_1 = stablehlo.constant dense<1> : tensor<i32>
  %0 = mpmd.call @f(%arg0, %arg1, %c) {call_counter = 0 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %1 = mpmd.call @f(%arg0, %arg1, %c_0) {call_counter = 1 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %2 = mpmd.call @f(%arg0, %arg1, %c_1) {call_counter = 2 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  return %0, %1, %2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>, %arg2: tensor<i32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.reshape %arg0 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<0> : tensor<i32>
  %1 = stablehlo.dynamic_slice %0, %arg2, %c, %c_0, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
  %2 = stablehlo.reshape %1 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.negate %2 : tensor<2x4xf32>
  %4 = stablehlo.reshape %arg0 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %c_1 = stablehlo.constant dense<0> : tensor<i32>
  %c_2 = stablehlo.constant dense<0> : tensor<i32>
  %5 = stablehlo.dynamic_slice %4, %arg2, %c_1, %c_2, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
  %6 = stablehlo.reshape %5 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  %7 = stablehlo.add %3, %6 : tensor<2x4xf32>
  return %7 : tensor<2x4xf32>
}

// ----- Other parts are cut at their place
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [1:3, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s2 = stablehlo.slice %x [3:5, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r2 = mpmd.call @f(%s2, %y) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1, %r2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}
// =>
func.func @main(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<3> : tensor<i32>
  %0 = mpmd.call @f(%arg0, %arg1, %c) {call_counter = 0 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %1 = mpmd.call @f(%arg0, %arg1, %c_0) {call_counter = 1 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %2 = mpmd.call @f(%arg0, %arg1, %c_1) {call_counter = 2 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  return %0, %1, %2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>, %arg2: tensor<i32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %arg0, %arg2, %c, sizes = [2, 4] : (tensor<6x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
  %1 = stablehlo.negate %0 : tensor<2x4xf32>
  %c_0 = stablehlo.constant dense<0> : tensor<i32>
  %2 = stablehlo.dynamic_slice %arg0, %arg2, %c_0, sizes = [2, 4] : (tensor<6x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
  %3 = stablehlo.add %1, %2 : tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}

// ----- All parts of several values
// As of what several calls of an encoder return, each for two microbatches of a model.
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s2 = stablehlo.slice %x [4:6, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r2 = mpmd.call @f(%s2, %y) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s3 = stablehlo.slice %y [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r3 = mpmd.call @f(%s3, %y) {call_counter = 3 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s4 = stablehlo.slice %y [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r4 = mpmd.call @f(%s4, %y) {call_counter = 4 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s5 = stablehlo.slice %y [4:6, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r5 = mpmd.call @f(%s5, %y) {call_counter = 5 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1, %r2, %r3, %r4, %r5 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}
// =>
func.func @main(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<2> : tensor<i32>
  %0 = mpmd.call @f(%arg0, %arg1, %c) {call_counter = 0 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %1 = mpmd.call @f(%arg0, %arg1, %c_0) {call_counter = 1 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %2 = mpmd.call @f(%arg0, %arg1, %c_1) {call_counter = 2 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %3 = mpmd.call @f(%arg1, %arg1, %c) {call_counter = 3 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %4 = mpmd.call @f(%arg1, %arg1, %c_0) {call_counter = 4 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %5 = mpmd.call @f(%arg1, %arg1, %c_1) {call_counter = 5 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  return %0, %1, %2, %3, %4, %5 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>, %arg2: tensor<i32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.reshape %arg0 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<0> : tensor<i32>
  %1 = stablehlo.dynamic_slice %0, %arg2, %c, %c_0, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
  %2 = stablehlo.reshape %1 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.negate %2 : tensor<2x4xf32>
  %4 = stablehlo.reshape %arg0 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %c_1 = stablehlo.constant dense<0> : tensor<i32>
  %c_2 = stablehlo.constant dense<0> : tensor<i32>
  %5 = stablehlo.dynamic_slice %4, %arg2, %c_1, %c_2, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
  %6 = stablehlo.reshape %5 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  %7 = stablehlo.add %3, %6 : tensor<2x4xf32>
  return %7 : tensor<2x4xf32>
}

// ----- Some parts of several values stay
// More would be sent.
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s2 = stablehlo.slice %y [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r2 = mpmd.call @f(%s2, %y) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s3 = stablehlo.slice %y [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r3 = mpmd.call @f(%s3, %y) {call_counter = 3 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1, %r2, %r3 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// ----- Ops of one operand behind a slice go along
func.func @main(%x: tensor<3x4x1x3xf32>, %y: tensor<3x4x1x3xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %c0 = stablehlo.slice %x [0:1, 0:4, 0:1, 1:3] : (tensor<3x4x1x3xf32>) -> tensor<1x4x1x2xf32>
  %t0 = stablehlo.reshape %c0 : (tensor<1x4x1x2xf32>) -> tensor<4x2xf32>
  %s0 = stablehlo.transpose %t0, dims = [1, 0] : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<3x4x1x3xf32>) -> tensor<2x4xf32>
  %c1 = stablehlo.slice %x [1:2, 0:4, 0:1, 1:3] : (tensor<3x4x1x3xf32>) -> tensor<1x4x1x2xf32>
  %t1 = stablehlo.reshape %c1 : (tensor<1x4x1x2xf32>) -> tensor<4x2xf32>
  %s1 = stablehlo.transpose %t1, dims = [1, 0] : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<3x4x1x3xf32>) -> tensor<2x4xf32>
  %c2 = stablehlo.slice %x [2:3, 0:4, 0:1, 1:3] : (tensor<3x4x1x3xf32>) -> tensor<1x4x1x2xf32>
  %t2 = stablehlo.reshape %c2 : (tensor<1x4x1x2xf32>) -> tensor<4x2xf32>
  %s2 = stablehlo.transpose %t2, dims = [1, 0] : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %r2 = mpmd.call @f(%s2, %y) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<3x4x1x3xf32>) -> tensor<2x4xf32>
  return %r0, %r1, %r2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<3x4x1x3xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}
// =>
func.func @main(%arg0: tensor<3x4x1x3xf32>, %arg1: tensor<3x4x1x3xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<2> : tensor<i32>
  %0 = mpmd.call @f(%arg0, %arg1, %c) {call_counter = 0 : ui32} : (tensor<3x4x1x3xf32>, tensor<3x4x1x3xf32>, tensor<i32>) -> tensor<2x4xf32>
  %1 = mpmd.call @f(%arg0, %arg1, %c_0) {call_counter = 1 : ui32} : (tensor<3x4x1x3xf32>, tensor<3x4x1x3xf32>, tensor<i32>) -> tensor<2x4xf32>
  %2 = mpmd.call @f(%arg0, %arg1, %c_1) {call_counter = 2 : ui32} : (tensor<3x4x1x3xf32>, tensor<3x4x1x3xf32>, tensor<i32>) -> tensor<2x4xf32>
  return %0, %1, %2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<3x4x1x3xf32>, %arg1: tensor<3x4x1x3xf32>, %arg2: tensor<i32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<0> : tensor<i32>
  %c_1 = stablehlo.constant dense<1> : tensor<i32>
  %0 = stablehlo.dynamic_slice %arg0, %arg2, %c, %c_0, %c_1, sizes = [1, 4, 1, 2] : (tensor<3x4x1x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x1x2xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x4x1x2xf32>) -> tensor<4x2xf32>
  %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.negate %2 : tensor<2x4xf32>
  %c_2 = stablehlo.constant dense<0> : tensor<i32>
  %c_3 = stablehlo.constant dense<0> : tensor<i32>
  %c_4 = stablehlo.constant dense<1> : tensor<i32>
  %4 = stablehlo.dynamic_slice %arg0, %arg2, %c_2, %c_3, %c_4, sizes = [1, 4, 1, 2] : (tensor<3x4x1x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x1x2xf32>
  %5 = stablehlo.reshape %4 : (tensor<1x4x1x2xf32>) -> tensor<4x2xf32>
  %6 = stablehlo.transpose %5, dims = [1, 0] : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %7 = stablehlo.add %3, %6 : tensor<2x4xf32>
  return %7 : tensor<2x4xf32>
}

// ----- One index for all that is cut alike
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %t0 = stablehlo.slice %y [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %t0) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %t1 = stablehlo.slice %y [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %t1) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %s2 = stablehlo.slice %x [4:6, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %t2 = stablehlo.slice %y [4:6, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r2 = mpmd.call @f(%s2, %t2) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1, %r2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.add %u, %v : tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
// =>
func.func @main(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<2> : tensor<i32>
  %0 = mpmd.call @f(%arg0, %arg1, %c) {call_counter = 0 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %1 = mpmd.call @f(%arg0, %arg1, %c_0) {call_counter = 1 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %2 = mpmd.call @f(%arg0, %arg1, %c_1) {call_counter = 2 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  return %0, %1, %2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>, %arg2: tensor<i32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.reshape %arg0 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<0> : tensor<i32>
  %1 = stablehlo.dynamic_slice %0, %arg2, %c, %c_0, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
  %2 = stablehlo.reshape %1 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.reshape %arg1 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %c_1 = stablehlo.constant dense<0> : tensor<i32>
  %c_2 = stablehlo.constant dense<0> : tensor<i32>
  %4 = stablehlo.dynamic_slice %3, %arg2, %c_1, %c_2, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
  %5 = stablehlo.reshape %4 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  %6 = stablehlo.add %2, %5 : tensor<2x4xf32>
  return %6 : tensor<2x4xf32>
}

// ----- One call stays
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0 : tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// ----- The same part in all calls stays
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// ----- Parts of two values stay
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %y [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// ----- Strides stay
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:3:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [1:4:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// ----- Parts of two dimensions stay
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:2] : (tensor<6x4xf32>) -> tensor<2x2xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x2xf32>, tensor<6x4xf32>) -> tensor<2x2xf32>
  %s1 = stablehlo.slice %x [1:3, 1:3] : (tensor<6x4xf32>) -> tensor<2x2xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x2xf32>, tensor<6x4xf32>) -> tensor<2x2xf32>
  return %r0, %r1 : tensor<2x2xf32>, tensor<2x2xf32>
}
func.func private @f(%u: tensor<2x2xf32>, %v: tensor<6x4xf32>) -> tensor<2x2xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x2xf32>
  %1 = stablehlo.add %0, %u : tensor<2x2xf32>
  return %1 : tensor<2x2xf32>
}

// ----- Parts with other ops behind them stay
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %c = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.negate %c : tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// ----- Parts of a dimension that is sharded stay
func.func @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}, {}]>}, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// ----- Parts of a dimension beside one that is sharded
func.func @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{}, {"x"}]>}, %y: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %s0 = stablehlo.slice %x [0:2, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s1 = stablehlo.slice %x [2:4, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  return %r0, %r1 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%u: tensor<2x4xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}
// =>
func.func @main(%arg0: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{}, {"x"}]>}, %arg1: tensor<6x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %0 = mpmd.call @f(%arg0, %arg1, %c) {call_counter = 0 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  %1 = mpmd.call @f(%arg0, %arg1, %c_0) {call_counter = 1 : ui32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<i32>) -> tensor<2x4xf32>
  return %0, %1 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<6x4xf32>, %arg1: tensor<6x4xf32>, %arg2: tensor<i32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.reshape %arg0 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<0> : tensor<i32>
  %1 = stablehlo.dynamic_slice %0, %arg2, %c, %c_0, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
  %2 = stablehlo.reshape %1 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.negate %2 : tensor<2x4xf32>
  %4 = stablehlo.reshape %arg0 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %c_1 = stablehlo.constant dense<0> : tensor<i32>
  %c_2 = stablehlo.constant dense<0> : tensor<i32>
  %5 = stablehlo.dynamic_slice %4, %arg2, %c_1, %c_2, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
  %6 = stablehlo.reshape %5 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  %7 = stablehlo.add %3, %6 : tensor<2x4xf32>
  return %7 : tensor<2x4xf32>
}

// ----- Rows that are sharded are sharded in each microbatch
// Of a batch that is reshaped to be cut.
func.func @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}, {}]>}, %y: tensor<6x4xf32>) -> (tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>) attributes {topology = #meshes} {
  %b = stablehlo.reshape %x : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %s0 = stablehlo.slice %b [0:1, 0:2, 0:4] : (tensor<3x2x4xf32>) -> tensor<1x2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<1x2x4xf32>, tensor<6x4xf32>) -> tensor<1x2x4xf32>
  %s1 = stablehlo.slice %b [1:2, 0:2, 0:4] : (tensor<3x2x4xf32>) -> tensor<1x2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<1x2x4xf32>, tensor<6x4xf32>) -> tensor<1x2x4xf32>
  %s2 = stablehlo.slice %b [2:3, 0:2, 0:4] : (tensor<3x2x4xf32>) -> tensor<1x2x4xf32>
  %r2 = mpmd.call @f(%s2, %y) {call_counter = 2 : ui32} : (tensor<1x2x4xf32>, tensor<6x4xf32>) -> tensor<1x2x4xf32>
  return %r0, %r1, %r2 : tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>
}
func.func private @f(%u: tensor<1x2x4xf32>, %v: tensor<6x4xf32>) -> tensor<1x2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<1x2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<1x2x4xf32>
  return %1 : tensor<1x2x4xf32>
}
// CHECK-COUNT-1: sdy.sharding_constraint %0 <mesh<["x"=2]>, [{}, {"x"}, {}]>

// ----- Rows that are not sharded are not sharded in each microbatch
func.func @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> (tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>) attributes {topology = #meshes} {
  %b = stablehlo.reshape %x : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
  %s0 = stablehlo.slice %b [0:1, 0:2, 0:4] : (tensor<3x2x4xf32>) -> tensor<1x2x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<1x2x4xf32>, tensor<6x4xf32>) -> tensor<1x2x4xf32>
  %s1 = stablehlo.slice %b [1:2, 0:2, 0:4] : (tensor<3x2x4xf32>) -> tensor<1x2x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<1x2x4xf32>, tensor<6x4xf32>) -> tensor<1x2x4xf32>
  %s2 = stablehlo.slice %b [2:3, 0:2, 0:4] : (tensor<3x2x4xf32>) -> tensor<1x2x4xf32>
  %r2 = mpmd.call @f(%s2, %y) {call_counter = 2 : ui32} : (tensor<1x2x4xf32>, tensor<6x4xf32>) -> tensor<1x2x4xf32>
  return %r0, %r1, %r2 : tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>
}
func.func private @f(%u: tensor<1x2x4xf32>, %v: tensor<6x4xf32>) -> tensor<1x2x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<1x2x4xf32>
  %1 = stablehlo.add %0, %u : tensor<1x2x4xf32>
  return %1 : tensor<1x2x4xf32>
}
// CHECK-NOT: sharding_constraint

// ----- Three rows are not divided by two devices
func.func @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}, {}]>}, %y: tensor<6x4xf32>) -> (tensor<1x3x4xf32>, tensor<1x3x4xf32>) attributes {topology = #meshes} {
  %b = stablehlo.reshape %x : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
  %s0 = stablehlo.slice %b [0:1, 0:3, 0:4] : (tensor<2x3x4xf32>) -> tensor<1x3x4xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<1x3x4xf32>, tensor<6x4xf32>) -> tensor<1x3x4xf32>
  %s1 = stablehlo.slice %b [1:2, 0:3, 0:4] : (tensor<2x3x4xf32>) -> tensor<1x3x4xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<1x3x4xf32>, tensor<6x4xf32>) -> tensor<1x3x4xf32>
  return %r0, %r1 : tensor<1x3x4xf32>, tensor<1x3x4xf32>
}
func.func private @f(%u: tensor<1x3x4xf32>, %v: tensor<6x4xf32>) -> tensor<1x3x4xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<1x3x4xf32>
  %1 = stablehlo.add %0, %u : tensor<1x3x4xf32>
  return %1 : tensor<1x3x4xf32>
}
// CHECK-NOT: sharding_constraint

// ----- Columns are not sharded for rows
func.func @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}, {}]>}, %y: tensor<6x4xf32>) -> (tensor<1x2x2xf32>, tensor<1x2x2xf32>, tensor<1x2x2xf32>, tensor<1x2x2xf32>, tensor<1x2x2xf32>, tensor<1x2x2xf32>) attributes {topology = #meshes} {
  %b = stablehlo.reshape %x : (tensor<6x4xf32>) -> tensor<6x2x2xf32>
  %s0 = stablehlo.slice %b [0:1, 0:2, 0:2] : (tensor<6x2x2xf32>) -> tensor<1x2x2xf32>
  %r0 = mpmd.call @f(%s0, %y) {call_counter = 0 : ui32} : (tensor<1x2x2xf32>, tensor<6x4xf32>) -> tensor<1x2x2xf32>
  %s1 = stablehlo.slice %b [1:2, 0:2, 0:2] : (tensor<6x2x2xf32>) -> tensor<1x2x2xf32>
  %r1 = mpmd.call @f(%s1, %y) {call_counter = 1 : ui32} : (tensor<1x2x2xf32>, tensor<6x4xf32>) -> tensor<1x2x2xf32>
  %s2 = stablehlo.slice %b [2:3, 0:2, 0:2] : (tensor<6x2x2xf32>) -> tensor<1x2x2xf32>
  %r2 = mpmd.call @f(%s2, %y) {call_counter = 2 : ui32} : (tensor<1x2x2xf32>, tensor<6x4xf32>) -> tensor<1x2x2xf32>
  %s3 = stablehlo.slice %b [3:4, 0:2, 0:2] : (tensor<6x2x2xf32>) -> tensor<1x2x2xf32>
  %r3 = mpmd.call @f(%s3, %y) {call_counter = 3 : ui32} : (tensor<1x2x2xf32>, tensor<6x4xf32>) -> tensor<1x2x2xf32>
  %s4 = stablehlo.slice %b [4:5, 0:2, 0:2] : (tensor<6x2x2xf32>) -> tensor<1x2x2xf32>
  %r4 = mpmd.call @f(%s4, %y) {call_counter = 4 : ui32} : (tensor<1x2x2xf32>, tensor<6x4xf32>) -> tensor<1x2x2xf32>
  %s5 = stablehlo.slice %b [5:6, 0:2, 0:2] : (tensor<6x2x2xf32>) -> tensor<1x2x2xf32>
  %r5 = mpmd.call @f(%s5, %y) {call_counter = 5 : ui32} : (tensor<1x2x2xf32>, tensor<6x4xf32>) -> tensor<1x2x2xf32>
  return %r0, %r1, %r2, %r3, %r4, %r5 : tensor<1x2x2xf32>, tensor<1x2x2xf32>, tensor<1x2x2xf32>, tensor<1x2x2xf32>, tensor<1x2x2xf32>, tensor<1x2x2xf32>
}
func.func private @f(%u: tensor<1x2x2xf32>, %v: tensor<6x4xf32>) -> tensor<1x2x2xf32> attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : tensor<1x2x2xf32>
  %1 = stablehlo.add %0, %u : tensor<1x2x2xf32>
  return %1 : tensor<1x2x2xf32>
}
// CHECK-NOT: sharding_constraint
