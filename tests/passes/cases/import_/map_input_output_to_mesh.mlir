// passes: mpmd-map-input-output-to-mesh{output-assignment=0@p0,1@p1}
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!H1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>, memory_kind="pinned_host">

// ----- One value returned on two meshes
func.func @main(%a: !T) -> (!T, !T) attributes {topology = #topo} {
  return %a, %a : !T, !T
}
// =>
func.func @main(%a: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign {origin = "user_out"} %a : (!T) -> !P0
  %1 = mpmd.assign {origin = "user_out"} %a : (!T) -> !P1
  return %0, %1 : !P0, !P1
}

// ----- The attribute stays when the type says nothing
// passes: mpmd-map-input-output-to-mesh{input-assignment=0@p0 output-assignment=0@p1#pinned_host}
func.func @main(%a: !T {mhlo.memory_kind = "device"})
    -> (!T {mhlo.memory_kind = "pinned_host"}) attributes {topology = #topo} {
  return %a : !T
}
// =>
func.func @main(%a: !P0 {mhlo.memory_kind = "device"}) -> !H1 attributes {topology = #topo} {
  %0 = mpmd.unassign {origin = "user_in"} %a : (!P0) -> !T
  %1 = mpmd.assign {origin = "user_out"} %0 : (!T) -> !H1
  return %1 : !H1
}

// ----- Private functions are left alone
// passes: mpmd-map-input-output-to-mesh{input-assignment=0@p0}
func.func private @f(%a: !T) -> !T attributes {topology = #topo} {
  return %a : !T
}

// ----- Values with a mesh are an error
// passes: mpmd-map-input-output-to-mesh{input-assignment=0@p0 output-assignment=0@p1}
func.func @main(%a: !P0) -> !P0 attributes {topology = #topo} {
  return %a : !P0
}
// error: is a mesh tensor already

// ----- Wrong assignments (1)
// passes: mpmd-map-input-output-to-mesh{input-assignment=3@p0}
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  return %a : !T
}
// error: the function has 1 inputs

// ----- Wrong assignments (2)
// passes: mpmd-map-input-output-to-mesh{output-assignment=1@p0}
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  return %a : !T
}
// error: the function has 1 outputs

// ----- Wrong assignments (3)
// passes: mpmd-map-input-output-to-mesh{input-assignment=0@nowhere}
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  return %a : !T
}
// error: has no mesh of that name (it has "p0", "p1", "p2")

// ----- Another memory kind is logged
// passes: mpmd-map-input-output-to-mesh{input-assignment=0@p1#pinned_host}
func.func @main(%a: !T {mhlo.memory_kind = "device"}) attributes {topology = #topo} {
  return
}
// fine
// log: input 0 of @main is assigned to memory kind "pinned_host"
