// passes: mpmd-infer-mesh-finalize{infer-transfers=false}
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>
!H1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>, memory_kind="pinned_host">
!D2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>, memory_kind="device">

// ----- Same mesh pairs vanish and sets are cleared
// Also in fragments, and dead code everywhere.
func.func @main(%a: !P0 {use=<"p0">}) -> (!P0 {use=<"p0">}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["s"]> (%a) (%xf: !T) {
    %yf = stablehlo.abs %xf : !T
    %df = stablehlo.sine %xf {use=<"p0">} : !T
    %ef = stablehlo.tanh %xf {use=<"p0">, src=<"p0">} : !T
    mpmd.return %ef : !T
  } : (!P0) -> !P0
  %0 = mpmd.unassign {src=<"p0">, origin = "s"} %f : (!P0) -> !T
  %1 = mpmd.assign {use=<"p0">, origin = "t"} %0 : (!T) -> !P0
  %g = mpmd.fragment<mesh="p0", origin=["t"]> (%1) {use=<"p0">} (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %h = mpmd.fragment<mesh="p0", origin=["s"]> (%g) (%xh: !T) {
    %yh = stablehlo.abs %xh : !T
    %dh = stablehlo.sine %xh {use=<"p0">} : !T
    %eh = stablehlo.tanh %xh {use=<"p0">, src=<"p0">} : !T
    mpmd.return %eh : !T
  } : (!P0) -> !P0
  return %g : !P0
}
// =>
func.func @main(%arg0: !P0) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=["s"]> (%arg0) (%arg1: !T) {
    %2 = stablehlo.tanh %arg1 : !T
    mpmd.return %2 : !T
  } : (!P0) -> !P0
  %1 = mpmd.fragment<mesh="p0", origin=["t"]> (%0) {use=<"p0">} (%arg1: !T) {
    mpmd.return %arg1 : !T
  } : (!P0) -> !P0
  return %1 : !P0
}

// ----- Inputs go to the smallest mesh by name
// Not in pipeline order: m10 is before m2.
// passes: mpmd-infer-mesh-finalize
!m2 = !mpmd.mesh_tensor<"m2", tensor<4xf32>>
!m10 = !mpmd.mesh_tensor<"m10", tensor<4xf32>>
!host = !mpmd.mesh_tensor<"m2", tensor<4xf32>, memory_kind="pinned_host">
#meshes = #mpmd.topology<<"m2" : <["d"=4]>>, <"m10" : <["d"=4]>>>

func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (!m2, !m10, !host)
    attributes {topology = #meshes} {
  %0 = mpmd.assign %a : (tensor<4xf32>) -> !m2
  %1 = mpmd.assign %a : (tensor<4xf32>) -> !m10
  %2 = mpmd.assign %b : (tensor<4xf32>) -> !host
  return %0, %1, %2 : !m2, !m10, !host
}
// =>
func.func @main(%a: !m10, %b: !host) -> (!m2, !m10, !host) attributes {topology = #meshes} {
  %0 = mpmd.transfer %a : (!m10) -> !m2
  return %0, %a, %b : !m2, !m10, !host
}

// ----- New transfers when allowed
// passes: mpmd-infer-mesh-finalize{infer-transfers=true}
func.func @main(%a: !P0) -> (!P1, !P0, !P2) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["s"]> (%a) (%xf: !T) {
    %yf = stablehlo.abs %xf : !T
    %df = stablehlo.sine %xf {use=<"p0">} : !T
    %ef = stablehlo.tanh %xf {use=<"p0">, src=<"p0">} : !T
    mpmd.return %ef : !T
  } : (!P0) -> !P0
  %0 = mpmd.unassign %f : (!P0) -> !T
  %1 = mpmd.assign %0 : (!T) -> !P2
  %2 = mpmd.assign %0 : (!T) -> !P0
  %3 = mpmd.assign %0 : (!T) -> !P1
  return %3, %2, %1 : !P1, !P0, !P2
}
// =>
func.func @main(%arg0: !P0) -> (!P1, !P0, !P2) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=["s"]> (%arg0) (%arg1: !T) {
    %3 = stablehlo.tanh %arg1 : !T
    mpmd.return %3 : !T
  } : (!P0) -> !P0
  %1 = mpmd.transfer %0 : (!P0) -> !P1
  %2 = mpmd.transfer %1 : (!P1) -> !P2
  return %1, %0, %2 : !P1, !P0, !P2
}

