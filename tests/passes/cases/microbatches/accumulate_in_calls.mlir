// passes: mpmd-accumulate-in-calls
!t = tensor<2x4xf32>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>>

// ----- Sums of all results
func.func @main(%x: !t, %y: !t) -> (!t, !t) attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r0#0, %r1#0 : !t
  %1 = stablehlo.add %r1#1, %r0#1 : !t
  %2 = stablehlo.add %0, %r2#0 : !t
  %3 = stablehlo.add %r2#1, %1 : !t
  return %2, %3 : !t, !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}
// =>
func.func @main(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x4xf32>
  %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<2x4xf32>
  %0:2 = mpmd.call @f(%arg0, %arg1, %cst, %cst_0) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %1:2 = mpmd.call @f(%arg0, %arg1, %0#0, %0#1) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %2:2 = mpmd.call @f(%arg0, %arg1, %1#0, %1#1) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  return %2#0, %2#1 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<2x4xf32>, %arg3: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %0 = stablehlo.negate %arg0 : tensor<2x4xf32>
  %1 = stablehlo.sine %arg1 : tensor<2x4xf32>
  %2 = stablehlo.add %arg2, %0 : tensor<2x4xf32>
  %3 = stablehlo.add %arg3, %1 : tensor<2x4xf32>
  return %2, %3 : tensor<2x4xf32>, tensor<2x4xf32>
}

// ----- A sum of two microbatches
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r0#0, %r1#0 : !t
  return %0 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}
// =>
func.func @main(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x4xf32>
  %0:2 = mpmd.call @f(%arg0, %arg1, %cst) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %1:2 = mpmd.call @f(%arg0, %arg1, %0#0) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  return %1#0 : tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %0 = stablehlo.negate %arg0 : tensor<2x4xf32>
  %1 = stablehlo.sine %arg1 : tensor<2x4xf32>
  %2 = stablehlo.add %arg2, %0 : tensor<2x4xf32>
  return %2, %1 : tensor<2x4xf32>, tensor<2x4xf32>
}

// ----- A sum in another order than that of the microbatches
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 7 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r0#0, %r1#0 : !t
  return %0 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}

// ----- A sum that starts with an argument
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %x, %r0#0 : !t
  %1 = stablehlo.add %0, %r1#0 : !t
  %2 = stablehlo.add %1, %r2#0 : !t
  return %2 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}
// =>
func.func @main(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %0:2 = mpmd.call @f(%arg0, %arg1, %arg0) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %1:2 = mpmd.call @f(%arg0, %arg1, %0#0) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %2:2 = mpmd.call @f(%arg0, %arg1, %1#0) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  return %2#0 : tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %0 = stablehlo.negate %arg0 : tensor<2x4xf32>
  %1 = stablehlo.sine %arg1 : tensor<2x4xf32>
  %2 = stablehlo.add %arg2, %0 : tensor<2x4xf32>
  return %2, %1 : tensor<2x4xf32>, tensor<2x4xf32>
}

// ----- A sum that starts with a constant
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %c = stablehlo.constant dense<2.0> : !t
  %0 = stablehlo.add %c, %r0#0 : !t
  %1 = stablehlo.add %0, %r1#0 : !t
  %2 = stablehlo.add %1, %r2#0 : !t
  return %2 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}
// =>
func.func @main(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {topology = #meshes} {
  %cst = stablehlo.constant dense<2.000000e+00> : tensor<2x4xf32>
  %0:2 = mpmd.call @f(%arg0, %arg1, %cst) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %1:2 = mpmd.call @f(%arg0, %arg1, %0#0) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %2:2 = mpmd.call @f(%arg0, %arg1, %1#0) {call_counter = 2 : ui32} : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  return %2#0 : tensor<2x4xf32>
}
func.func private @f(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {topology = #meshes} {
  %0 = stablehlo.negate %arg0 : tensor<2x4xf32>
  %1 = stablehlo.sine %arg1 : tensor<2x4xf32>
  %2 = stablehlo.add %arg2, %0 : tensor<2x4xf32>
  return %2, %1 : tensor<2x4xf32>, tensor<2x4xf32>
}

// ----- A sum that starts with what is made of a result
// It would have to be there before the calls.
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %s = stablehlo.sine %r2#1 : !t
  %0 = stablehlo.add %s, %r0#0 : !t
  %1 = stablehlo.add %0, %r1#0 : !t
  %2 = stablehlo.add %1, %r2#0 : !t
  return %2 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}

// ----- Microbatches that are added in another order
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r0#0, %r2#0 : !t
  %1 = stablehlo.add %0, %r1#0 : !t
  return %1 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}

// ----- A sum on the way that is used
func.func @main(%x: !t, %y: !t) -> (!t, !t) attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r0#0, %r1#0 : !t
  %1 = stablehlo.add %0, %r2#0 : !t
  return %0, %1 : !t, !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}

// ----- A value that is used beside the sum
func.func @main(%x: !t, %y: !t) -> (!t, !t) attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r0#0, %r1#0 : !t
  %1 = stablehlo.add %0, %r2#0 : !t
  return %1, %r1#0 : !t, !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}

// ----- A sum of some of the microbatches
func.func @main(%x: !t, %y: !t) -> (!t, !t) attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r0#0, %r1#0 : !t
  return %0, %r2#0 : !t, !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}

// ----- A microbatch that is added twice
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r0#0, %r0#0 : !t
  %1 = stablehlo.add %0, %r1#0 : !t
  %2 = stablehlo.add %1, %r2#0 : !t
  return %2 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}

// ----- A sum in other brackets
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.add %r1#0, %r2#0 : !t
  %1 = stablehlo.add %r0#0, %0 : !t
  return %1 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}

// ----- A product
func.func @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
  %r0:2 = mpmd.call @f(%x, %y) {call_counter = 0 : ui32} : (!t, !t) -> (!t, !t)
  %r1:2 = mpmd.call @f(%x, %y) {call_counter = 1 : ui32} : (!t, !t) -> (!t, !t)
  %r2:2 = mpmd.call @f(%x, %y) {call_counter = 2 : ui32} : (!t, !t) -> (!t, !t)
  %0 = stablehlo.multiply %r0#0, %r1#0 : !t
  %1 = stablehlo.multiply %0, %r2#0 : !t
  return %1 : !t
}
func.func private @f(%u: !t, %v: !t) -> (!t, !t) attributes {topology = #meshes} {
  %0 = stablehlo.negate %u : !t
  %1 = stablehlo.sine %v : !t
  return %0, %1 : !t, !t
}
