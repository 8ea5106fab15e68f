// passes: builtin.module(func.func(mpmd-map-named-ops-to-mpmd-ops{assignment=f@p0}))
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>

// ----- One unassign per result in order
// passes: builtin.module(func.func(mpmd-map-named-ops-to-mpmd-ops{assignment=f@p1}))
func.func @main() -> (!T, !T) attributes {topology = #topo} {
  %0:2 = mpmd.named_computation<"f"> () () {
    %1 = stablehlo.constant dense<1.0> : !T
    mpmd.return %1, %1 : !T, !T
  } : () -> (!T, !T)
  return %0#1, %0#0 : !T, !T
}
// =>
func.func @main() -> (!T, !T) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="p1", origin=["f"]> () () {
    %1 = stablehlo.constant dense<1.0> : !T
    mpmd.return %1, %1 : !T, !T
  } : () -> (!P1, !P1)
  %2 = mpmd.unassign {origin = "f"} %0#0 : (!P1) -> !T
  %3 = mpmd.unassign {origin = "f"} %0#1 : (!P1) -> !T
  return %3, %2 : !T, !T
}

// ----- Unknown meshes
// passes: builtin.module(func.func(mpmd-map-named-ops-to-mpmd-ops{assignment=f@p9,g@p0}))
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!T) -> !T
  %1 = mpmd.named_computation<"g"> (%0) (%x: !T) {
    mpmd.return %x : !T
  } : (!T) -> !T
  return %1 : !T
}
// error: named computation 'f' needs the mesh "p9"

// ----- What is nested must have been inlined
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    %1 = mpmd.named_tensor %x name="t" : !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: still holds named tensor 't'

// ----- Tokens are an error
func.func @main(%a: !stablehlo.token) -> !stablehlo.token attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !stablehlo.token) {
    mpmd.return %x : !stablehlo.token
  } : (!stablehlo.token) -> !stablehlo.token
  return %0 : !stablehlo.token
}
// error: takes or returns a token

// ----- Assigned names inside of other ops are an error
// passes: builtin.module(func.func(mpmd-map-named-ops-to-mpmd-ops{assignment=t@p0}))
func.func @main(%a: !T, %i: tensor<i32>) -> !T attributes {topology = #topo} {
  %0 = "stablehlo.case"(%i) ({
    %1 = mpmd.named_tensor %a name="t" : !T
    stablehlo.return %1 : !T
  }) : (tensor<i32>) -> !T
  return %0 : !T
}
// error: inside of a 'stablehlo.case'

// ----- Every unassigned computation is reported
// passes: func.func(mpmd-map-named-ops-to-mpmd-ops)
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!T) -> !T
  %1 = mpmd.named_computation<"g"> (%0) (%x: !T) {
    mpmd.return %x : !T
  } : (!T) -> !T
  return %1 : !T
}
// error: add 'f@MESH' to the name-to-mesh assignment
// error: named computation 'g' is not assigned to a mesh: add 'g@MESH' to the name-to-mesh

// ----- A memory kind of a computation is ignored and logged
// passes: builtin.module(func.func(mpmd-map-named-ops-to-mpmd-ops{assignment=f@p0#device,g@p0}))
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!T) -> !T
  %1 = mpmd.named_computation<"g"> (%0) (%x: !T) {
    mpmd.return %x : !T
  } : (!T) -> !T
  return %1 : !T
}
// fine
// log: named computation 'f' is assigned to "p0#device"
