// passes: mpmd-infer-mesh-assign-mesh-func-leaves{error-limit=5 infer-transfers=false}
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>

// ----- Outputs
// A needed mesh among the possible ones, then the smallest name, then the first mesh.
func.func @main(%a: !T {use=<"p2">, src=<"p1", "p2">},
    %b: !T,
    %c: !P1) -> (!T, !T, !T, !T, !P1, !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {use=<"p2">, src=<"p1", "p2">} : !T
  %1 = stablehlo.abs %a {src=<"p2", "p1">} : !T
  %2 = stablehlo.abs %b {use=<"p2", "p1">} : !T
  %3 = stablehlo.constant dense<1.0> : !T
  return %0, %1, %2, %3, %c, %a : !T, !T, !T, !T, !P1, !T
}
// =>
func.func @main(%arg0: !T {src=<"p1", "p2">},
    %arg1: !T,
    %arg2: !P1) -> (!P2, !P1, !P1, !P0, !P1, !P1) attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {src=<"p1", "p2">} : !T
  %1 = stablehlo.abs %arg0 {src=<"p2", "p1">} : !T
  %2 = stablehlo.abs %arg1 : !T
  %cst = stablehlo.constant dense<1.0> : !T
  %3 = mpmd.assign {origin = "inferred_out"} %0 : (!T) -> !P2
  %4 = mpmd.assign {origin = "inferred_out"} %1 : (!T) -> !P1
  %5 = mpmd.assign {origin = "inferred_out"} %2 : (!T) -> !P1
  %6 = mpmd.assign {origin = "inferred_out"} %cst : (!T) -> !P0
  %7 = mpmd.assign {origin = "inferred_out"} %arg0 : (!T) -> !P1
  return %3, %4, %5, %6, %arg2, %7 : !P2, !P1, !P1, !P0, !P1, !P1
}

// ----- Conflicts go to the first mesh with infer transfers
// passes: mpmd-infer-mesh-assign-mesh-func-leaves{error-limit=5 infer-transfers=true}
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<>} : !T
  %1 = stablehlo.abs %a {src=<>} : !T
  %2 = mpmd.broadcast {use=<"p2">} %1 : !T
  %3 = mpmd.broadcast %1 : !T
  return %0 : !T
}
// =>
func.func @main(%arg0: !T) -> !P0 attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {src=<>} : !T
  %1 = stablehlo.abs %arg0 {src=<>} : !T
  %2 = mpmd.assign {origin = "broadcast"} %1 : (!T) -> !P2
  %3 = mpmd.unassign %2 : (!P2) -> !T
  %4 = mpmd.broadcast %3 : !T
  %5 = mpmd.assign {origin = "broadcast"} %1 : (!T) -> !P0
  %6 = mpmd.unassign %5 : (!P0) -> !T
  %7 = mpmd.broadcast %6 : !T
  %8 = mpmd.assign {origin = "inferred_out"} %0 : (!T) -> !P0
  return %8 : !P0
}

// ----- Unused ops
// One assign per tensor result; a use set goes.
func.func @main(%a: !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {use=<"p2">, src=<"p2", "p1">} : !T
  %1:2 = stablehlo.optimization_barrier %a, %a : !T, !T
  return
}
// =>
func.func @main(%arg0: !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {src=<"p2", "p1">} : !T
  %1 = mpmd.assign {origin = "inferred_unused"} %0 : (!T) -> !P1
  %2:2 = stablehlo.optimization_barrier %arg0, %arg0 : !T, !T
  %3 = mpmd.assign {origin = "inferred_unused"} %2#0 : (!T) -> !P0
  %4 = mpmd.assign {origin = "inferred_unused"} %2#1 : (!T) -> !P0
  return
}

