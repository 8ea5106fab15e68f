// passes: mpmd-infer-mesh-validate-src-set-not-empty
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>

// ----- Sets that are fine
func.func @main(%a: !T {src=<"p0">}, %b: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<"p0", "p1">} : !T
  %1 = stablehlo.add %a, %b : !T
  return %0, %1 : !T, !T
}

// ----- Reductions have another way out
// passes: mpmd-infer-mesh-populate-use-set,mpmd-infer-mesh-populate-src-set,mpmd-infer-mesh-validate-src-set-not-empty
func.func @main(%a: !P0, %b: !P1) -> (!T, !T) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["left"]> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %g = mpmd.fragment<mesh="p1", origin=["right"]> (%b) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  %u = mpmd.unassign {origin = "left"} %f : (!P0) -> !T
  %v = mpmd.unassign {origin = "right"} %g : (!P1) -> !T
  %0 = stablehlo.add %u, %v : !T
  %1 = stablehlo.add %0, %u : !T
  %2 = stablehlo.add %u, %v : !T
  %3 = mpmd.assign {origin = "after"} %1 : (!T) -> !P1
  return %0, %2 : !T, !T
}
// error: this reduction combines values of different meshes ... mpmd_infer_cross_mesh_reductions
// error: this reduction combines values of different meshes, and nothing says that it

// ----- Converted reductions are fine
// passes: mpmd-infer-mesh-populate-use-set,mpmd-infer-mesh-populate-src-set,mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true},mpmd-infer-mesh-validate-src-set-not-empty
func.func @main(%a: !P0, %b: !P1) -> (!T, !T) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["left"]> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %g = mpmd.fragment<mesh="p1", origin=["right"]> (%b) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  %u = mpmd.unassign {origin = "left"} %f : (!P0) -> !T
  %v = mpmd.unassign {origin = "right"} %g : (!P1) -> !T
  %0 = stablehlo.add %u, %v : !T
  %1 = stablehlo.add %0, %u : !T
  %2 = stablehlo.add %u, %v : !T
  %3 = mpmd.assign {origin = "after"} %1 : (!T) -> !P1
  return %0, %2 : !T, !T
}
// fine

// ----- Arguments of callees
// Reported unless a caller's operand is itself without a mesh.
func.func @main(%a: !T {src=<"p0">}, %b: !T {src=<"p1">}, %c: !T) -> (!T, !T)
    attributes {topology = #topo} {
  %0 = mpmd.call @shardy_mpmdlayer(%a, %c) : (!T, !T) -> !T
  %1 = stablehlo.divide %a, %b {src=<>} : !T
  %2 = mpmd.call @shardy_mpmdlayer(%b, %1) : (!T, !T) -> !T
  return %0, %2 : !T, !T
}
func.func private @shardy_mpmdlayer(%x: !T {src=<>, use=<"p2"["s"]>}, %y: !T {src=<>}) -> !T
    attributes {topology = #topo} {
  %0 = mpmd.assign {origin = "s", use=<"p2"["s"]>} %x : (!T) -> !P2
  return %y : !T
}
// error: no mesh has all operands of this op, and nothing says where it should
// error: argument 0 of @layer can be on no mesh: its 2 calls ... call of @layer: available on mesh "p0"; from ... input 1 of @main ... the argument is needed on mesh "p2" by

// ----- Limit (1)
// passes: mpmd-infer-mesh-validate-src-set-not-empty{error-limit=1}
func.func @main(%a: !T, %b: !T {src=<>}) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<>} : !T
  %1 = stablehlo.abs %a {src=<>} : !T
  return
}
// error: no mesh has all operands of this op, and nothing says where it should

// ----- Limit (2)
// passes: mpmd-infer-mesh-validate-src-set-not-empty{error-limit=2}
func.func @main(%a: !T, %b: !T {src=<>}) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<>} : !T
  %1 = stablehlo.abs %a {src=<>} : !T
  return
}
// error: no mesh has all operands of this op, and nothing says where it should
// error: no mesh has all operands of this op, and nothing says where it should

// ----- Limit (3)
// passes: mpmd-infer-mesh-validate-src-set-not-empty{error-limit=-1}
func.func @main(%a: !T, %b: !T {src=<>}) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<>} : !T
  %1 = stablehlo.abs %a {src=<>} : !T
  return
}
// error: no mesh has all operands of this op, and nothing says where it should
// error: no mesh has all operands of this op, and nothing says where it should
// error: argument 1 of @main can be on no mesh: its 0 calls pass values that have no mesh in

// ----- Limit zero
// passes: mpmd-infer-mesh-validate-src-set-not-empty{error-limit=0}
func.func @main() { return }
// error: error-limit

// ----- The first op of a chain of conflicts is reported
// passes: mpmd-infer-mesh-populate-use-set,mpmd-infer-mesh-populate-src-set,mpmd-infer-mesh-validate-src-set-not-empty
func.func @main(%a: !P0, %b: !P1) -> (!T, !T) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["left"]> (%a) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %g = mpmd.fragment<mesh="p1", origin=["right"]> (%b) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  %u = mpmd.unassign {origin = "left"} %f : (!P0) -> !T
  %v = mpmd.unassign {origin = "right"} %g : (!P1) -> !T
  %0 = stablehlo.divide %u, %v : !T
  %1 = stablehlo.divide %0, %u : !T
  %2 = stablehlo.divide %u, %v : !T
  %3 = mpmd.assign {origin = "after"} %1 : (!T) -> !P1
  return %0, %2 : !T, !T
}
// error: no mesh has all operands of this op, and nothing says where it should run: 'stablehlo.divide' operand 0 is available on mesh "p0"; it comes from - the result of named computation "left" on "p0" because of named computation or tensor "left" operand 1 is available on mesh "p1"; it comes from - the result of named computation "right" on "p1" because of named computation or tensor "right" the result is needed on mesh "p1" by - output 0 of @main - needed on "p1" because of named computation or tensor "after" ways out: - put the op into a named computation (or behind a named tensor of the operand to move) that is assigned to the mesh where it should run; its operands are then transferred there - let values move wherever needed: set mpmd_infer_transfers in the partitioning options
// error: no mesh has all operands of this op, and nothing says where it should run: 'stablehlo.divide'
