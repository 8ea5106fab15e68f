// passes: builtin.module(mpmd-introduce-transfers)
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>
!H1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>, memory_kind="pinned_host">

// ----- Assigns sums and callees
func.func @main(%a: !P0, %b: !P1) -> (!P2, !P1, !P0) attributes {topology = #topo} {
  %ua = mpmd.unassign %a : (!P0) -> !T
  %ub = mpmd.unassign %b : (!P1) -> !T
  %0 = stablehlo.add %ua, %ub : !T
  %1 = mpmd.assign %0 : (!T) -> !P2
  %2 = mpmd.assign %ua : (!T) -> !P1
  %3 = mpmd.call @f(%ua) : (!T) -> !P0
  return %1, %2, %3 : !P2, !P1, !P0
}
func.func private @f(%x: !T) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.assign %x : (!T) -> !P0
  %1 = mpmd.assign %x : (!T) -> !P1
  %2 = mpmd.unassign %1 : (!P1) -> !T
  %3 = mpmd.assign %2 : (!T) -> !P0
  return %3 : !P0
}
// =>
func.func @main(%a: !P0, %b: !P1) -> (!P2, !P1, !P0) attributes {topology = #topo} {
  %ua = mpmd.unassign %a : (!P0) -> !T
  %0 = mpmd.transfer %a : (!P0) -> !P2
  %1 = mpmd.transfer %b : (!P1) -> !P2
  %2 = mpmd.fragment<mesh="p2", origin=[]> (%0, %1) {mpmd.inferred_by = ["introduce_transfers"]}
      (%x: !T, %y: !T) {
    %9 = stablehlo.add %x, %y : !T
    mpmd.return %9 : !T
  } : (!P2, !P2) -> !P2
  %3 = mpmd.transfer %a : (!P0) -> !P1
  %4 = mpmd.call @f(%ua) : (!T) -> !P0
  return %2, %3, %4 : !P2, !P1, !P0
}
func.func private @f(%x: !T) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.assign %x : (!T) -> !P0
  %1 = mpmd.transfer %0 : (!P0) -> !P1
  %2 = mpmd.transfer %1 : (!P1) -> !P0
  return %2 : !P0
}

// ----- Several meshes are chained in mesh order
func.func @main(%a: !P0) -> (!P2, !P0, !P1) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P0) -> !T
  %0 = mpmd.assign %u : (!T) -> !P2
  %1 = mpmd.assign %u : (!T) -> !P0
  %2 = mpmd.assign %u : (!T) -> !P1
  return %0, %1, %2 : !P2, !P0, !P1
}
// =>
func.func @main(%a: !P0) -> (!P2, !P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!P0) -> !P1
  %1 = mpmd.transfer %0 : (!P1) -> !P2
  return %1, %a, %0 : !P2, !P0, !P1
}

// ----- Unassigns of one value share a transfer
func.func @main(%a: !P0) -> (!P1, !P1, !P1) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P0) -> !T
  %v = mpmd.unassign %a : (!P0) -> !T
  %w = mpmd.unassign %a : (!P0) -> !T
  %0 = mpmd.assign %u : (!T) -> !P1
  %1 = mpmd.assign %v : (!T) -> !P1
  %2 = mpmd.assign %w : (!T) -> !P1
  return %0, %1, %2 : !P1, !P1, !P1
}
// =>
func.func @main(%a: !P0) -> (!P1, !P1, !P1) attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!P0) -> !P1
  return %0, %0, %0 : !P1, !P1, !P1
}

// ----- A later transfer is moved up
func.func @main(%a: !P0) -> (!P1, !P1) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P0) -> !T
  %0 = mpmd.assign %u : (!T) -> !P1
  %f = mpmd.fragment<mesh="p1", origin=["f"]> (%0) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  %1 = mpmd.transfer %a : (!P0) -> !P1
  return %f, %1 : !P1, !P1
}
// =>
func.func @main(%a: !P0) -> (!P1, !P1) attributes {topology = #topo} {
  %1 = mpmd.transfer %a : (!P0) -> !P1
  %f = mpmd.fragment<mesh="p1", origin=["f"]> (%1) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  return %f, %1 : !P1, !P1
}

// ----- Memory kinds
func.func @main(%a: !P1, %b: !P0) -> (!H1, !H1) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P1) -> !T
  %v = mpmd.unassign %b : (!P0) -> !T
  %0 = mpmd.assign %u : (!T) -> !H1
  %1 = mpmd.assign %v : (!T) -> !H1
  return %0, %1 : !H1, !H1
}
// =>
func.func @main(%a: !P1, %b: !P0) -> (!H1, !H1) attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!P1) -> !H1
  %1 = mpmd.transfer %b : (!P0) -> !H1
  return %0, %1 : !H1, !H1
}