// ----- Broadcast and reduce
// Each occurrence of an operand gets its pair.
func.func @main(%a: !T {src=<"p1", "p2">}, %b: !T) -> !P2 attributes {topology = #topo} {
  %0 = mpmd.broadcast {use=<"p2">, src=<"p0">} %a : !T
  %1 = mpmd.reduce<add> {use=<"p0">} %a, %b, %b : (!T, !T, !T) -> !T
  %2 = stablehlo.add %0, %1 {use=<"p2">} : !T
  %3 = mpmd.assign %2 : (!T) -> !P2
  return %3 : !P2
}
// =>
func.func @main(%arg0: !T {src=<"p1", "p2">}, %arg1: !T) -> !P2 attributes {topology = #topo} {
  %0 = mpmd.assign {origin = "broadcast"} %arg0 : (!T) -> !P2
  %1 = mpmd.unassign %0 : (!P2) -> !T
  %2 = mpmd.broadcast {src=<"p0">} %1 : !T
  %3 = mpmd.assign {origin = "reduce"} %arg0 : (!T) -> !P1
  %4 = mpmd.unassign %3 : (!P1) -> !T
  %5 = mpmd.assign {origin = "reduce"} %arg1 : (!T) -> !P0
  %6 = mpmd.unassign %5 : (!P0) -> !T
  %7 = mpmd.assign {origin = "reduce"} %arg1 : (!T) -> !P0
  %8 = mpmd.unassign %7 : (!P0) -> !T
  %9 = mpmd.reduce<add> %4, %6, %8 : (!T, !T, !T) -> !T
  %10 = stablehlo.add %2, %9 : !T
  %11 = mpmd.assign %10 : (!T) -> !P2
  return %11 : !P2
}

// ----- Ops without tensor results
// On every mesh in pipeline order, pure ones on one; tokens are passed on.
func.func @main(%a: !T {src=<"p2", "p1">}) -> !P1 attributes {topology = #topo} {
  sdy.sharding_group %a group_id=0 {src=<"p2", "p1">} : !T
  %0 = stablehlo.create_token {src=<"p2", "p1">} : !stablehlo.token
  %1 = stablehlo.custom_call @f(%a, %0) {has_side_effect = true} : (!T, !stablehlo.token) -> !T
  %2 = mpmd.assign %1 : (!T) -> !P1
  return %2 : !P1
}
// =>
func.func @main(%arg0: !T {src=<"p2", "p1">}) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P1
  mpmd.fragment<mesh="p1", origin=[]> (%0)
      {mpmd.inferred_by = ["infer_mesh_wrap_resultless_ops"]} (%arg1: !T) {
    sdy.sharding_group %arg1 group_id=0 : !T
    mpmd.return 
  } : (!P1) -> ()
  %1 = mpmd.assign %arg0 : (!T) -> !P2
  mpmd.fragment<mesh="p2", origin=[]> (%1)
      {mpmd.inferred_by = ["infer_mesh_wrap_resultless_ops"]} (%arg1: !T) {
    sdy.sharding_group %arg1 group_id=0 : !T
    mpmd.return 
  } : (!P2) -> ()
  %2 = mpmd.fragment<mesh="p1", origin=[]> ()
      {mpmd.inferred_by = ["infer_mesh_wrap_resultless_ops"]} () {
    %5 = stablehlo.create_token : !stablehlo.token
    mpmd.return %5 : !stablehlo.token
  } : () -> !stablehlo.token
  %3 = stablehlo.custom_call @f(%arg0, %2) {has_side_effect = true} : (!T, !stablehlo.token)
      -> !T
  %4 = mpmd.assign %3 : (!T) -> !P1
  return %4 : !P1
}

// ----- Callees
// Unused arguments and results get a use set.
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0:3 = mpmd.call @f(%a, %a, %a) : (!T, !T, !T) -> (!T, !T, !T)
  %1 = stablehlo.abs %0#0 : !T
  return %1 : !T
}
func.func private @f(%a: !T {use=<"p1">, src=<"p1">},
    %b: !T {src=<"p2">},
    %c: !T {use=<"p0">}) -> (!T, !T {use=<"p0">}, !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {use=<"p1">, src=<"p2">} : !T
  %1 = stablehlo.abs %a : !T
  return %0, %0, %1 : !T, !T, !T
}
// =>
func.func @main(%arg0: !T) -> !P0 attributes {topology = #topo} {
  %0:3 = mpmd.call @f(%arg0, %arg0, %arg0) : (!T, !T, !T) -> (!T, !T, !T)
  %1 = stablehlo.abs %0#0 : !T
  %2 = mpmd.assign {origin = "inferred_out"} %1 : (!T) -> !P0
  return %2 : !P0
}
func.func private @f(%arg0: !T {src=<"p1">},
    %arg1: !T {src=<"p2">, use=<"p2"["inferred_unused_callee_in"]>},
    %arg2: !T {use=<"p0"["inferred_unused_callee_in"]>})
    -> (!T, !T {use=<"p2"["inferred_unused_callee_out"]>},
    !T {use=<"p0"["inferred_unused_callee_out"]>}) attributes {topology = #topo} {
  %0 = stablehlo.abs %arg0 {src=<"p2">} : !T
  %1 = stablehlo.abs %arg0 : !T
  return %0, %0, %1 : !T, !T, !T
}

