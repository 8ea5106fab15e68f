// passes: mpmd-sink-negligible-ops-into-call-op
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Operand free fragments sink and bodies are cleaned
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> () () {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  %1 = mpmd.call @g(%p, %0) : (!A, !A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["h"]> (%1) (%x: tensor<4xf32>) {
    %d = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %2 : !A
}
func.func private @g(%a: !A, %b: !A) -> !A attributes {topology = #topo} {
  return %b : !A
}
// =>
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %1 = mpmd.call @g(%p) : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["h"]> (%1) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %2 : !A
}
func.func private @g(%a: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> () () {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  return %0 : !A
}
