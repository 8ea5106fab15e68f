// passes: mpmd-call-inline
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Unused calls and calls that return arguments
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0:2 = mpmd.call @id(%p) : (!A) -> (!A, !A)
  %1:2 = mpmd.call @id(%0#1) : (!A) -> (!A, !A)
  return %0#0 : !A
}
func.func private @id(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  return %p, %p : !A, !A
}
// =>
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  return %p : !A
}
func.func private @id(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  return %p, %p : !A, !A
}
