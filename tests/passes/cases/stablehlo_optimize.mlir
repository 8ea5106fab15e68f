// passes: stablehlo-target-independent-optimization
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- A chosen constant is a new one
// `x % 3` chooses its divisor between constants; the one that is chosen goes before those that were first.
func.func @main(%x: tensor<i32>) -> tensor<i32> {
  %two = stablehlo.constant dense<2> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %no = stablehlo.constant dense<false> : tensor<i1>
  %0 = stablehlo.negate %x : tensor<i32>
  %1 = stablehlo.select %no, %one, %three : tensor<i1>, tensor<i32>
  %2 = stablehlo.remainder %0, %1 : tensor<i32>
  %3 = stablehlo.multiply %2, %two : tensor<i32>
  return %3 : tensor<i32>
}
// =>
func.func @main(%x: tensor<i32>) -> tensor<i32> {
  %three = stablehlo.constant dense<3> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %0 = stablehlo.negate %x : tensor<i32>
  %2 = stablehlo.remainder %0, %three : tensor<i32>
  %3 = stablehlo.multiply %2, %two : tensor<i32>
  return %3 : tensor<i32>
}

// ----- Bodies in which only constants are equal
// They are unified where nothing else in the body changes, also in a function of fragments alone.
func.func @main(%a: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %1 = stablehlo.add %x, %c : tensor<4xf32>
    %d = stablehlo.constant dense<2.0> : tensor<4xf32>
    %2 = stablehlo.multiply %1, %d : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// =>
func.func @main(%a: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %1 = stablehlo.add %x, %c : tensor<4xf32>
    %2 = stablehlo.multiply %1, %c : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Operands without elements
// They are constants also where the result has elements; so nothing depends on the argument.

func.func @main(%e: tensor<0x3xf32>) -> tensor<3x3xf32> {
  %r = stablehlo.dot_general %e, %e, contracting_dims = [0] x [0]
    : (tensor<0x3xf32>, tensor<0x3xf32>) -> tensor<3x3xf32>
  return %r : tensor<3x3xf32>
}
// =>
func.func @main(%e: tensor<0x3xf32>) -> tensor<3x3xf32> {
  %c = stablehlo.constant dense<> : tensor<0x3xf32>
  %r = stablehlo.dot_general %c, %c, contracting_dims = [0] x [0]
    : (tensor<0x3xf32>, tensor<0x3xf32>) -> tensor<3x3xf32>
  return %r : tensor<3x3xf32>
}

// ----- Bodies of fragments
func.func @main(%a: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.add %b, %x : tensor<4xf32>
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %2 = stablehlo.multiply %c, %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0, %0 : !A, !A
}
// =>
func.func @main(%a: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %2 = stablehlo.multiply %x, %c : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0, %0 : !A, !A
}

// ----- Sums of floats are not folded without folding of floats
// passes: stablehlo-target-independent-optimization{optimize-float=false}
func.func @main() -> tensor<2xf32> {
  %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %y = stablehlo.constant dense<3.0> : tensor<2xf32>
  %i = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %p = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %r = stablehlo.add %x, %x : tensor<2xf32>
  return %r : tensor<2xf32>
}
// =>
func.func @main() -> tensor<2xf32> {
  %cst = stablehlo.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
  %0 = stablehlo.add %cst, %cst : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// ----- Slices of all are folded without folding of floats
// passes: stablehlo-target-independent-optimization{optimize-float=false}
func.func @main() -> tensor<2xf32> {
  %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %y = stablehlo.constant dense<3.0> : tensor<2xf32>
  %i = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %p = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %r = stablehlo.slice %x [0:2] : (tensor<2xf32>) -> tensor<2xf32>
  return %r : tensor<2xf32>
}
// =>
func.func @main() -> tensor<2xf32> {
  %cst = stablehlo.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
  return %cst : tensor<2xf32>
}

// ----- Exponentials are folded without folding of floats
// passes: stablehlo-target-independent-optimization{optimize-float=false}
func.func @main() -> tensor<2xf32> {
  %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %y = stablehlo.constant dense<3.0> : tensor<2xf32>
  %i = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %p = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %r = stablehlo.exponential %x : tensor<2xf32>
  return %r : tensor<2xf32>
}
// CHECK-NOT: exponential

// ----- Sums of integers are folded without folding of floats
// passes: stablehlo-target-independent-optimization{optimize-float=false}
func.func @main() -> tensor<2xi32> {
  %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %y = stablehlo.constant dense<3.0> : tensor<2xf32>
  %i = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %p = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %r = stablehlo.add %i, %i : tensor<2xi32>
  return %r : tensor<2xi32>
}
// =>
func.func @main() -> tensor<2xi32> {
  %c = stablehlo.constant dense<[2, 4]> : tensor<2xi32>
  return %c : tensor<2xi32>
}

// ----- Integers of floats are not folded without folding of floats
// passes: stablehlo-target-independent-optimization{optimize-float=false}
func.func @main() -> tensor<2xi32> {
  %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %y = stablehlo.constant dense<3.0> : tensor<2xf32>
  %i = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %p = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %r = stablehlo.convert %x : (tensor<2xf32>) -> tensor<2xi32>
  return %r : tensor<2xi32>
}
// =>
func.func @main() -> tensor<2xi32> {
  %cst = stablehlo.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
  %0 = stablehlo.convert %cst : (tensor<2xf32>) -> tensor<2xi32>
  return %0 : tensor<2xi32>
}

// ----- Floats that are chosen are folded without folding of floats
// passes: stablehlo-target-independent-optimization{optimize-float=false}
func.func @main() -> tensor<2xf32> {
  %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %y = stablehlo.constant dense<3.0> : tensor<2xf32>
  %i = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %p = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %r = stablehlo.select %p, %x, %y : tensor<2xi1>, tensor<2xf32>
  return %r : tensor<2xf32>
}
// =>
func.func @main() -> tensor<2xf32> {
  %cst = stablehlo.constant dense<[1.000000e+00, 3.000000e+00]> : tensor<2xf32>
  return %cst : tensor<2xf32>
}

// ----- A fragment that nothing uses goes
// passes: stablehlo-target-independent-optimization
func.func @main(%a: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.add %b, %x : tensor<4xf32>
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %2 = stablehlo.multiply %c, %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  %unused = mpmd.fragment<mesh="alpha", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.add %b, %x : tensor<4xf32>
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %2 = stablehlo.multiply %c, %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<4xf32>
    %1 = stablehlo.multiply %arg1, %cst : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
