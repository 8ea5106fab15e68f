// A callee whose results are needed on two meshes returns them twice.
func.func public @main(%a: !T, %b: !T) -> (!P0, !P1, !T) attributes {topology = #topo} {
  %0 = mpmd.call @g(%a) {call_counter = 0 : ui32} : (!T) -> !T
  %1 = mpmd.assign %0 : (!T) -> !P0
  %2 = mpmd.call @g(%b) {call_counter = 1 : ui32} : (!T) -> !T
  %3 = mpmd.assign %2 : (!T) -> !P1
  %4 = mpmd.broadcast %2 : !T
  return %1, %3, %4 : !P0, !P1, !T
}
func.func private @g(%x: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.tanh %x : !T
  return %0 : !T
}
// =>
func.func public @main(%a: !P0, %b: !P0) -> (!P0, !P1, !P0) attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!P0) -> !P1
  %1:2 = mpmd.call @g(%a, %0) {call_counter = 0 : ui32} : (!P0, !P1) -> (!P1, !P0)
  %2 = mpmd.transfer %b : (!P0) -> !P1
  %3:2 = mpmd.call @g(%b, %2) {call_counter = 1 : ui32} : (!P0, !P1) -> (!P1, !P0)
  return %1#1, %3#0, %3#1 : !P0, !P1, !P0
}
func.func private @g(%x: !P0 {mpmd.copies = array<i64: 1>}, %y: !P1) -> (!P1 {mpmd.copies = array<i64: 1>}, !P0) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=[]> (%x) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%z: !T) {
    %9 = stablehlo.tanh %z : !T
    mpmd.return %9 : !T
  } : (!P0) -> !P0
  %1 = mpmd.fragment<mesh="p1", origin=[]> (%y) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%z: !T) {
    %9 = stablehlo.tanh %z : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  return %1, %0 : !P1, !P0
}
