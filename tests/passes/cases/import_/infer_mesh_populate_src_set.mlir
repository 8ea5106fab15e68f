// passes: mpmd-infer-mesh-populate-src-set
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>

// ----- Sources
// Arguments can be where they are needed, a fragment result where it is and where it is sent.
func.func @main(%a: !T {use=<"p1"["s"], "p0">},
    %b: !P0,
    %c: !T) -> (!P2, !T) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=["s"]> (%b) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P0) -> !P0
  %1 = mpmd.transfer %0 : (!P0) -> !P2
  %2 = mpmd.unassign {origin = "s"} %0 : (!P0) -> !T
  %3 = stablehlo.divide %a, %2 : !T
  %k = stablehlo.constant dense<1.0> : !T
  %4 = stablehlo.divide %3, %k : !T
  %5 = stablehlo.divide %c, %k : !T
  return %1, %4 : !P2, !T
}
// =>
func.func @main(%arg0: !T {src=<"p1"["inferred_in"], "p0"["inferred_in"]>, use=<"p1"["s"],
    "p0">},
    %arg1: !P0,
    %arg2: !T) -> (!P2, !T) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=["s"]> (%arg1) (%arg3: !T) {
    %6 = stablehlo.abs %arg3 : !T
    mpmd.return %6 : !T
  } : (!P0) -> !P0
  %1 = mpmd.transfer %0 : (!P0) -> !P2
  %2 = mpmd.unassign {src=<"p0"["s"], "p2"["transfer"]>, origin = "s"} %0 : (!P0) -> !T
  %3 = stablehlo.divide %arg0, %2 {src=<"p0"["inferred_in", "s"]>} : !T
  %cst = stablehlo.constant dense<1.0> : !T
  %4 = stablehlo.divide %3, %cst {src=<"p0"["inferred_in", "s"]>} : !T
  %5 = stablehlo.divide %arg2, %cst : !T
  return %1, %4 : !P2, !T
}

// ----- Unassign of an input can be where it is needed
func.func @main(%a: !P0) -> (!P1, !T) attributes {topology = #topo} {
  %0 = mpmd.unassign {origin = "user_in"} %a : (!P0) -> !T
  %1 = stablehlo.abs %0 {use=<"p2"["x"]>} : !T
  %2 = mpmd.assign {use=<"p1"["s"]>} %0 : (!T) -> !P1
  return %2, %1 : !P1, !T
}
// =>
func.func @main(%arg0: !P0) -> (!P1, !T) attributes {topology = #topo} {
  %0 = mpmd.unassign {src=<"p0"["user_in"], "p1"["inferred_in"], "p2"["inferred_in"]>,
      origin = "user_in"} %arg0 : (!P0) -> !T
  %1 = stablehlo.abs %0 {src=<"p0"["user_in"], "p1"["inferred_in"], "p2"["inferred_in"]>,
      use=<"p2"["x"]>} : !T
  %2 = mpmd.assign {src=<"p0"["user_in"], "p1"["inferred_in"], "p2"["inferred_in"]>,
      use=<"p1"["s"]>} %0 : (!T) -> !P1
  return %2, %1 : !P1, !T
}

