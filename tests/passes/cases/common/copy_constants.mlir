// passes: mpmd-copy-constants
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Constants are found through transfers but not through fragments
func.func @main(%p: !B) -> (!B, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["init"]> () () {
    %c = stablehlo.constant {note} dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3 = mpmd.transfer %2 : (!A) -> !B
  %4 = mpmd.fragment<mesh="beta", origin=["id"]> (%3) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!B) -> !B
  %5 = mpmd.fragment<mesh="beta", origin=["use"]> (%4) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!B) -> !B
  return %4, %5 : !B, !B
}
// =>
func.func @main(%p: !B) -> (!B, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["init"]> () () {
    %c = stablehlo.constant {note} dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3 = mpmd.transfer %2 : (!A) -> !B
  %4 = mpmd.fragment<mesh="beta", origin=["id"]> (%3) (%x: tensor<4xf32>) {
    %c = stablehlo.constant {note} dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : (!B) -> !B
  %5 = mpmd.fragment<mesh="beta", origin=["use"]> (%4) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!B) -> !B
  return %4, %5 : !B, !B
}

// ----- Constants of shardy stay
func.func @main(%p: !B) -> !B attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["init"]> () () {
    %c = sdy.constant dense<1.0> : tensor<4xf32>
    %d = sdy.constant dense<2.0> : tensor<4xf32>
    mpmd.return %c, %d : tensor<4xf32>, tensor<4xf32>
  } : () -> (!A, !A)
  %1 = mpmd.transfer %0#0 : (!A) -> !B
  %2 = mpmd.transfer %0#1 : (!A) -> !B
  %3 = mpmd.fragment<mesh="beta", origin=["use"]> (%1, %p, %2) (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    %t = stablehlo.multiply %s, %z : tensor<4xf32>
    mpmd.return %t : tensor<4xf32>
  } : (!B, !B, !B) -> !B
  return %3 : !B
}
// CHECK-COUNT-2: sdy.constant

// ----- The copy is made even when the argument is unused
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["init"]> () () {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["use"]> (%0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    mpmd.return %y : tensor<4xf32>
  } : (!A, !A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["init"]> () () {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<4xf32>
    mpmd.return %cst : tensor<4xf32>
  } : () -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["use"]> (%0, %arg0) (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<4xf32>
    mpmd.return %arg2 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %1 : !A
}
