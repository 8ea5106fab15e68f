// passes: mpmd-erase-unused-callee-block-arguments
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- An argument used by a dead op stays
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @f(%a: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.negate %a : tensor<f32>
  return %a : tensor<f32>
}

// ----- A superfluous function vanishes with its calls also in loops
func.func @main(%p: tensor<ui32>) -> tensor<ui32> attributes {topology = #topo} {
  %0 = mpmd.for (%p) {iterations = 2 : ui32} (%x: tensor<ui32>, %i: tensor<ui32>) {
    %1:2 = mpmd.call @f(%x, %i, %i) : (tensor<ui32>, tensor<ui32>, tensor<ui32>) -> (tensor<ui32>, tensor<ui32>)
    %2:2 = mpmd.call @f(%1#1, %1#0, %i) : (tensor<ui32>, tensor<ui32>, tensor<ui32>) -> (tensor<ui32>, tensor<ui32>)
    %3 = stablehlo.add %2#0, %2#1 : tensor<ui32>
    mpmd.return %3 : tensor<ui32>
  } : tensor<ui32>
  return %0 : tensor<ui32>
}
func.func private @f(%a: tensor<ui32>, %b: tensor<ui32>, %c: tensor<ui32>) -> (tensor<ui32>, tensor<ui32>)
    attributes {topology = #topo} {
  return %b, %a : tensor<ui32>, tensor<ui32>
}
// =>
func.func @main(%p: tensor<ui32>) -> tensor<ui32> attributes {topology = #topo} {
  %0 = mpmd.for (%p) {iterations = 2 : ui32} (%x: tensor<ui32>, %i: tensor<ui32>) {
    %3 = stablehlo.add %i, %x : tensor<ui32>
    mpmd.return %3 : tensor<ui32>
  } : tensor<ui32>
  return %0 : tensor<ui32>
}

// ----- Functions that are never called or only without use stay
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0:2 = mpmd.call @step(%p, %p) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  return %p : tensor<f32>
}
func.func private @step(%a: tensor<f32> {jax.buffer_donor = true}, %b: tensor<f32> {mhlo.layout_mode = "b"})
    -> (tensor<f32> {jax.result_info = "r0"}, tensor<f32> {jax.result_info = "r1"}) attributes {topology = #topo} {
  %0 = stablehlo.negate %b : tensor<f32>
  return %a, %0 : tensor<f32>, tensor<f32>
}
func.func private @other(%a: tensor<f32> {jax.buffer_donor = true}, %b: tensor<f32> {mhlo.layout_mode = "b"})
    -> (tensor<f32> {jax.result_info = "r0"}, tensor<f32> {jax.result_info = "r1"}) attributes {topology = #topo} {
  %0 = stablehlo.negate %b : tensor<f32>
  return %a, %0 : tensor<f32>, tensor<f32>
}

// ----- Attributes of arguments and results go with them
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0:2 = mpmd.call @step(%p, %p) {x} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  return %0#1 : tensor<f32>
}
func.func private @step(%a: tensor<f32> {jax.buffer_donor = true}, %b: tensor<f32> {mhlo.layout_mode = "b"})
    -> (tensor<f32> {jax.result_info = "r0"}, tensor<f32> {jax.result_info = "r1"}) attributes {topology = #topo} {
  %0 = stablehlo.negate %b : tensor<f32>
  return %a, %0 : tensor<f32>, tensor<f32>
}
// =>
func.func @main(%arg0: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = mpmd.call @step(%arg0) {x} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @step(%arg0: tensor<f32> {mhlo.layout_mode = "b"}) -> (tensor<f32> {jax.result_info = "r1"}) attributes {topology = #topo} {
  %0 = stablehlo.negate %arg0 : tensor<f32>
  return %0 : tensor<f32>
}

// ----- Unused calls are kept in step
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0:2 = mpmd.call @step(%p, %p) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  %1:2 = mpmd.call @step(%0#0, %0#1) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  return %0#1 : tensor<f32>
}
func.func private @step(%a: tensor<f32> {jax.buffer_donor = true}, %b: tensor<f32> {mhlo.layout_mode = "b"})
    -> (tensor<f32> {jax.result_info = "r0"}, tensor<f32> {jax.result_info = "r1"}) attributes {topology = #topo} {
  %0 = stablehlo.negate %b : tensor<f32>
  return %a, %0 : tensor<f32>, tensor<f32>
}
// =>
func.func @main(%arg0: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = mpmd.call @step(%arg0) : (tensor<f32>) -> tensor<f32>
  %1 = mpmd.call @step(%0) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @step(%arg0: tensor<f32> {mhlo.layout_mode = "b"}) -> (tensor<f32> {jax.result_info = "r1"}) attributes {topology = #topo} {
  %0 = stablehlo.negate %arg0 : tensor<f32>
  return %0 : tensor<f32>
}

// ----- Functions that are called for nothing (1)
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
  return %p : tensor<f32>
}
func.func private @f(%a: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}

// ----- Functions that are called for nothing (2)
// passes: mpmd-erase-unused-arguments-of-all-calls
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
  return %p : tensor<f32>
}
func.func private @f(%a: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}
// =>
func.func @main(%arg0: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = mpmd.call @f() : () -> tensor<f32>
  return %arg0 : tensor<f32>
}
func.func private @f() -> tensor<f32> attributes {topology = #topo} {
  %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
  return %cst : tensor<f32>
}
