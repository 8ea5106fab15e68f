// passes: mpmd-uniquify-function-inputs-outputs
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- A function that needs nothing is unchanged
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !A
  return %0 : !A
}

// ----- One fragment a mesh in order of appearance with results grouped by value
func.func private @f(%p: !A, %q: !A, %r: !B) -> (!B, !A, !A, !B, !A) attributes {topology = #topo} {
  return %r, %q, %p, %r, %q : !B, !A, !A, !B, !A
}
// =>
func.func private @f(%p: !A, %q: !A, %r: !B) -> (!B, !A, !A, !B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="beta", origin=[]> (%r) {mpmd.inferred_by = ["uniquify"]} (%x: tensor<4xf32>) {
    mpmd.return %x, %x : tensor<4xf32>, tensor<4xf32>
  } : (!B) -> (!B, !B)
  %1:3 = mpmd.fragment<mesh="alpha", origin=[]> (%q, %p) {mpmd.inferred_by = ["uniquify"]}
      (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    mpmd.return %x, %x, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  return %0#0, %1#0, %1#2, %0#1, %1#1 : !B, !A, !A, !B, !A
}

// ----- Local tensors are an error
func.func @main(%p: tensor<f32>, %q: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {topology = #topo} {
  return %p, %q : tensor<f32>, tensor<f32>
}
// error: result 0 of @main
// error: result 1