// ----- Conflicts and reductions
// A conflict of a reduction is tagged, that of another op leaves the empty set, also behind it.
func.func @main(%a: !P0, %b: !P1, %c: !P2) -> !T attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["s"]> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %g = mpmd.fragment<mesh="p1", origin=["t"]> (%b) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  %u = mpmd.unassign {origin = "s"} %f : (!P0) -> !T
  %v = mpmd.unassign {origin = "t"} %g : (!P1) -> !T
  %0 = stablehlo.maximum %u, %v : !T
  %1 = stablehlo.maximum %0, %u : !T
  %2 = stablehlo.add %1, %0 : !T
  %3 = stablehlo.divide %u, %v : !T
  %4 = stablehlo.add %3, %u : !T
  %5 = mpmd.broadcast %3 : !T
  %6 = stablehlo.add %5, %u : !T
  return %4 : !T
}
// =>
func.func @main(%arg0: !P0, %arg1: !P1, %arg2: !P2) -> !T attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=["s"]> (%arg0) (%arg3: !T) {
    mpmd.return %arg3 : !T
  } : (!P0) -> !P0
  %1 = mpmd.fragment<mesh="p1", origin=["t"]> (%arg1) (%arg3: !T) {
    mpmd.return %arg3 : !T
  } : (!P1) -> !P1
  %2 = mpmd.unassign {src=<"p0"["s"]>, origin = "s"} %0 : (!P0) -> !T
  %3 = mpmd.unassign {src=<"p1"["t"]>, origin = "t"} %1 : (!P1) -> !T
  %4 = stablehlo.maximum %2, %3 {mpmd.reduce = #mpmd.reduction<max>, src=<"p0"["s"],
      "p1"["t"]>} : !T
  %5 = stablehlo.maximum %4, %2 {mpmd.reduce = #mpmd.reduction<max>, src=<"p0"["s"],
      "p1"["t"]>} : !T
  %6 = stablehlo.add %5, %4 {src=<"p0"["s"], "p1"["t"]>} : !T
  %7 = stablehlo.divide %2, %3 {src=<>} : !T
  %8 = stablehlo.add %7, %2 {src=<>} : !T
  %9 = mpmd.broadcast %7 : !T
  %10 = stablehlo.add %9, %2 {src=<"p0"["s"]>} : !T
  return %8 : !T
}