// ----- A tree of sums gives one fragment per sum
func.func @main(%a: !P0, %b: !P1) -> !P0 attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P0) -> !T
  %v = mpmd.unassign %b : (!P1) -> !T
  %0 = stablehlo.add %u, %v : !T
  %1 = stablehlo.add %0, %u : !T
  %2 = mpmd.assign %1 : (!T) -> !P0
  return %2 : !P0
}
// =>
func.func @main(%a: !P0, %b: !P1) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.transfer %b : (!P1) -> !P0
  %1 = mpmd.fragment<mesh="p0", origin=[]> (%a, %0) {mpmd.inferred_by = ["introduce_transfers"]}
      (%x: !T, %y: !T) {
    %9 = stablehlo.add %x, %y : !T
    mpmd.return %9 : !T
  } : (!P0, !P0) -> !P0
  %2 = mpmd.fragment<mesh="p0", origin=[]> (%1, %a) {mpmd.inferred_by = ["introduce_transfers"]}
      (%x: !T, %y: !T) {
    %9 = stablehlo.add %x, %y : !T
    mpmd.return %9 : !T
  } : (!P0, !P0) -> !P0
  return %2 : !P0
}

// ----- Chained calls agree through the results of the callee
func.func @main(%a: !P1, %b: !P1) -> (!T, !T) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P1) -> !T
  %v = mpmd.unassign %b : (!P1) -> !T
  %0:2 = mpmd.call @f(%u, %v) : (!T, !T) -> (!T, !T)
  %1:2 = mpmd.call @f(%0#1, %0#0) : (!T, !T) -> (!T, !T)
  return %1#0, %1#1 : !T, !T
}
func.func private @f(%x: !T, %y: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = mpmd.assign %x : (!T) -> !P1
  %1 = mpmd.unassign %0 : (!P1) -> !T
  %2 = mpmd.assign %y : (!T) -> !P1
  %3 = mpmd.unassign %2 : (!P1) -> !T
  return %1, %3 : !T, !T
}
// =>
func.func @main(%a: !P1, %b: !P1) -> (!T, !T) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P1) -> !T
  %v = mpmd.unassign %b : (!P1) -> !T
  %0:2 = mpmd.call @f(%u, %v) : (!T, !T) -> (!T, !T)
  %1:2 = mpmd.call @f(%0#1, %0#0) : (!T, !T) -> (!T, !T)
  return %1#0, %1#1 : !T, !T
}
func.func private @f(%x: !T, %y: !T) -> (!T, !T) attributes {topology = #topo} {
  %2 = mpmd.assign %y : (!T) -> !P1
  %0 = mpmd.assign %x : (!T) -> !P1
  %1 = mpmd.unassign %0 : (!P1) -> !T
  %3 = mpmd.unassign %2 : (!P1) -> !T
  return %1, %3 : !T, !T
}

// ----- Callers that disagree leave the callee alone (1)
func.func @main(%a: !P0, %b: !P1, %c: !T) -> (!T, !T) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P0) -> !T
  %v = mpmd.unassign %b : (!P1) -> !T
  %0:2 = mpmd.call @f(%u, %u) : (!T, !T) -> (!T, !T)
  %1:2 = mpmd.call @f(%v, %v) : (!T, !T) -> (!T, !T)
  return %0#0, %1#1 : !T, !T
}
func.func private @f(%x: !T, %y: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = mpmd.assign %x : (!T) -> !P1
  %1 = mpmd.unassign %0 : (!P1) -> !T
  %2 = mpmd.assign %y : (!T) -> !P1
  %3 = mpmd.unassign %2 : (!P1) -> !T
  return %1, %3 : !T, !T
}

// ----- Callers that disagree leave the callee alone (2)
func.func @main(%a: !P0, %b: !P1, %c: !T) -> (!T, !T) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P0) -> !T
  %0:2 = mpmd.call @f(%u, %u) : (!T, !T) -> (!T, !T)
  %1:2 = mpmd.call @f(%c, %c) : (!T, !T) -> (!T, !T)
  return %0#0, %1#1 : !T, !T
}
func.func private @f(%x: !T, %y: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = mpmd.assign %x : (!T) -> !P1
  %1 = mpmd.unassign %0 : (!P1) -> !T
  %2 = mpmd.assign %y : (!T) -> !P1
  %3 = mpmd.unassign %2 : (!P1) -> !T
  return %1, %3 : !T, !T
}

// ----- Callers that disagree leave the callee alone (3)
func.func @main(%a: !P0, %b: !P1, %c: !T) -> (!T, !T) attributes {topology = #topo} {
  %u = mpmd.unassign %a : (!P0) -> !T
  %0:2 = mpmd.call @f(%u, %u) : (!T, !T) -> (!T, !T)
  return %c, %c : !T, !T
}
func.func private @f(%x: !T, %y: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = mpmd.assign %x : (!T) -> !P1
  %1 = mpmd.unassign %0 : (!P1) -> !T
  %2 = mpmd.assign %y : (!T) -> !P1
  %3 = mpmd.unassign %2 : (!P1) -> !T
  return %1, %3 : !T, !T
}
