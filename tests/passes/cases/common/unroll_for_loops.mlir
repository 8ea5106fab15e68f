// passes: mpmd-unroll-for-loops
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>

// ----- Values from outside may be used and yielded
func.func @main(%p: tensor<ui32>, %q: tensor<ui32>) -> (tensor<ui32>, tensor<ui32>) attributes {topology = #topo} {
  %0:2 = mpmd.for (%p, %p) {iterations = 2 : ui32, unroll_factor = 2 : ui32}
      (%a: tensor<ui32>, %b: tensor<ui32>, %i: tensor<ui32>) {
    %s = stablehlo.add %b, %q {unroll_counter = 9 : ui32} : tensor<ui32>
    mpmd.return %q, %s : tensor<ui32>, tensor<ui32>
  } : tensor<ui32>, tensor<ui32>
  return %0#0, %0#1 : tensor<ui32>, tensor<ui32>
}
// =>
func.func @main(%p: tensor<ui32>, %q: tensor<ui32>) -> (tensor<ui32>, tensor<ui32>) attributes {topology = #topo} {
  %c0 = stablehlo.constant {unroll_counter = 0 : ui32} dense<0> : tensor<ui32>
  %0 = stablehlo.add %p, %q {unroll_counter = 0 : ui32} : tensor<ui32>
  %c1 = stablehlo.constant {unroll_counter = 1 : ui32} dense<1> : tensor<ui32>
  %1 = stablehlo.add %0, %q {unroll_counter = 1 : ui32} : tensor<ui32>
  return %q, %1 : tensor<ui32>, tensor<ui32>
}

// ----- Errors (1)
func.func @main(%p: tensor<ui32>) -> tensor<ui32> attributes {topology = #topo} {
  %0 = mpmd.for (%p) {iterations = 4 : ui32} (%x: tensor<ui32>, %i: tensor<ui32>) {
    mpmd.return %x : tensor<ui32>
  } : tensor<ui32>
  return %0 : tensor<ui32>
}
// error: it has no unroll factor

// ----- Errors (2)
func.func @main(%p: tensor<ui32>) -> tensor<ui32> attributes {topology = #topo} {
  %0 = mpmd.for (%p) {iterations = 4 : ui32, unroll_factor = 2 : ui32} (%x: tensor<ui32>, %i: tensor<ui32>) {
    mpmd.return %x : tensor<ui32>
  } : tensor<ui32>
  return %0 : tensor<ui32>
}
// error: its factor is 2

// ----- Errors (3)
func.func @main(%p: tensor<ui32>) -> tensor<ui32> attributes {topology = #topo} {
  %0 = mpmd.for (%p) {iterations = 4 : ui32, unroll_factor = 4 : ui32} (%x: tensor<ui32>, %i: tensor<ui32>) {
    %1 = mpmd.for (%x) {iterations = 2 : ui32, unroll_factor = 2 : ui32} (%y: tensor<ui32>, %j: tensor<ui32>) {
      mpmd.return %y : tensor<ui32>
    } : tensor<ui32>
    mpmd.return %x : tensor<ui32>
  } : tensor<ui32>
  return %0 : tensor<ui32>
}
// error: nested loops cannot be unrolled

// ----- Errors (4)
func.func @main(%p: tensor<ui32>) -> tensor<ui32> attributes {topology = #topo} {
  %0 = mpmd.for (%p) {iterations = 4 : ui32} (%x: tensor<ui32>, %i: tensor<ui32>) {
    %1 = mpmd.for (%x) {iterations = 2 : ui32, unroll_factor = 2 : ui32} (%y: tensor<ui32>, %j: tensor<ui32>) {
      mpmd.return %y : tensor<ui32>
    } : tensor<ui32>
    %2 = mpmd.for (%x) {iterations = 2 : ui32, unroll_factor = 2 : ui32} (%y: tensor<ui32>, %j: tensor<ui32>) {
      mpmd.return %y : tensor<ui32>
    } : tensor<ui32>
    mpmd.return %x : tensor<ui32>
  } : tensor<ui32>
  return %0 : tensor<ui32>
}
// error: nested loops cannot be unrolled

// ----- Copies share bodies
// Each fragment says of which iteration it is; what is in it does not.
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.for (%p) {iterations = 3 : ui32, unroll_factor = 3 : ui32} (%x: !A, %i: tensor<ui32>) {
    %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%x) (%a: tensor<4xf32>) {
      %b = stablehlo.negate %a : tensor<4xf32>
      mpmd.return %b : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %1 : !A
  } : !A
  return %0 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %c = stablehlo.constant {unroll_counter = 0 : ui32} dense<0> : tensor<ui32>
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {unroll_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %c_0 = stablehlo.constant {unroll_counter = 1 : ui32} dense<1> : tensor<ui32>
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {unroll_counter = 1 : ui32} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %c_1 = stablehlo.constant {unroll_counter = 2 : ui32} dense<2> : tensor<ui32>
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%1) {unroll_counter = 2 : ui32} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  return %2 : !A
}
// bodies: 1
