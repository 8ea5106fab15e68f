// passes: mpmd-canonicalize
!d = !mpmd.mesh_tensor<"left", tensor<6xf32>>
!h = !mpmd.mesh_tensor<"left", tensor<6xf32>, memory_kind="pinned_host">

// ----- Bypass and transfers
// One result per argument is bypassed; a round trip on one mesh disappears.
func.func @canon(%a: !d, %b: !d) -> (!d, !d, !d, !d)
    attributes {topology = #mpmd.topology<<"left" : <["x"=2]>>>} {
  %0 = mpmd.transfer %a : (!d) -> !h
  %1 = mpmd.transfer %0 : (!h) -> !d
  %2:3 = mpmd.fragment<mesh="left", origin=["f"]> (%a, %b) (%x: tensor<6xf32>, %y: tensor<6xf32>) {
    mpmd.return %x, %y, %x : tensor<6xf32>, tensor<6xf32>, tensor<6xf32>
  } : (!d, !d) -> (!d, !d, !d)
  return %1, %2#0, %2#1, %2#2 : !d, !d, !d, !d
}
// =>
func.func @canon(%arg0: !d, %arg1: !d) -> (!d, !d, !d, !d)
    attributes {topology = #mpmd.topology<<"left" : <["x"=2]>>>} {
  %0:3 = mpmd.fragment<mesh="left", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<6xf32>, %arg3: tensor<6xf32>) {
    mpmd.return %arg2, %arg3, %arg2 : tensor<6xf32>, tensor<6xf32>, tensor<6xf32>
  } : (!d, !d) -> (!d, !d, !d)
  return %arg0, %0#0, %arg1, %arg0 : !d, !d, !d, !d
}