// ----- Operand of a broadcast without a mesh
// passes: mpmd-infer-mesh-assign-mesh-func-leaves
func.func @main(%a: !T {src=<>}) attributes {topology = #topo} {
  %0 = mpmd.broadcast %a : !T
  return
}
// error: operand 0 of the broadcast can be on no mesh

// ----- Unknown mesh
// passes: mpmd-infer-mesh-assign-mesh-func-leaves
func.func @main(%a: !T) attributes {topology = #topo} {
  sdy.sharding_group %a group_id=0 {src=<"p7">} : !T
  return
}
// error: "p7"

// ----- Unused and resultless ops fail at once
// passes: mpmd-infer-mesh-assign-mesh-func-leaves
func.func @main(%a: !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<>} : !T
  %1 = stablehlo.negate %a {src=<>} : !T
  sdy.sharding_group %a group_id=0 {src=<>} : !T
  return
}
// error: the unused 'stablehlo.abs'
// error: the unused 'stablehlo.negate'
// error: has no tensor result

// ----- Callee boundaries
// passes: mpmd-infer-mesh-assign-mesh-func-leaves{error-limit=2}
// The first bad argument and the first bad result of a function are reported.
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0:3 = mpmd.call @f(%a, %a) : (!T, !T) -> (!T, !T, !T)
  return %0#0 : !T
}
func.func private @f(%a: !T {src=<>}, %b: !T {src=<>}) -> (!T, !T, !T)
    attributes {topology = #topo} {
  %0 = stablehlo.constant {src=<>} dense<1.0> : !T
  %1 = stablehlo.constant dense<1.0> : !T
  return %1, %0, %0 : !T, !T, !T
}
// error: argument 0 of @f, which @f does not use,
// error: output 1 of @f, which no call uses,

// ----- Error limit zero
// passes: mpmd-infer-mesh-assign-mesh-func-leaves{error-limit=0}
func.func @main() { return }
// error: error-limit is a positive number, or -1

// ----- Outputs without a mesh fail at the limit (1)
// passes: mpmd-infer-mesh-assign-mesh-func-leaves{error-limit=1}
// passes: mpmd-infer-mesh-assign-mesh-func-leaves{error-limit=3}
// Every one is reported, but only `error-limit` of them make the pass fail.
func.func @main(%a: !T {src=<>}) -> (!T, !T {jax.result_info = "loss"}, !T)
    attributes {topology = #topo} {
  return %a, %a, %a : !T, !T, !T
}
// error: output 0 of @main can be on no mesh: it combines values of different
// error: output 1 (loss) of @main can be on no mesh ... mpmd_infer_transfers
// error: output 2 of @main can be on no mesh: it combines values of different

// ----- Outputs without a mesh fail at the limit (2)
// passes: mpmd-infer-mesh-assign-mesh-func-leaves{error-limit=4}
// passes: mpmd-infer-mesh-assign-mesh-func-leaves{error-limit=-1}
func.func @main(%a: !T {src=<>}) -> (!T, !T {jax.result_info = "loss"}, !T)
    attributes {topology = #topo} {
  return %a, %a, %a : !T, !T, !T
}
// error, but no failure: output 0 of @main can be on no mesh: it combines values of different
// error, but no failure: output 1 (loss) of @main can be on no mesh ... mpmd_infer_transfers
// error, but no failure: output 2 of @main can be on no mesh: it combines values of different
