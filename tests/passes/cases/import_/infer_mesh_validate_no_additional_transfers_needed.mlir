// passes: mpmd-infer-mesh-validate-no-additional-transfers-needed
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>

// ----- Sets that are fine
// Absent sets, equal sets in another order, subsets.
func.func @main(%a: !T {src=<"p0", "p1">, use=<"p1">}, %b: !T {use=<"p1">}) -> (!T, !T)
    attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<"p0", "p1">, use=<"p1"["x"], "p0">} : !T
  %1 = stablehlo.add %a, %b {src=<"p1">} : !T
  return %0, %1 : !T, !T
}

// ----- Arguments are silent when a user was reported
func.func @main(%a: !T {src=<"p0">, use=<"p2">}) -> !T attributes {topology = #topo} {
  %0 = mpmd.call @f(%a) : (!T) -> !T
  return %0 : !T
}
func.func private @f(%x: !T {src=<"p0">, use=<"p2">}) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %x {src=<"p0">, use=<"p2">} : !T
  return %0 : !T
}
// error: 'stablehlo.abs'

// ----- Empty set
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<>, use=<"p2">} : !T
  return %0 : !T
}
// error: can be on no mesh

// ----- The last op of a chain is reported
func.func @main(%a: !P0) -> !P1 attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["left"]> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %u = mpmd.unassign {origin = "left", src=<"p0"["left"]>, use=<"p1"["s"]>} %f : (!P0) -> !T
  %0 = stablehlo.abs %u {src=<"p0"["left"]>, use=<"p1"["s"], "p2">} : !T
  %1 = stablehlo.negate %0 {src=<"p0"["left"]>, use=<"p1"["s"], "p2">} : !T
  %2 = mpmd.assign {origin = "s", src=<"p1">, use=<"p1"["s"]>} %1 : (!T) -> !P1
  return %2 : !P1
}
// error: the result of this op is needed on meshes "p1" and "p2", but the op can only run on mesh "p0"; a transfer to meshes "p1" and "p2" is missing ... 'stablehlo.negate' ... the result of named computation "left" on "p0" ... needed on "p1" because of named computation or tensor "s" ... ways out

// ----- Chained calls
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0:2 = mpmd.call @f(%a, %a) : (!T, !T) -> (!T, !T)
  %1:2 = mpmd.call @f(%0#0, %0#1) : (!T, !T) -> (!T, !T)
  return %1#0 : !T
}
func.func private @f(%x: !T {use=<"p1"["b"], "p0">}, %y: !T {use=<"p1">})
    -> (!T {use=<"p0", "p1"["a"]>}, !T {use=<"p2">}) attributes {topology = #topo} {
  return %x, %y : !T, !T
}
// error: result 1 is needed on mesh "p2" ... argument 1, to which it is passed, on mesh "p1"

// ----- Assigns are reported and do not silence
func.func @main(%a: !T {src=<"p0">, use=<"p2">}) -> !P2 attributes {topology = #topo} {
  %0 = mpmd.assign {src=<"p0">, use=<"p2">} %a : (!T) -> !P2
  return %0 : !P2
}
// error: mesh "p2" asks for a value that is only available on mesh "p0"; a transfer to mesh "p2"
// error: argument 0 of @main is needed on mesh "p2", but what is passed is only available on mesh

// ----- The limit of errors (1)
// passes: mpmd-infer-mesh-validate-no-additional-transfers-needed{error-limit=1}
// Users come before producers, functions after their ops.
func.func @main(%a: !T {src=<"p0">, use=<"p2">}, %k: !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %k {src=<"p0">, use=<"p2">} : !T
  %1 = stablehlo.sine %k {src=<"p0">, use=<"p2">} : !T
  return
}
// error: the result of this op is needed on mesh "p2", but the op can only run on mesh "p0"; a transfer to mesh "p2" is missing 'stablehlo.sine'

// ----- The limit of errors (2)
// passes: mpmd-infer-mesh-validate-no-additional-transfers-needed{error-limit=2}
// Users come before producers, functions after their ops.
func.func @main(%a: !T {src=<"p0">, use=<"p2">}, %k: !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %k {src=<"p0">, use=<"p2">} : !T
  %1 = stablehlo.sine %k {src=<"p0">, use=<"p2">} : !T
  return
}
// error: the result of this op is needed on mesh "p2", but the op can only run on mesh "p0"; a transfer to mesh "p2" is missing 'stablehlo.sine'
// error: the result of this op is needed on mesh "p2", but the op can only run on mesh "p0"; a transfer to mesh "p2" is missing 'stablehlo.abs'

// ----- The limit of errors (3)
// passes: mpmd-infer-mesh-validate-no-additional-transfers-needed{error-limit=-1}
// Users come before producers, functions after their ops.
func.func @main(%a: !T {src=<"p0">, use=<"p2">}, %k: !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %k {src=<"p0">, use=<"p2">} : !T
  %1 = stablehlo.sine %k {src=<"p0">, use=<"p2">} : !T
  return
}
// error: the result of this op is needed on mesh "p2", but the op can only run on mesh "p0"; a transfer to mesh "p2" is missing 'stablehlo.sine'
// error: the result of this op is needed on mesh "p2", but the op can only run on mesh "p0"; a transfer to mesh "p2" is missing 'stablehlo.abs'
// error: argument 0 of @main is needed on mesh "p2", but what is passed is only available on mesh "p0"; a transfer to mesh "p2" is missing
