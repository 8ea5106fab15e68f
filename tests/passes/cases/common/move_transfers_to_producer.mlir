// passes: mpmd-move-transfers-to-producer
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Chains stay behind their source
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> () () {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.transfer %0 : (!A) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.transfer %p : (!A) -> !B
  return %3 : !A
}
// =>
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %4 = mpmd.transfer %p : (!A) -> !B
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> () () {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  %2 = mpmd.transfer %0 : (!A) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %3 : !A
}
