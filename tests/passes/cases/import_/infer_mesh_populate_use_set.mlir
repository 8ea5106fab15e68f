// passes: mpmd-infer-mesh-populate-use-set
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>

// ----- Sets flow back from assigns
// Newer uses come first, so `p1` is in front of `p0` and "t" in front of "s".
func.func @main(%a: !T, %b: !T, %c: !T) -> (!P0, !P1, !P0) attributes {topology = #topo} {
  %k = stablehlo.constant dense<1.0> : !T
  %0 = stablehlo.add %a, %k : !T
  %1 = stablehlo.multiply %0, %b : !T
  %2 = mpmd.assign {origin = "s"} %1 : (!T) -> !P0
  %3 = mpmd.assign %0 : (!T) -> !P1
  %4 = mpmd.assign {origin = "t"} %1 : (!T) -> !P0
  return %2, %3, %4 : !P0, !P1, !P0
}
// =>
func.func @main(%arg0: !T {use=<"p1", "p0"["t", "s"]>},
    %arg1: !T {use=<"p0"["t", "s"]>},
    %arg2: !T) -> (!P0, !P1, !P0) attributes {topology = #topo} {
  %cst = stablehlo.constant {use=<"p1", "p0"["t", "s"]>} dense<1.0> : !T
  %0 = stablehlo.add %arg0, %cst {use=<"p1", "p0"["t", "s"]>} : !T
  %1 = stablehlo.multiply %0, %arg1 {use=<"p0"["t", "s"]>} : !T
  %2 = mpmd.assign {use=<"p0"["s"]>, origin = "s"} %1 : (!T) -> !P0
  %3 = mpmd.assign {use=<"p1">} %0 : (!T) -> !P1
  %4 = mpmd.assign {use=<"p0"["t"]>, origin = "t"} %1 : (!T) -> !P0
  return %2, %3, %4 : !P0, !P1, !P0
}

// ----- Casts transfers and fragments
// A transfer passes nothing on; an unassign has a set, its operand does not get it.
func.func @main(%a: !P0, %b: !T) -> (!P1, !P2) attributes {topology = #topo} {
  %0 = mpmd.unassign {origin = "u"} %a : (!P0) -> !T
  %1 = stablehlo.add %0, %b : !T
  %2 = mpmd.assign {origin = "s"} %1 : (!T) -> !P1
  %3 = mpmd.transfer %2 : (!P1) -> !P2
  %4 = mpmd.unassign %3 : (!P2) -> !T
  %5 = mpmd.assign %4 : (!T) -> !P2
  %6 = mpmd.fragment<mesh="p2", origin=["s"]> (%5) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P2) -> !P2
  return %2, %6 : !P1, !P2
}
// =>
func.func @main(%arg0: !P0,
    %arg1: !T {use=<"p1"["s"]>}) -> (!P1, !P2) attributes {topology = #topo} {
  %0 = mpmd.unassign {use=<"p1"["s"]>, origin = "u"} %arg0 : (!P0) -> !T
  %1 = stablehlo.add %0, %arg1 {use=<"p1"["s"]>} : !T
  %2 = mpmd.assign {use=<"p1"["s"]>, origin = "s"} %1 : (!T) -> !P1
  %3 = mpmd.transfer %2 : (!P1) -> !P2
  %4 = mpmd.unassign {use=<"p2">} %3 : (!P2) -> !T
  %5 = mpmd.assign {use=<"p2">} %4 : (!T) -> !P2
  %6 = mpmd.fragment<mesh="p2", origin=["s"]> (%5) (%arg2: !T) {
    %7 = stablehlo.abs %arg2 : !T
    mpmd.return %7 : !T
  } : (!P2) -> !P2
  return %2, %6 : !P1, !P2
}

