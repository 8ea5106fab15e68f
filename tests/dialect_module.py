"""A valid module with every op of the dialect."""

BASE = """
!A = !mpmd.mesh_tensor<"a", tensor<8x4xf32>>
!AS = !mpmd.mesh_tensor<"a", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
!AH = !mpmd.mesh_tensor<"a", tensor<8x4xf32>, memory_kind="pinned_host">
!B = !mpmd.mesh_tensor<"b", tensor<8x4xf32>>
!T = tensor<8x4xf32>
#topo = #mpmd.topology<<"a" : <["x"=2, "y"=4]>>, <"b" : <["x"=2]>>>
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: !A {mhlo.memory_kind = "device"}, %b: !B, %t: !T) -> (!B, !A, !T)
    attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!A) -> !AS
  %1:2 = mpmd.fragment<mesh="a", origin=["f"(1)], stage=1> (%a, %0) {call_counter = 0 : ui32}
      (%x: !T, %y: !T) {
    %c = stablehlo.constant dense<1.0> : !T
    %d = stablehlo.add %x, %c : !T
    %e = mpmd.broadcast %d : !T
    mpmd.return %e, %y : !T, !T
  } : (!A, !AS) -> (!A, !AS)
  %2 = mpmd.transfer %1#0 : (!A) -> !B
  %3 = mpmd.call @callee(%2) {call_counter = 1 : ui32} : (!B) -> !B
  %4 = mpmd.fragment_call<mesh="a", origin=["g"]> @body(%1#0) : (!A) -> !A
  %5 = mpmd.assign {origin = "o"} %t : (!T) -> !A
  %6 = mpmd.unassign %5 : (!A) -> !T
  %7 = mpmd.for (%6) {iterations = 4 : ui32, unroll_factor = 2 : ui32} (%u: !T, %i: tensor<ui32>) {
    %n = mpmd.named_tensor %u name="n" : !T
    mpmd.return %n : !T
  } : !T
  %8 = mpmd.named_computation<"h"> (%7) (%v: !T) {
    %w = mpmd.reduce<add> %v, %v : (!T, !T) -> !T
    mpmd.return %w : !T
  } : (!T) -> !T
  %9 = mpmd.reduce<none> %8 : (!T) -> !T
  %10 = mpmd.broadcast %9 : !T
  %11 = mpmd.transfer %0 : (!AS) -> !AH
  %12 = func.call @plain(%10) : (!T) -> !T
  %13:2 = mpmd.for (%4, %11) {iterations = 2 : ui32} (%p: !A, %q: !AH, %i: tensor<ui32>) {
    %r = mpmd.fragment<mesh="a", origin=[]> (%p) (%x: !T) {
      mpmd.return %x : !T
    } : (!A) -> !A
    mpmd.return %r, %q : !A, !AH
  } : !A, !AH
  return %3, %13#0, %12 : !B, !A, !T
}
func.func private @callee(%a: !B) -> !B attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!B) -> !B
  return %0 : !B
}
func.func private @body(%a: !T) -> !T attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=4]>} {
  return %a : !T
}
func.func private @plain(%a: !T) -> !T {
  return %a : !T
}
"""
