// passes: mpmd-infer-mesh-rewrite-using-analysis{max-clones=1}
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>
!H1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>, memory_kind="pinned_host">

// ----- Results of calls that are on a mesh
// The reference aborts on them.
// passes: mpmd-infer-mesh-rewrite-using-analysis
func.func @main(%a: !P1) -> !P1 attributes {topology = #topo} {
  %0:2 = mpmd.call @f(%a, %a) : (!P1, !P1) -> (!T, !P1)
  return %0#1 : !P1
}
func.func private @f(%x: !P1, %y: !P1) -> (!T, !P1) attributes {topology = #topo} {
  %0 = mpmd.unassign %x : (!P1) -> !T
  return %0, %y : !T, !P1
}
// =>
func.func @main(%a: !P1) -> !P1 attributes {topology = #topo} {
  %0:2 = mpmd.call @f(%a, %a) : (!P1, !P1) -> (!P0, !P1)
  return %0#1 : !P1
}
func.func private @f(%x: !P1, %y: !P1) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.unassign %x : (!P1) -> !T
  %1 = mpmd.assign %0 : (!T) -> !P0
  return %1, %y : !P0, !P1
}

// ----- Callees and calls
// Copies of results are in the order of the use set, copies of arguments in pipeline order.
func.func @main(%a: !T, %b: !P1) -> (!P0, !P2) attributes {topology = #topo} {
  %k = stablehlo.constant dense<1.0> : !T
  %0:3 = mpmd.call @f(%a, %k, %b) {call_counter = 1 : ui32} : (!T, !T, !P1) -> (!T, !T, !P1)
  %1 = mpmd.assign %0#0 : (!T) -> !P0
  %2 = mpmd.assign %0#0 : (!T) -> !P2
  return %1, %2 : !P0, !P2
}
func.func private @f(%x: !T,
    %y: !T,
    %z: !P1) -> (!T {use=<"p2", "p0">}, !T, !P1) attributes {topology = #topo} {
  %0 = stablehlo.add %x, %y {use=<"p2", "p0">} : !T
  %1 = mpmd.assign %y : (!T) -> !P1
  return %0, %0, %z : !T, !T, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !P1) -> (!P0, !P2) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=[]> ()
      {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
    %cst = stablehlo.constant dense<1.0> : !T
    mpmd.return %cst : !T
  } : () -> !P0
  %1 = mpmd.unassign %0 : (!P0) -> !T
  %2 = mpmd.fragment<mesh="p1", origin=[]> ()
      {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
    %cst = stablehlo.constant dense<1.0> : !T
    mpmd.return %cst : !T
  } : () -> !P1
  %3 = mpmd.unassign %2 : (!P1) -> !T
  %4 = mpmd.fragment<mesh="p2", origin=[]> ()
      {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} () {
    %cst = stablehlo.constant dense<1.0> : !T
    mpmd.return %cst : !T
  } : () -> !P2
  %5 = mpmd.unassign %4 : (!P2) -> !T
  %6 = mpmd.assign %arg0 : (!T) -> !P0
  %7 = mpmd.assign %arg0 : (!T) -> !P2
  %8 = mpmd.assign %1 : (!T) -> !P0
  %9 = mpmd.assign %3 : (!T) -> !P1
  %10 = mpmd.assign %5 : (!T) -> !P2
  %11:4 = mpmd.call @f(%6, %8, %arg1, %7, %9, %10) {call_counter = 1 : ui32} : (!P0, !P0, !P1,
      !P2, !P1, !P2) -> (!P2, !P0, !P1, !P0)
  %12 = mpmd.unassign %11#0 : (!P2) -> !T
  %13 = mpmd.unassign %11#3 : (!P0) -> !T
  %14 = mpmd.assign %13 : (!T) -> !P0
  %15 = mpmd.assign %12 : (!T) -> !P2
  return %14, %15 : !P0, !P2
}
func.func private @f(%arg0: !P0 {mpmd.copies = array<i64: 3>},
    %arg1: !P0 {mpmd.copies = array<i64: 4, 5>},
    %arg2: !P1,
    %arg3: !P2,
    %arg4: !P1,
    %arg5: !P2)
    -> (!P2 {mpmd.copies = array<i64: 3>, use=<"p2", "p0">},
    !P0, !P1, !P0) attributes {topology = #topo} {
  %0 = mpmd.unassign %arg0 : (!P0) -> !T
  %1 = mpmd.unassign %arg3 : (!P2) -> !T
  %2 = mpmd.unassign %arg1 : (!P0) -> !T
  %3 = mpmd.unassign %arg4 : (!P1) -> !T
  %4 = mpmd.unassign %arg5 : (!P2) -> !T
  %5 = mpmd.assign %0 : (!T) -> !P0
  %6 = mpmd.assign %2 : (!T) -> !P0
  %7 = mpmd.fragment<mesh="p0", origin=[]> (%5, %6)
      {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg6: !T, %arg7: !T) {
    %17 = stablehlo.add %arg6, %arg7 : !T
    mpmd.return %17 : !T
  } : (!P0, !P0) -> !P0
  %8 = mpmd.unassign %7 : (!P0) -> !T
  %9 = mpmd.assign %1 : (!T) -> !P2
  %10 = mpmd.assign %4 : (!T) -> !P2
  %11 = mpmd.fragment<mesh="p2", origin=[]> (%9, %10)
      {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg6: !T, %arg7: !T) {
    %17 = stablehlo.add %arg6, %arg7 : !T
    mpmd.return %17 : !T
  } : (!P2, !P2) -> !P2
  %12 = mpmd.unassign %11 : (!P2) -> !T
  %13 = mpmd.assign %3 : (!T) -> !P1
  %14 = mpmd.assign %12 : (!T) -> !P2
  %15 = mpmd.assign %8 : (!T) -> !P0
  %16 = mpmd.assign %8 : (!T) -> !P0
  return %14, %16, %arg2, %15 : !P2, !P0, !P1, !P0
}