// ----- Concat reduce
func.func @main(%a: tensor<1x4xf32> {use=<"p0">},
    %b: tensor<1x4xf32> {use=<"p1">}) -> tensor<4xf32> attributes {topology = #topo} {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.concatenate %a, %b, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>)
      -> tensor<2x4xf32>
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.maximum across dimensions = [0]
      : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
// =>
func.func @main(%arg0: tensor<1x4xf32> {src=<"p0"["inferred_in"]>, use=<"p0">},
    %arg1: tensor<1x4xf32> {src=<"p1"["inferred_in"]>, use=<"p1">}) -> tensor<4xf32>
    attributes {topology = #topo} {
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.concatenate %arg0, %arg1, dim = 0 {mpmd.reduce = #mpmd.reduction<max>,
      src=<"p0"["inferred_in"], "p1"["inferred_in"]>} : (tensor<1x4xf32>, tensor<1x4xf32>)
      -> tensor<2x4xf32>
  %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.maximum across dimensions = [0]
      {mpmd.reduce = #mpmd.reduction<max>, src=<"p0"["inferred_in"], "p1"["inferred_in"]>}
      : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// ----- Calls intersect
// The argument of the callee can be where all calls can give it; its own use set does not matter.
func.func @main(%a: !T {use=<"p0", "p1">},
    %b: !T {use=<"p1", "p2">}) -> (!T, !T) attributes {topology = #topo} {
  %0:2 = mpmd.call @f(%a, %a) : (!T, !T) -> (!T, !T)
  %1:2 = mpmd.call @f(%b, %0#0) : (!T, !T) -> (!T, !T)
  %2 = stablehlo.divide %1#1, %0#1 : !T
  return %0#0, %2 : !T, !T
}
func.func private @f(%x: !T {use=<"p2">}, %y: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %x : !T
  %1 = mpmd.assign %y : (!T) -> !P0
  %2 = mpmd.unassign {origin = "u"} %1 : (!P0) -> !T
  return %0, %2 : !T, !T
}
// =>
func.func @main(%arg0: !T {src=<"p0"["inferred_in"], "p1"["inferred_in"]>, use=<"p0", "p1">},
    %arg1: !T {src=<"p1"["inferred_in"], "p2"["inferred_in"]>, use=<"p1", "p2">})
    -> (!T, !T) attributes {topology = #topo} {
  %0:2 = mpmd.call @f(%arg0, %arg0) : (!T, !T) -> (!T, !T)
  %1:2 = mpmd.call @f(%arg1, %0#0) : (!T, !T) -> (!T, !T)
  %2 = stablehlo.divide %1#1, %0#1 {src=<"p0"["u"]>} : !T
  return %0#0, %2 : !T, !T
}
func.func private @f(%arg0: !T {src=<"p1"["inferred_in"]>, use=<"p2">},
    %arg1: !T {src=<"p0"["inferred_in"], "p1"["inferred_in"]>})
    -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {src=<"p1"["inferred_in"]>} : !T
  %1 = mpmd.assign {src=<"p0"["inferred_in"], "p1"["inferred_in"]>} %arg1 : (!T) -> !P0
  %2 = mpmd.unassign {src=<"p0"["u"]>, origin = "u"} %1 : (!P0) -> !T
  return %0, %2 : !T, !T
}

// ----- Conflicting calls leave the empty set
func.func @main(%a: !T {use=<"p0">}, %b: !T {use=<"p2">}) -> !T attributes {topology = #topo} {
  %0 = mpmd.call @f(%a) : (!T) -> !T
  %1 = mpmd.call @f(%b) : (!T) -> !T
  return %0 : !T
}
func.func private @f(%x: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %x : !T
  return %0 : !T
}
// =>
func.func @main(%arg0: !T {src=<"p0"["inferred_in"]>, use=<"p0">},
    %arg1: !T {src=<"p2"["inferred_in"]>, use=<"p2">}) -> !T attributes {topology = #topo} {
  %0 = mpmd.call @f(%arg0) : (!T) -> !T
  %1 = mpmd.call @f(%arg1) : (!T) -> !T
  return %0 : !T
}
func.func private @f(%arg0: !T {src=<>}) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {src=<>} : !T
  return %0 : !T
}

// ----- Loop
func.func @main(%a: !T {use=<"p1"["s"]>}) -> !T attributes {topology = #topo} {
  %0 = mpmd.for (%a) {iterations = 2 : ui32} (%x: !T, %i: tensor<ui32>) {
    %1 = stablehlo.abs %x : !T
    mpmd.return %1 : !T
  } : !T
  %2 = stablehlo.abs %0 : !T
  return %2 : !T
}
// =>
func.func @main(%arg0: !T {src=<"p1"["inferred_in"]>, use=<"p1"["s"]>}) -> !T
    attributes {topology = #topo} {
  %0 = mpmd.for (%arg0) {arg_attrs = [{src=<"p1"["inferred_in"]>}, {}],
      iterations = 2 : ui32} (%arg1: !T, %index: tensor<ui32>) {
    %2 = stablehlo.abs %arg1 {src=<"p1"["inferred_in"]>} : !T
    mpmd.return %2 : !T
  } : !T
  %1 = stablehlo.abs %0 {src=<"p1"["inferred_in"]>} : !T
  return %1 : !T
}

// ----- Behind the sets of uses
// passes: mpmd-infer-mesh-populate-use-set,mpmd-infer-mesh-populate-src-set
func.func @main(%a: !T, %b: !T, %c: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : !T
  %1 = mpmd.assign {origin = "s"} %0 : (!T) -> !P1
  %2 = mpmd.fragment<mesh="p1", origin=["s"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  %3 = mpmd.unassign {origin = "s"} %2 : (!P1) -> !T
  %4 = stablehlo.multiply %3, %a : !T
  return %4, %b : !T, !T
}
// =>
func.func @main(%a: !T {use=<"p1"["s"]>, src=<"p1"["inferred_in"]>},
    %b: !T {use=<"p1"["s"]>, src=<"p1"["inferred_in"]>}, %c: !T) -> (!T, !T)
    attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b {use=<"p1"["s"]>, src=<"p1"["inferred_in"]>} : !T
  %1 = mpmd.assign {origin = "s", use=<"p1"["s"]>, src=<"p1"["inferred_in"]>} %0 : (!T) -> !P1
  %2 = mpmd.fragment<mesh="p1", origin=["s"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  %3 = mpmd.unassign {origin = "s", src=<"p1"["s"]>} %2 : (!P1) -> !T
  %4 = stablehlo.multiply %3, %a {src=<"p1"["s", "inferred_in"]>} : !T
  return %4, %b : !T, !T
}