// ----- Broadcast
// A chain through all meshes, also back to the one where it starts.
func.func @main(%a: !P2) -> (!P0, !P1, !P2) attributes {topology = #topo} {
  %0 = mpmd.unassign %a : (!P2) -> !T
  %1 = mpmd.broadcast %0 : !T
  %2 = mpmd.assign %1 : (!T) -> !P2
  %3 = mpmd.assign %1 : (!T) -> !P0
  %4 = mpmd.assign %1 : (!T) -> !P1
  return %3, %4, %2 : !P0, !P1, !P2
}
// =>
func.func @main(%arg0: !P2) -> (!P0, !P1, !P2) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!P2) -> !P0
  %1 = mpmd.transfer %0 : (!P0) -> !P1
  %2 = mpmd.transfer %1 : (!P1) -> !P2
  return %0, %1, %2 : !P0, !P1, !P2
}

// ----- Reduce on two meshes
func.func @main(%a: !P0, %b: !P1) -> (!P1, !P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.unassign %a : (!P0) -> !T
  %1 = mpmd.unassign %b : (!P1) -> !T
  %2 = mpmd.reduce<min> {use=<"p1", "p0">} %1, %0, %0, %0 : (!T, !T, !T, !T) -> !T
  %3 = mpmd.assign %2 : (!T) -> !P1
  %4 = mpmd.assign %2 : (!T) -> !P0
  %5 = mpmd.assign %2 : (!T) -> !P1
  return %3, %4, %5 : !P1, !P0, !P1
}
// =>
func.func @main(%arg0: !P0, %arg1: !P1) -> (!P1, !P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=[]> (%arg0, %arg0, %arg0)
      {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg2: !T, %arg3: !T, %arg4: !T) {
    %5 = stablehlo.minimum %arg2, %arg3 : !T
    %6 = stablehlo.minimum %5, %arg4 : !T
    mpmd.return %6 : !T
  } : (!P0, !P0, !P0) -> !P0
  %1 = mpmd.transfer %0 : (!P0) -> !P1
  %2 = mpmd.fragment<mesh="p1", origin=[]> (%1, %arg1)
      {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg2: !T, %arg3: !T) {
    %5 = stablehlo.minimum %arg2, %arg3 : !T
    mpmd.return %5 : !T
  } : (!P1, !P1) -> !P1
  %3 = mpmd.transfer %arg1 : (!P1) -> !P0
  %4 = mpmd.fragment<mesh="p0", origin=[]> (%0, %3)
      {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg2: !T, %arg3: !T) {
    %5 = stablehlo.minimum %arg2, %arg3 : !T
    mpmd.return %5 : !T
  } : (!P0, !P0) -> !P0
  return %2, %4, %2 : !P1, !P0, !P1
}

// ----- Reduce of one value
// An identity fragment.
func.func @main(%a: !P0) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.unassign %a : (!P0) -> !T
  %1 = mpmd.reduce<none> {use=<"p0">} %0 : (!T) -> !T
  %2 = mpmd.assign %1 : (!T) -> !P0
  return %2 : !P0
}
// =>
func.func @main(%arg0: !P0) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=[]> (%arg0)
      {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg1: !T) {
    mpmd.return %arg1 : !T
  } : (!P0) -> !P0
  return %0 : !P0
}

// ----- Meshless user of a reduce
// passes: mpmd-infer-mesh-finalize
func.func private @f(%p: !P0) -> !T attributes {topology = #topo} {
  %0 = mpmd.unassign %p : (!P0) -> !T
  %1 = mpmd.reduce<add> %0, %0 : (!T, !T) -> !T
  return %1 : !T
}
// error: the reduction 'mpmd.reduce'

// ----- Memory kinds that differ (1)
// passes: mpmd-infer-mesh-finalize
func.func @main(%a: !T) -> (!H1, !D2) attributes {topology = #topo} {
  %0 = mpmd.assign %a : (!T) -> !H1
  %1 = mpmd.assign %a : (!T) -> !D2
  return %0, %1 : !H1, !D2
}
// error: input 0 of @main is assigned to different memory kinds: 'device' and 'pinned_host'

// ----- Memory kinds that differ (2)
// passes: mpmd-infer-mesh-finalize
func.func @main(%a: !T) -> (!H1, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign %a : (!T) -> !H1
  %1 = mpmd.assign %a : (!T) -> !P1
  return %0, %1 : !H1, !P1
}
// error: input 0 of @main is assigned to different memory kinds: 'pinned_host' and no memory kind

