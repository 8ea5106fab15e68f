// passes: mpmd-merge-inferred-fragments{merge-any-consumer=true}
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Any consumer skips user fragments
// With merge-any-consumer the first consumer that may be merged is taken.
func.func @any(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
    %n = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=[]> (%0) (%x: tensor<4xf32>) {
    %n = stablehlo.exponential %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  return %1, %2 : !A, !A
}
// =>
func.func @any(%arg0: !A) -> (!A, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.exponential %2 : tensor<4xf32>
    mpmd.return %2, %3 : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0#0) (%arg1: tensor<4xf32>) {
    %2 = stablehlo.abs %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %1, %0#1 : !A, !A
}