// ----- Loops
func.func @main(%a: !T, %b: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0:2 = mpmd.for (%a, %b) {iterations = 4 : ui32, arg_attrs = [{use=<"p0">}, {}, {foo}]}
      (%p: !T, %q: !T, %i: tensor<ui32>) {
    %1 = stablehlo.abs %p {use=<"p0">} : !T
    %2 = stablehlo.add %q, %q {use=<"p1">} : !T
    mpmd.return %1, %2 : !T, !T
  } : !T, !T
  %r = mpmd.assign %0#0 : (!T) -> !P0
  %s = mpmd.assign %0#1 : (!T) -> !P1
  return %r, %s : !P0, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P0
  %1 = mpmd.assign %arg1 : (!T) -> !P1
  %2:2 = mpmd.for (%0, %1) {arg_attrs = [{foo}], iterations = 4 : ui32} (%arg2: !P0,
      %arg3: !P1, %index: tensor<ui32>) {
    %7 = mpmd.unassign %arg2 : (!P0) -> !T
    %8 = mpmd.unassign %arg3 : (!P1) -> !T
    %9 = mpmd.assign %7 : (!T) -> !P0
    %10 = mpmd.fragment<mesh="p0", origin=[]> (%9)
        {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg4: !T) {
      %17 = stablehlo.abs %arg4 : !T
      mpmd.return %17 : !T
    } : (!P0) -> !P0
    %11 = mpmd.unassign %10 : (!P0) -> !T
    %12 = mpmd.assign %8 : (!T) -> !P1
    %13 = mpmd.fragment<mesh="p1", origin=[]> (%12)
        {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg4: !T) {
      %17 = stablehlo.add %arg4, %arg4 : !T
      mpmd.return %17 : !T
    } : (!P1) -> !P1
    %14 = mpmd.unassign %13 : (!P1) -> !T
    %15 = mpmd.assign %11 : (!T) -> !P0
    %16 = mpmd.assign %14 : (!T) -> !P1
    mpmd.return %15, %16 : !P0, !P1
  } : !P0, !P1
  %3 = mpmd.unassign %2#0 : (!P0) -> !T
  %4 = mpmd.unassign %2#1 : (!P1) -> !T
  %5 = mpmd.assign %3 : (!T) -> !P0
  %6 = mpmd.assign %4 : (!T) -> !P1
  return %5, %6 : !P0, !P1
}