// ----- Inputs that are used otherwise
// passes: mpmd-infer-mesh-finalize
func.func @main(%a: !T) -> !T attributes {topology = #topo} { return %a : !T }
// error: input 0 of @main is used by 'func.return'

// ----- Operands that are on no mesh (1)
// passes: mpmd-infer-mesh-finalize
func.func private @f(%a: !T, %p: !P0) -> !P0 attributes {topology = #topo} {
  %b = mpmd.unassign %p : (!P0) -> !T
  %0 = mpmd.broadcast %a : !T
  %1 = mpmd.assign %0 : (!T) -> !P0
  return %1 : !P0
}
// error: on which mesh the operand of 'mpmd.broadcast'

// ----- Operands that are on no mesh (2)
// passes: mpmd-infer-mesh-finalize
func.func private @f(%a: !T, %p: !P0) -> !P0 attributes {topology = #topo} {
  %b = mpmd.unassign %p : (!P0) -> !T
  %0 = mpmd.reduce<add> %b, %a : (!T, !T) -> !T
  %1 = mpmd.assign %0 : (!T) -> !P0
  return %1 : !P0
}
// error: on which mesh operand 1 of 'mpmd.reduce'

// ----- Reductions that are no longer needed somewhere
// passes: mpmd-infer-mesh-finalize
// The reference aborts when dead code was the only reason to need the reduction on a mesh.
func.func @main(%a: !P0, %b: !P1) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.unassign %a : (!P0) -> !T
  %1 = mpmd.unassign %b : (!P1) -> !T
  %2 = mpmd.reduce<add> {use=<"p2", "p0">} %0, %1 : (!T, !T) -> !T
  %3 = mpmd.assign %2 : (!T) -> !P0
  %4 = mpmd.assign %2 : (!T) -> !P2
  %5 = mpmd.fragment<mesh="p2", origin=[]> (%4) (%x: !T) {
    mpmd.return %x : !T
  } : (!P2) -> !P2
  return %3 : !P0
}
// =>
func.func @main(%arg0: !P0, %arg1: !P1) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!P1) -> !P0
  %1 = mpmd.fragment<mesh="p0", origin=[]> (%arg0, %0) {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg2: !T, %arg3: !T) {
    %2 = stablehlo.add %arg2, %arg3 : !T
    mpmd.return %2 : !T
  } : (!P0, !P0) -> !P0
  return %1 : !P0
}

// ----- A call gets its argument in the memory that it wants
// So does what else takes the value from there.
func.func @main(%a: !P1) -> (!P1, !H1) attributes {topology = #topo} {
  %0 = mpmd.unassign %a : (!P1) -> !T
  %1 = mpmd.assign %0 : (!T) -> !H1
  %2 = mpmd.call @f(%1) : (!H1) -> !P1
  return %2, %1 : !P1, !H1
}
func.func private @f(%a: !H1) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!H1) -> !P1
  return %0 : !P1
}
// =>
func.func @main(%a: !P1) -> (!P1, !H1) attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!P1) -> !H1
  %1 = mpmd.call @f(%0) : (!H1) -> !P1
  return %1, %0 : !P1, !H1
}
func.func private @f(%a: !H1) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!H1) -> !P1
  return %0 : !P1
}

// ----- Without a call, a value stays in its memory
func.func @main(%a: !P1) -> !H1 attributes {topology = #topo} {
  %0 = mpmd.unassign %a : (!P1) -> !T
  %1 = mpmd.assign %0 : (!T) -> !H1
  return %1 : !H1
}
// =>
func.func @main(%a: !P1) -> !P1 attributes {topology = #topo} {
  return %a : !P1
}

// ----- Everything without a mesh is reported
// passes: mpmd-infer-mesh-finalize
func.func @main(%a: !P0, %b: !T) -> (!T, !P1) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=["f"]> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %1 = mpmd.unassign %0 : (!P0) -> !T
  %2 = mpmd.assign %1 : (!T) -> !P1
  %3 = mpmd.fragment<mesh="p1", origin=["g"]> (%2) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  %4 = stablehlo.abs %1 : !T
  %5 = mpmd.assign %b : (!T) -> !P0
  return %4, %3 : !T, !P1
}
func.func private @f(%a: !T) attributes {topology = #topo} {
  return
}
// error: output 0 of @main has the type tensor<6x2xf32> and is on no mesh; every output must be on one
// error: a value on mesh "p0" is used on another mesh, or where no mesh is known used by 'stablehlo.abs' ways out: - name the value (named tensor) and assign the name to the mesh where it is needed - let values move wherever needed: set mpmd_infer_transfers in the partitioning options
// error: a value is needed on mesh "p1", but it is not there used by named computation "g" ways out: - name the value (named tensor) and assign the name to the mesh where it is needed - let values move wherever needed: set mpmd_infer_transfers in the partitioning options
// error: 'stablehlo.abs' is in no fragment and so on no mesh after mesh inference
// error: input 0 of @f has the type tensor<6x2xf32> and is on no mesh; every input must be on one
