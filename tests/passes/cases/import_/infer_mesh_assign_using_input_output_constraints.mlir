// passes: mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:0}
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>

// ----- The use set of the output wins
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %a {use=<"p2", "p1">, src=<"p0">} : !T
  return %0 : !T
}
// =>
func.func @main(%arg0: !P1) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.unassign {origin = "io_constraint_in"} %arg0 : (!P1) -> !T
  %1 = stablehlo.abs %0 {src=<"p0">, use=<"p2", "p1">} : !T
  %2 = mpmd.assign {origin = "io_constraint_out"} %1 : (!T) -> !P1
  return %2 : !P1
}

// ----- Use set of the input and source set of the output
func.func @main(%a: !T {use=<"p2", "p1">}) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %a {use=<"p0">, src=<"p2">} : !T
  return %0 : !T
}
// =>
func.func @main(%arg0: !P2 {use=<"p2", "p1">}) -> !P2 attributes {topology = #topo} {
  %0 = mpmd.unassign {origin = "io_constraint_in"} %arg0 : (!P2) -> !T
  %1 = stablehlo.abs %0 {src=<"p2">, use=<"p0">} : !T
  %2 = mpmd.assign {origin = "io_constraint_out"} %1 : (!T) -> !P2
  return %2 : !P2
}

// ----- No common mesh
// Nothing happens; a transfer repairs it later.
func.func @main(%a: !T {use=<"p2">}) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<"p0">} : !T
  return %0 : !T
}
// =>
func.func @main(%arg0: !T {use=<"p2">}) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {src=<"p0">} : !T
  return %0 : !T
}

// ----- One end is placed
// passes: mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:0,1:1,2:2,3:3}
func.func @main(%a: !P0,
    %b: !T,
    %c: !P1,
    %d: !P1) -> (!T, !P1, !T, !P1) attributes {topology = #topo} {
  %0 = mpmd.unassign %a : (!P0) -> !T
  %1 = stablehlo.abs %0 {src=<"p0", "p1">} : !T
  %2 = mpmd.assign %b : (!T) -> !P1
  %3 = stablehlo.abs %0 {src=<"p0">} : !T
  return %1, %2, %3, %d : !T, !P1, !T, !P1
}
// =>
func.func @main(%arg0: !P0,
    %arg1: !P1,
    %arg2: !P1,
    %arg3: !P1) -> (!P0, !P1, !T, !P1) attributes {topology = #topo} {
  %0 = mpmd.unassign {origin = "io_constraint_in"} %arg1 : (!P1) -> !T
  %1 = mpmd.unassign %arg0 : (!P0) -> !T
  %2 = stablehlo.abs %1 {src=<"p0", "p1">} : !T
  %3 = mpmd.assign %0 : (!T) -> !P1
  %4 = stablehlo.abs %1 {src=<"p0">} : !T
  %5 = mpmd.assign {origin = "io_constraint_out"} %2 : (!T) -> !P0
  return %5, %3, %4, %arg3 : !P0, !P1, !T, !P1
}

// ----- Result of a call
// Its sources are those of the value that the callee returns.
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.call @f(%a) : (!T) -> !T
  return %0 : !T
}
func.func private @f(%a: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<"p2", "p1">} : !T
  return %0 : !T
}
// =>
func.func @main(%arg0: !P1) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.unassign {origin = "io_constraint_in"} %arg0 : (!P1) -> !T
  %1 = mpmd.call @f(%0) : (!T) -> !T
  %2 = mpmd.assign {origin = "io_constraint_out"} %1 : (!T) -> !P1
  return %2 : !P1
}
func.func private @f(%arg0: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {src=<"p2", "p1">} : !T
  return %0 : !T
}

// ----- Both ends are placed apart
func.func @main(%a: !P0, %b: !P1) -> !P1 attributes {topology = #topo} {
  return %b : !P1
}
// error: input 0 of @main is on mesh p0 and output 0 on p1

// ----- A constraint names an input that is not there
// passes: mpmd-infer-mesh-assign-using-input-output-constraints{constraints=1:0}
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  return %a : !T
}
// error: the constraint 1:0 names input 1, but @main has 1 inputs (they are counted from 0)

// ----- A constraint names an output that is not there
// passes: mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:1}
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  return %a : !T
}
// error: the constraint 0:1 names output 1, but @main has 1 outputs (they are counted from 0)
