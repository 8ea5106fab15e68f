// passes: mpmd-fragment-dce
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- What is unused goes through chains and loops
func.func @main(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["a"]> (%q) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3:2 = mpmd.for (%p, %2) {iterations = 2 : ui32} (%x: !A, %y: !A, %i: tensor<ui32>) {
    %4:2 = mpmd.fragment<mesh="alpha", origin=["b"]> (%x, %y) (%a: tensor<4xf32>, %b: tensor<4xf32>) {
      %c = stablehlo.add %a, %a : tensor<4xf32>
      mpmd.return %c, %b : tensor<4xf32>, tensor<4xf32>
    } : (!A, !A) -> (!A, !A)
    mpmd.return %4#0, %y : !A, !A
  } : !A, !A
  %5 = mpmd.fragment<mesh="alpha", origin=["c"]> (%3#1) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %3#0 : !A
}
// =>
func.func @main(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["a"]> (%q) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3:2 = mpmd.for (%p, %2) {iterations = 2 : ui32} (%x: !A, %y: !A, %i: tensor<ui32>) {
    %4 = mpmd.fragment<mesh="alpha", origin=["b"]> (%x) (%a: tensor<4xf32>) {
      %c = stablehlo.add %a, %a : tensor<4xf32>
      mpmd.return %c : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %4, %y : !A, !A
  } : !A, !A
  return %3#0 : !A
}

// ----- Fragments with effects stay without results and empty ones go
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["a"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.custom_call @e(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["b"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.custom_call @e(%x) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : (!A) -> !A
  mpmd.fragment<mesh="alpha", origin=["c"]> () () {
    mpmd.return
  } : () -> ()
  return %p : !A
}
// =>
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  mpmd.fragment<mesh="alpha", origin=["a"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.custom_call @e(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return
  } : (!A) -> ()
  return %p : !A
}

// ----- Plain functions are left alone
func.func @main(%p: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %p : tensor<f32>
  return %p : tensor<f32>
}
