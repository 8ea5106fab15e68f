// passes: mpmd-split-concatenations
!a = !mpmd.mesh_tensor<"a", tensor<2x3xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>

// ----- A part of one mesh
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<6xf32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.slice %x [0:6] : (tensor<10xf32>) -> tensor<6xf32>
  return %0 : tensor<6xf32>
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<f32>) -> tensor<6xf32> attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<2x3xf32>
  %1 = stablehlo.reshape %0 : (tensor<2x3xf32>) -> tensor<6xf32>
  %2 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<6xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<6xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<6xf32>
  %4 = stablehlo.add %3, %cst : tensor<6xf32>
  return %4 : tensor<6xf32>
}

// ----- Every second value of one mesh
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<2xf32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.slice %x [7:10:2] : (tensor<10xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<f32>) -> tensor<2xf32> attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<4xf32>
  %3 = stablehlo.add %2, %cst : tensor<4xf32>
  %4 = stablehlo.slice %3 [1:4:2] : (tensor<4xf32>) -> tensor<2xf32>
  return %4 : tensor<2xf32>
}

// ----- A part of both meshes needs all in one place
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<2xf32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.slice %x [5:7] : (tensor<10xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
// CHECK: stablehlo.concatenate

// ----- A sum
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<f32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<10xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<f32>) -> tensor<f32> attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<2x3xf32>
  %1 = stablehlo.reshape %0 : (tensor<2x3xf32>) -> tensor<6xf32>
  %2 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %3 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<6xf32>
  %4 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %5 = stablehlo.multiply %1, %3 : tensor<6xf32>
  %6 = stablehlo.multiply %2, %4 : tensor<4xf32>
  %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<6xf32>
  %cst_1 = stablehlo.constant dense<5.000000e-01> : tensor<4xf32>
  %7 = stablehlo.add %5, %cst_0 : tensor<6xf32>
  %8 = stablehlo.add %6, %cst_1 : tensor<4xf32>
  %9 = stablehlo.reduce(%7 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<6xf32>, tensor<f32>) -> tensor<f32>
  %10 = stablehlo.reduce(%8 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %11 = stablehlo.add %9, %10 : tensor<f32>
  return %11 : tensor<f32>
}

// ----- A sum with a start needs all in one place
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<f32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.reduce(%x init: %one) applies stablehlo.add across dimensions = [0] : (tensor<10xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
// CHECK: stablehlo.concatenate

// ----- An inner product
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<f32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<10xf32>, tensor<10xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<f32>) -> tensor<f32> attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<2x3xf32>
  %1 = stablehlo.reshape %0 : (tensor<2x3xf32>) -> tensor<6xf32>
  %2 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %3 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<6xf32>
  %4 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %5 = stablehlo.multiply %1, %3 : tensor<6xf32>
  %6 = stablehlo.multiply %2, %4 : tensor<4xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<6xf32>
  %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<4xf32>
  %7 = stablehlo.add %5, %cst : tensor<6xf32>
  %8 = stablehlo.add %6, %cst_0 : tensor<4xf32>
  %9 = stablehlo.dot_general %7, %7, contracting_dims = [0] x [0] : (tensor<6xf32>, tensor<6xf32>) -> tensor<f32>
  %10 = stablehlo.dot_general %8, %8, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %11 = stablehlo.add %9, %10 : tensor<f32>
  return %11 : tensor<f32>
}

// ----- An inner product with other numbers needs all in one place
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<f32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.dot_general %x, %many, contracting_dims = [0] x [0] : (tensor<10xf32>, tensor<10xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
// CHECK: stablehlo.concatenate

// ----- Other numbers are added needs all in one place
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<10xf32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.add %x, %many : tensor<10xf32>
  return %0 : tensor<10xf32>
}
// CHECK: stablehlo.concatenate

// ----- The order is turned needs all in one place
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> tensor<10xf32> attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
  %0 = stablehlo.reverse %x, dims = [0] : tensor<10xf32>
  return %0 : tensor<10xf32>
}
// CHECK: stablehlo.concatenate

// ----- A function without a body stays
// passes: mpmd-split-concatenations
// passes: mpmd-split-loops
// passes: mpmd-open-conditionals
func.func private @elsewhere(!a) -> !a attributes {topology = #meshes}
