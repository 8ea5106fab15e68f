// passes: mpmd-absorb-inferred-fragments
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Producers and consumers are absorbed
// The root takes the inferred fragments on both sides; transfers make room.
func.func private @callee(%p: !A, %q: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %s = stablehlo.add %n, %c : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %0) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.multiply %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  %3 = mpmd.transfer %q : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=[]> (%2, %3) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.subtract %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  return %4, %1 : !A, !B
}
// =>
func.func private @callee(%arg0: !A, %arg1: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %0) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<4xf32>
    %3 = stablehlo.negate %arg2 : tensor<4xf32>
    %4 = stablehlo.add %3, %cst : tensor<4xf32>
    %5 = stablehlo.multiply %arg2, %4 : tensor<4xf32>
    %6 = stablehlo.subtract %5, %arg3 : tensor<4xf32>
    mpmd.return %4, %6 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  %2 = mpmd.transfer %1#0 : (!A) -> !B
  return %1#1, %2 : !A, !B
}

// ----- Unused transfers and constants are tidied
// Also without anything to absorb: dead ops go, constants are unified and come first.
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!A) -> !B
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %a = stablehlo.negate %x : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %d = stablehlo.add %a, %c : tensor<4xf32>
    %e = stablehlo.constant dense<2.0> : tensor<4xf32>
    %g = stablehlo.constant dense<1.0> : tensor<4xf32>
    %h = stablehlo.add %d, %g : tensor<4xf32>
    %i = stablehlo.add %h, %e : tensor<4xf32>
    mpmd.return %i : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// =>
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %e = stablehlo.constant dense<2.0> : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %a = stablehlo.negate %x : tensor<4xf32>
    %d = stablehlo.add %a, %c : tensor<4xf32>
    %h = stablehlo.add %d, %c : tensor<4xf32>
    %i = stablehlo.add %h, %e : tensor<4xf32>
    mpmd.return %i : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