// ----- Regions and free variables
// What a region uses is needed where its op is needed.
func.func @main(%a: !T, %b: !T, %i: tensor<i32>) -> !P1 attributes {topology = #topo} {
  %0 = stablehlo.abs %b : !T
  %1 = "stablehlo.case"(%i) ({
    stablehlo.return %a : !T
  }, {
    %5 = stablehlo.add %a, %0 : !T
    stablehlo.return %5 : !T
  }) : (tensor<i32>) -> !T
  %2 = mpmd.assign {origin = "s"} %1 : (!T) -> !P1
  return %2 : !P1
}
// =>
func.func @main(%arg0: !T {use=<"p1"["s"]>},
    %arg1: !T {use=<"p1"["s"]>},
    %arg2: tensor<i32> {use=<"p1"["s"]>}) -> !P1 attributes {topology = #topo} {
  %0 = stablehlo.abs %arg1 {use=<"p1"["s"]>} : !T
  %1 = "stablehlo.case"(%arg2) ({
    stablehlo.return %arg0 : !T
  }, {
    %3 = stablehlo.add %arg0, %0 : !T
    stablehlo.return %3 : !T
  }) {use=<"p1"["s"]>} : (tensor<i32>) -> !T
  %2 = mpmd.assign {use=<"p1"["s"]>, origin = "s"} %1 : (!T) -> !P1
  return %2 : !P1
}

// ----- Broadcast and reduce
// They have a set, but ask for nothing themselves, except a broadcast of a broadcast.
func.func @main(%a: !T, %b: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.broadcast %a : !T
  %1 = mpmd.broadcast %0 : !T
  %2 = mpmd.reduce<add> %1, %b : (!T, !T) -> !T
  %3 = mpmd.assign %1 : (!T) -> !P0
  %4 = mpmd.assign %2 : (!T) -> !P1
  return %3, %4 : !P0, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.broadcast {use=<"p0", "p1">} %arg0 : !T
  %1 = mpmd.broadcast {use=<"p0", "p1">} %0 : !T
  %2 = mpmd.reduce<add> {use=<"p1">} %1, %arg1 : (!T, !T) -> !T
  %3 = mpmd.assign {use=<"p0">} %1 : (!T) -> !P0
  %4 = mpmd.assign {use=<"p1">} %2 : (!T) -> !P1
  return %3, %4 : !P0, !P1
}

// ----- Calls
// Uses in the callee reach the operands, uses of the results the callee.
func.func @main(%a: !T, %b: !T) -> (!P1, !P2) attributes {topology = #topo} {
  %0 = stablehlo.abs %a : !T
  %1:2 = mpmd.call @f(%0, %b) : (!T, !T) -> (!T, !T)
  %2:2 = mpmd.call @f(%b, %0) : (!T, !T) -> (!T, !T)
  %3 = mpmd.assign {origin = "s"} %1#0 : (!T) -> !P1
  %4 = mpmd.assign {origin = "t"} %2#0 : (!T) -> !P2
  return %3, %4 : !P1, !P2
}
func.func private @f(%x: !T, %y: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.add %x, %y : !T
  %1 = mpmd.assign {origin = "u"} %y : (!T) -> !P0
  return %0, %x : !T, !T
}
// =>
func.func @main(%arg0: !T {use=<"p0"["u"], "p2"["t"], "p1"["s"]>},
    %arg1: !T {use=<"p2"["t"], "p1"["s"], "p0"["u"]>})
    -> (!P1, !P2) attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {use=<"p0"["u"], "p2"["t"], "p1"["s"]>} : !T
  %1:2 = mpmd.call @f(%0, %arg1) : (!T, !T) -> (!T, !T)
  %2:2 = mpmd.call @f(%arg1, %0) : (!T, !T) -> (!T, !T)
  %3 = mpmd.assign {use=<"p1"["s"]>, origin = "s"} %1#0 : (!T) -> !P1
  %4 = mpmd.assign {use=<"p2"["t"]>, origin = "t"} %2#0 : (!T) -> !P2
  return %3, %4 : !P1, !P2
}
func.func private @f(%arg0: !T {use=<"p2"["t"], "p1"["s"]>},
    %arg1: !T {use=<"p0"["u"], "p2"["t"], "p1"["s"]>})
    -> (!T {use=<"p2"["t"], "p1"["s"]>},
    !T) attributes {topology = #topo} {
  %0 = stablehlo.add %arg0, %arg1 {use=<"p2"["t"], "p1"["s"]>} : !T
  %1 = mpmd.assign {use=<"p0"["u"]>, origin = "u"} %arg1 : (!T) -> !P0
  return %0, %arg0 : !T, !T
}

