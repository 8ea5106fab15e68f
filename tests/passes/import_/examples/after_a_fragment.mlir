// What follows a fragment is on its mesh; unused inputs are on the first mesh.
func.func @main(%a: !T, %b: !T, %c: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : !T
  %1 = mpmd.assign {origin = "s"} %0 : (!T) -> !P1
  %2 = mpmd.fragment<mesh="p1", origin=["s"]> (%1) (%x: !T) {
    %9 = stablehlo.sine %x : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  %3 = mpmd.unassign {origin = "s"} %2 : (!P1) -> !T
  %4 = stablehlo.multiply %3, %a : !T
  return %4, %b : !T, !T
}
// =>
func.func @main(%a: !P1, %b: !P1, %c: !P0) -> (!P1, !P1) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p1", origin=["s"]> (%a, %b) (%x: !T, %y: !T) {
    %8 = stablehlo.add %x, %y : !T
    %9 = stablehlo.sine %8 : !T
    mpmd.return %9 : !T
  } : (!P1, !P1) -> !P1
  %1 = mpmd.fragment<mesh="p1", origin=[]> (%0, %a) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%x: !T, %y: !T) {
    %9 = stablehlo.multiply %x, %y : !T
    mpmd.return %9 : !T
  } : (!P1, !P1) -> !P1
  return %1, %b : !P1, !P1
}
