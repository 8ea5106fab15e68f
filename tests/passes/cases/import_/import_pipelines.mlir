// passes: mpmd-infer-mesh-pipeline{infer-transfers=true}
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>

// ----- Loop with a value on one mesh
// The reference cannot analyze a loop twice and aborts.
func.func @main(%a: !T) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.for (%a) {iterations = 4 : ui32} (%x: !T, %i: tensor<ui32>) {
    %2 = stablehlo.add %x, %x : !T
    mpmd.return %2 : !T
  } : !T
  %1 = mpmd.assign {origin = "s"} %0 : (!T) -> !P1
  return %1 : !P1
}
// =>
func.func @main(%arg0: !P1) -> !P1 attributes {topology = #topo} {
  %0 = mpmd.for (%arg0) {iterations = 4 : ui32} (%arg1: !P1, %index: tensor<ui32>) {
    %1 = mpmd.fragment<mesh="p1", origin=[]> (%arg1) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg2: !T) {
      %2 = stablehlo.add %arg2, %arg2 : !T
      mpmd.return %2 : !T
    } : (!P1) -> !P1
    mpmd.return %1 : !P1
  } : !P1
  return %0 : !P1
}

// ----- Unassigned names stop the import
// passes: mpmd-import-pipeline{name-to-mesh-assignment=first@m1}
// From names to fragments.
module {
  func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<f32>) attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %cb = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %x2 = stablehlo.multiply %x, %cb : tensor<4x4xf32>
    %1 = mpmd.named_computation<"first"> (%w0, %x2) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %10 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %10 : tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = mpmd.named_computation<"second"> (%w1, %1) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %10 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %10 : tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    return %2, %3 : tensor<4x4xf32>, tensor<f32>
  }
}
// error: named computation 'second' is not assigned to a mesh

// ----- After a fragment
// passes: mpmd-infer-mesh-pipeline
// What follows a fragment is on its mesh; unused inputs are on the first mesh.
func.func @main(%a: !T, %b: !T, %c: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : !T
  %1 = mpmd.assign {origin = "s"} %0 : (!T) -> !P1
  %2 = mpmd.fragment<mesh="p1", origin=["s"]> (%1) (%x: !T) {
    %9 = stablehlo.sine %x : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  %3 = mpmd.unassign {origin = "s"} %2 : (!P1) -> !T
  %4 = stablehlo.multiply %3, %a : !T
  return %4, %b : !T, !T
}
// =>
func.func @main(%a: !P1, %b: !P1, %c: !P0) -> (!P1, !P1) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p1", origin=["s"]> (%a, %b) (%x: !T, %y: !T) {
    %8 = stablehlo.add %x, %y : !T
    %9 = stablehlo.sine %8 : !T
    mpmd.return %9 : !T
  } : (!P1, !P1) -> !P1
  %1 = mpmd.fragment<mesh="p1", origin=[]> (%0, %a) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%x: !T, %y: !T) {
    %9 = stablehlo.multiply %x, %y : !T
    mpmd.return %9 : !T
  } : (!P1, !P1) -> !P1
  return %1, %b : !P1, !P1
}

// ----- A callee on two meshes
// passes: mpmd-infer-mesh-pipeline
// A callee whose results are needed on two meshes returns them twice.
func.func public @main(%a: !T, %b: !T) -> (!P0, !P1, !T) attributes {topology = #topo} {
  %0 = mpmd.call @g(%a) {call_counter = 0 : ui32} : (!T) -> !T
  %1 = mpmd.assign %0 : (!T) -> !P0
  %2 = mpmd.call @g(%b) {call_counter = 1 : ui32} : (!T) -> !T
  %3 = mpmd.assign %2 : (!T) -> !P1
  %4 = mpmd.broadcast %2 : !T
  return %1, %3, %4 : !P0, !P1, !T
}
func.func private @g(%x: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.tanh %x : !T
  return %0 : !T
}
// =>
func.func public @main(%a: !P0, %b: !P0) -> (!P0, !P1, !P0) attributes {topology = #topo} {
  %0 = mpmd.transfer %a : (!P0) -> !P1
  %1:2 = mpmd.call @g(%a, %0) {call_counter = 0 : ui32} : (!P0, !P1) -> (!P1, !P0)
  %2 = mpmd.transfer %b : (!P0) -> !P1
  %3:2 = mpmd.call @g(%b, %2) {call_counter = 1 : ui32} : (!P0, !P1) -> (!P1, !P0)
  return %1#1, %3#0, %3#1 : !P0, !P1, !P0
}
func.func private @g(%x: !P0 {mpmd.copies = array<i64: 1>}, %y: !P1) -> (!P1 {mpmd.copies = array<i64: 1>}, !P0) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=[]> (%x) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%z: !T) {
    %9 = stablehlo.tanh %z : !T
    mpmd.return %9 : !T
  } : (!P0) -> !P0
  %1 = mpmd.fragment<mesh="p1", origin=[]> (%y) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%z: !T) {
    %9 = stablehlo.tanh %z : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  return %1, %0 : !P1, !P0
}