// ----- Chain of calls
// A callee that rotates its arguments, called twice in a chain, needs everything everywhere.
func.func @main(%a: !T, %b: !T, %c: !T) -> (!P0, !P1, !P2) attributes {topology = #topo} {
  %0:3 = mpmd.call @f(%a, %b, %c) : (!T, !T, !T) -> (!T, !T, !T)
  %1:3 = mpmd.call @f(%0#0, %0#1, %0#2) : (!T, !T, !T) -> (!T, !T, !T)
  %2 = mpmd.assign %1#0 : (!T) -> !P0
  %3 = mpmd.assign %1#1 : (!T) -> !P1
  %4 = mpmd.assign %1#2 : (!T) -> !P2
  return %2, %3, %4 : !P0, !P1, !P2
}
func.func private @f(%x: !T, %y: !T, %z: !T) -> (!T, !T, !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %x : !T
  return %y, %z, %0 : !T, !T, !T
}
// =>
func.func @main(%arg0: !T {use=<"p2", "p1", "p0">},
    %arg1: !T {use=<"p0", "p2", "p1">},
    %arg2: !T {use=<"p1", "p0", "p2">}) -> (!P0, !P1, !P2) attributes {topology = #topo} {
  %0:3 = mpmd.call @f(%arg0, %arg1, %arg2) : (!T, !T, !T) -> (!T, !T, !T)
  %1:3 = mpmd.call @f(%0#0, %0#1, %0#2) : (!T, !T, !T) -> (!T, !T, !T)
  %2 = mpmd.assign {use=<"p0">} %1#0 : (!T) -> !P0
  %3 = mpmd.assign {use=<"p1">} %1#1 : (!T) -> !P1
  %4 = mpmd.assign {use=<"p2">} %1#2 : (!T) -> !P2
  return %2, %3, %4 : !P0, !P1, !P2
}
func.func private @f(%arg0: !T {use=<"p2", "p1", "p0">},
    %arg1: !T {use=<"p0", "p2", "p1">},
    %arg2: !T {use=<"p1", "p0", "p2">})
    -> (!T {use=<"p0", "p2", "p1">},
    !T {use=<"p1", "p0", "p2">},
    !T {use=<"p2", "p1", "p0">}) attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {use=<"p2", "p1", "p0">} : !T
  return %arg1, %arg2, %0 : !T, !T, !T
}

// ----- Loop with a call
func.func @main(%a: !T, %b: !T) -> !P0 attributes {topology = #topo} {
  %0:2 = mpmd.for (%a, %b) {iterations = 4 : ui32} (%x: !T, %y: !T, %i: tensor<ui32>) {
    %2 = mpmd.call @f(%x) : (!T) -> !T
    %3 = stablehlo.abs %y : !T
    mpmd.return %2, %3 : !T, !T
  } : !T, !T
  %1 = mpmd.assign {origin = "s"} %0#1 : (!T) -> !P0
  return %1 : !P0
}
func.func private @f(%x: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.assign {origin = "u"} %x : (!T) -> !P1
  return %x : !T
}
// =>
func.func @main(%arg0: !T {use=<"p1"["u"]>},
    %arg1: !T {use=<"p0"["s"]>}) -> !P0 attributes {topology = #topo} {
  %0:2 = mpmd.for (%arg0, %arg1) {arg_attrs = [{use=<"p1"["u"]>}, {use=<"p0"["s"]>}, {}],
      iterations = 4 : ui32} (%arg2: !T, %arg3: !T, %index: tensor<ui32>) {
    %2 = mpmd.call @f(%arg2) : (!T) -> !T
    %3 = stablehlo.abs %arg3 {use=<"p0"["s"]>} : !T
    mpmd.return %2, %3 : !T, !T
  } : !T, !T
  %1 = mpmd.assign {use=<"p0"["s"]>, origin = "s"} %0#1 : (!T) -> !P0
  return %1 : !P0
}
func.func private @f(%arg0: !T {use=<"p1"["u"]>}) -> !T attributes {topology = #topo} {
  %0 = mpmd.assign {use=<"p1"["u"]>, origin = "u"} %arg0 : (!T) -> !P1
  return %arg0 : !T
}
