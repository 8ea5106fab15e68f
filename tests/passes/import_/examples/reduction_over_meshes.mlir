// A reduction of values on two meshes is reduced per mesh, then where it is needed.
func.func @main(%a: !P0, %b: !P1) -> !T attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["s0"]> (%a) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P0) -> !P0
  %g = mpmd.fragment<mesh="p1", origin=["s1"]> (%b) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  %u = mpmd.unassign {origin = "s0"} %f : (!P0) -> !T
  %v = mpmd.unassign {origin = "s1"} %g : (!P1) -> !T
  %0 = stablehlo.maximum %u, %v : !T
  %1 = stablehlo.maximum %v, %0 : !T
  %2 = mpmd.assign {origin = "s2"} %1 : (!T) -> !P2
  %3 = mpmd.fragment<mesh="p2", origin=["s2"]> (%2) (%x: !T) {
    %9 = stablehlo.sine %x : !T
    mpmd.return %9 : !T
  } : (!P2) -> !P2
  %4 = mpmd.unassign {origin = "s2"} %3 : (!P2) -> !T
  return %4 : !T
}
// =>
func.func @main(%a: !P0, %b: !P1) -> !P2 attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["s0"]> (%a) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P0) -> !P0
  %g = mpmd.fragment<mesh="p1", origin=["s1"]> (%b) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  %0 = mpmd.fragment<mesh="p1", origin=[]> (%g, %g) {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%x: !T, %y: !T) {
    %9 = stablehlo.maximum %x, %y : !T
    mpmd.return %9 : !T
  } : (!P1, !P1) -> !P1
  %1 = mpmd.transfer %f : (!P0) -> !P2
  %2 = mpmd.transfer %0 : (!P1) -> !P2
  %3 = mpmd.fragment<mesh="p2", origin=[]> (%1, %2) {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%x: !T, %y: !T) {
    %9 = stablehlo.maximum %x, %y : !T
    mpmd.return %9 : !T
  } : (!P2, !P2) -> !P2
  %4 = mpmd.fragment<mesh="p2", origin=["s2"]> (%3) (%x: !T) {
    %9 = stablehlo.sine %x : !T
    mpmd.return %9 : !T
  } : (!P2) -> !P2
  return %4 : !P2
}
