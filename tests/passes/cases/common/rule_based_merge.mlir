// passes: mpmd-rule-based-merge
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Dead ops go even without rules
// The driver removes unused transfers; constants stay where they are.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!A) -> !B
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// CHECK-NOT: transfer

// ----- Cycle
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["f","g"],stage=1,call_counter=0,mesh_name="alpha"))}
// Merging around a fragment of another mesh cannot be ordered.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["h"]> (%1) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=["g"]> (%3) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %4 : !A
}
// error: Cycle detected
