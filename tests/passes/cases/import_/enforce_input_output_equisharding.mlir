// passes: builtin.module(func.func(mpmd-enforce-input-output-equisharding{constraints=0:0}))
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>
!H1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>, memory_kind="pinned_host">

// ----- Violated constraints
// passes: builtin.module(func.func(mpmd-enforce-input-output-equisharding{constraints=0:1,1:0}))
func.func @main(%a: !P0, %b: !P1) -> (!P0, !P2) attributes {topology = #topo} {
  %0 = mpmd.transfer %b : (!P1) -> !P2
  return %a, %0 : !P0, !P2
}
// =>
func.func @main(%a: !P0, %b: !P1) -> (!P1, !P0) attributes {topology = #topo} {
  %0 = mpmd.transfer %b : (!P1) -> !P2
  %1 = mpmd.transfer %0 : (!P2) -> !P0
  %2 = mpmd.transfer %a : (!P0) -> !P1
  return %2, %1 : !P1, !P0
}

// ----- No constraints
// passes: builtin.module(func.func(mpmd-enforce-input-output-equisharding))
func.func @main(%a: !P0, %b: !P1) -> (!P0, !P2) attributes {topology = #topo} {
  %0 = mpmd.transfer %b : (!P1) -> !P2
  return %a, %0 : !P0, !P2
}

// ----- Satisfied constraints
func.func @main(%a: !P0, %b: !P1) -> (!P0, !P2) attributes {topology = #topo} {
  %0 = mpmd.transfer %b : (!P1) -> !P2
  return %a, %0 : !P0, !P2
}

// ----- Types are compared as they were on entry
// passes: builtin.module(func.func(mpmd-enforce-input-output-equisharding{constraints=0:0,1:0}))
func.func @main(%a: !P0, %b: !P1) -> !P2 attributes {topology = #topo} {
  %0 = mpmd.transfer %b : (!P1) -> !P2
  return %0 : !P2
}
// =>
func.func @main(%a: !P0, %b: !P1) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.transfer %b : (!P1) -> !P2
  %1 = mpmd.transfer %0 : (!P2) -> !P0
  %2 = mpmd.transfer %1 : (!P0) -> !P1
  return %2 : !P1
}

// ----- Memory kind counts
// passes: builtin.module(func.func(mpmd-enforce-input-output-equisharding{constraints=1:0}))
func.func @main(%a: !P1, %b: !H1) -> !P1 attributes {topology = #topo} {
  return %a : !P1
}
// =>
func.func @main(%a: !P1, %b: !H1) -> !H1 attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!P1) -> !H1
  return %0 : !H1
}

// ----- Private functions are left alone
func.func private @f(%a: !P0) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!P0) -> !P1
  return %0 : !P1
}

// ----- Indices out of range
// passes: builtin.module(func.func(mpmd-enforce-input-output-equisharding{constraints=0:2}))
func.func @main(%a: !P0, %b: !P1) -> (!P0, !P2) attributes {topology = #topo} {
  %0 = mpmd.transfer %b : (!P1) -> !P2
  return %a, %0 : !P0, !P2
}
// error: 0:2 (input:output) is out of range
