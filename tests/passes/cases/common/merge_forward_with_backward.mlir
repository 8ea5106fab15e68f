// passes: mpmd-merge-forward-with-backward
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Something between prevents merging
// Another fragment on the mesh between the two, even one that is independent of both.
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1, %2 : !A, !A
}

// ----- Mixed fragment merges no further
// What was merged is neither forward nor backward.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%0) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["g"(1)]> (%1) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %2 : !A
}
// CHECK-COUNT-2: mpmd.fragment
// CHECK: origin=["f", "f"(1)]
// CHECK: origin=["g"(1)]
// CHECK-NOT: call_counter