// ----- Unused argument of a callee
// passes: mpmd-infer-mesh-rewrite-using-analysis
func.func private @f(%a: !T) attributes {topology = #topo} {
  return
}
// error: argument 0 of @f is not used

// ----- Result of a call on a memory kind
// passes: mpmd-infer-mesh-rewrite-using-analysis
func.func @main(%a: !T) -> !H1 attributes {topology = #topo} {
  %0 = mpmd.call @f(%a) : (!T) -> !T
  %1 = mpmd.assign %0 : (!T) -> !H1
  return %1 : !H1
}
func.func private @f(%x: !T) -> (!T {use=<"p1">}) attributes {topology = #topo} {
  %0 = stablehlo.abs %x : !T
  return %0 : !T
}
// error: cannot be assigned to a memory kind

// ----- Ops that still have other users
// passes: mpmd-infer-mesh-rewrite-using-analysis
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %a : !T
  return %0 : !T
}
// error: the result of 'stablehlo.abs' ... is used by 'func.return'

// ----- Value of a loop on two meshes
// passes: mpmd-infer-mesh-rewrite-using-analysis
func.func @main(%a: !T) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.for (%a) {iterations = 4 : ui32} (%p: !T, %i: tensor<ui32>) {
    %1 = stablehlo.abs %p {use=<"p0", "p1">} : !T
    mpmd.return %1 : !T
  } : !T
  %r = mpmd.assign %0 : (!T) -> !P0
  return %r : !P0
}
// error: meshes "p0" and "p1" ... unroll the loop

// ----- Token between effects
// passes: mpmd-infer-mesh-rewrite-using-analysis
// The reference aborts on a token that goes from op to op.
func.func @main(%a: !T) -> !P0 attributes {topology = #topo} {
  %0:2 = stablehlo.custom_call @f(%a) {has_side_effect = true} : (!T) -> (!T, !stablehlo.token)
  %1 = stablehlo.custom_call @g(%a, %0#1) {has_side_effect = true} : (!T, !stablehlo.token) -> !T
  %2 = mpmd.assign %1 : (!T) -> !P0
  %3 = mpmd.assign %0#0 : (!T) -> !P0
  return %2 : !P0
}
// =>
func.func @main(%arg0: !T) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P0
  %1:2 = mpmd.fragment<mesh="p0", origin=[]> (%0) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg1: !T) {
    %8:2 = stablehlo.custom_call @f(%arg1) {has_side_effect = true} : (!T) -> (!T, !stablehlo.token)
    mpmd.return %8#0, %8#1 : !T, !stablehlo.token
  } : (!P0) -> (!P0, !stablehlo.token)
  %2 = mpmd.unassign %1#0 : (!P0) -> !T
  %3 = mpmd.assign %arg0 : (!T) -> !P0
  %4 = mpmd.fragment<mesh="p0", origin=[]> (%3, %1#1) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg1: !T, %arg2: !stablehlo.token) {
    %8 = stablehlo.custom_call @g(%arg1, %arg2) {has_side_effect = true} : (!T, !stablehlo.token) -> !T
    mpmd.return %8 : !T
  } : (!P0, !stablehlo.token) -> !P0
  %5 = mpmd.unassign %4 : (!P0) -> !T
  %6 = mpmd.assign %5 : (!T) -> !P0
  %7 = mpmd.assign %2 : (!T) -> !P0
  return %6 : !P0
}