// ----- A reduction over meshes
// passes: mpmd-infer-mesh-pipeline{infer-transfers=true}
// passes: mpmd-infer-mesh-pipeline{infer-cross-mesh-reductions=true infer-transfers=true}
// A reduction of values on two meshes is reduced per mesh, then where it is needed.
func.func @main(%a: !P0, %b: !P1) -> !T attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["s0"]> (%a) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P0) -> !P0
  %g = mpmd.fragment<mesh="p1", origin=["s1"]> (%b) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  %u = mpmd.unassign {origin = "s0"} %f : (!P0) -> !T
  %v = mpmd.unassign {origin = "s1"} %g : (!P1) -> !T
  %0 = stablehlo.maximum %u, %v : !T
  %1 = stablehlo.maximum %v, %0 : !T
  %2 = mpmd.assign {origin = "s2"} %1 : (!T) -> !P2
  %3 = mpmd.fragment<mesh="p2", origin=["s2"]> (%2) (%x: !T) {
    %9 = stablehlo.sine %x : !T
    mpmd.return %9 : !T
  } : (!P2) -> !P2
  %4 = mpmd.unassign {origin = "s2"} %3 : (!P2) -> !T
  return %4 : !T
}
// =>
func.func @main(%a: !P0, %b: !P1) -> !P2 attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="p0", origin=["s0"]> (%a) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P0) -> !P0
  %g = mpmd.fragment<mesh="p1", origin=["s1"]> (%b) (%x: !T) {
    %9 = stablehlo.abs %x : !T
    mpmd.return %9 : !T
  } : (!P1) -> !P1
  %0 = mpmd.fragment<mesh="p1", origin=[]> (%g, %g) {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%x: !T, %y: !T) {
    %9 = stablehlo.maximum %x, %y : !T
    mpmd.return %9 : !T
  } : (!P1, !P1) -> !P1
  %1 = mpmd.transfer %f : (!P0) -> !P2
  %2 = mpmd.transfer %0 : (!P1) -> !P2
  %3 = mpmd.fragment<mesh="p2", origin=[]> (%1, %2) {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%x: !T, %y: !T) {
    %9 = stablehlo.maximum %x, %y : !T
    mpmd.return %9 : !T
  } : (!P2, !P2) -> !P2
  %4 = mpmd.fragment<mesh="p2", origin=["s2"]> (%3) (%x: !T) {
    %9 = stablehlo.sine %x : !T
    mpmd.return %9 : !T
  } : (!P2) -> !P2
  return %4 : !P2
}

// ----- From names to fragments
// passes: mpmd-import-pipeline{name-to-mesh-assignment=first@m1,second@m2}
// From names to fragments.
module {
  func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<f32>) attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %cb = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %x2 = stablehlo.multiply %x, %cb : tensor<4x4xf32>
    %1 = mpmd.named_computation<"first"> (%w0, %x2) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %10 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %10 : tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = mpmd.named_computation<"second"> (%w1, %1) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %10 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %10 : tensor<4x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    return %2, %3 : tensor<4x4xf32>, tensor<f32>
  }
}
// =>
module {
  func.func public @main(%w0: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>, %w1: !mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, %x: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>) -> (!mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m2", tensor<f32>>) attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
    %0 = mpmd.fragment<mesh="m1", origin=["first"]> (%w0, %x) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %cst = stablehlo.constant dense<2.0> : tensor<4x4xf32>
      %3 = stablehlo.multiply %b, %cst : tensor<4x4xf32>
      %4 = stablehlo.dot_general %a, %3, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      mpmd.return %4 : tensor<4x4xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>
    %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m2", tensor<4x4xf32>>
    %2:2 = mpmd.fragment<mesh="m2", origin=["second"]> (%w1, %1) (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
      %3 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %cst = stablehlo.constant dense<0.0> : tensor<f32>
      %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
      mpmd.return %3, %4 : tensor<4x4xf32>, tensor<f32>
    } : (!mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m2", tensor<4x4xf32>>) -> (!mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m2", tensor<f32>>)
    return %2#0, %2#1 : !mpmd.mesh_tensor<"m2", tensor<4x4xf32>>, !mpmd.mesh_tensor<"m2", tensor<f32>>
  }
}
