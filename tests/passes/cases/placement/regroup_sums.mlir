// passes: mpmd-regroup-sums
!a = !mpmd.mesh_tensor<"a", tensor<8x8xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<8x8xf32>>
!a2 = !mpmd.mesh_tensor<"a", tensor<8x2xf32>>
!b2 = !mpmd.mesh_tensor<"b", tensor<8x2xf32>>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>

// ----- Products with thin matrices are summed on each mesh
// The gradients of both matrices of LoRA on a table that two meshes read, over two microbatches.
func.func public @main(%p: !a, %p1: !a, %q: !b, %q1: !b, %l: tensor<2x8xf32>, %r: tensor<8x2xf32>)
    -> (tensor<8x2xf32>, tensor<2x8xf32>) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> tensor<8x8xf32>
  %u1 = mpmd.unassign %p1 : (!a) -> tensor<8x8xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<8x8xf32>
  %v1 = mpmd.unassign %q1 : (!b) -> tensor<8x8xf32>
  %g = stablehlo.add %u, %v : tensor<8x8xf32>
  %h = stablehlo.add %u1, %v1 : tensor<8x8xf32>
  %0 = stablehlo.dot_general %g, %l, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<2x8xf32>) -> tensor<8x2xf32>
  %1 = stablehlo.dot_general %h, %l, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<2x8xf32>) -> tensor<8x2xf32>
  %2 = stablehlo.dot_general %g, %r, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %3 = stablehlo.dot_general %h, %r, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %4 = stablehlo.transpose %2, dims = [1, 0] : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %5 = stablehlo.transpose %3, dims = [1, 0] : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %6 = stablehlo.add %0, %1 : tensor<8x2xf32>
  %7 = stablehlo.add %4, %5 : tensor<2x8xf32>
  return %6, %7 : tensor<8x2xf32>, tensor<2x8xf32>
}
// =>
func.func public @main(%arg0: !a, %arg1: !a, %arg2: !b, %arg3: !b, %arg4: tensor<2x8xf32>, %arg5: tensor<8x2xf32>) -> (tensor<8x2xf32>, tensor<2x8xf32>) attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<8x8xf32>
  %1 = stablehlo.dot_general %0, %arg4, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<2x8xf32>) -> tensor<8x2xf32>
  %2 = stablehlo.dot_general %0, %arg5, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %4 = mpmd.unassign %arg1 : (!a) -> tensor<8x8xf32>
  %5 = stablehlo.dot_general %4, %arg4, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<2x8xf32>) -> tensor<8x2xf32>
  %6 = stablehlo.add %1, %5 : tensor<8x2xf32>
  %7 = stablehlo.dot_general %4, %arg5, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %8 = stablehlo.transpose %7, dims = [1, 0] : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %9 = stablehlo.add %3, %8 : tensor<2x8xf32>
  %10 = mpmd.unassign %arg2 : (!b) -> tensor<8x8xf32>
  %11 = stablehlo.dot_general %10, %arg4, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<2x8xf32>) -> tensor<8x2xf32>
  %12 = stablehlo.dot_general %10, %arg5, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %13 = stablehlo.transpose %12, dims = [1, 0] : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %14 = mpmd.unassign %arg3 : (!b) -> tensor<8x8xf32>
  %15 = stablehlo.dot_general %14, %arg4, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<2x8xf32>) -> tensor<8x2xf32>
  %16 = stablehlo.add %11, %15 : tensor<8x2xf32>
  %17 = stablehlo.add %6, %16 : tensor<8x2xf32>
  %18 = stablehlo.dot_general %14, %arg5, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %19 = stablehlo.transpose %18, dims = [1, 0] : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %20 = stablehlo.add %13, %19 : tensor<2x8xf32>
  %21 = stablehlo.add %9, %20 : tensor<2x8xf32>
  return %17, %21 : tensor<8x2xf32>, tensor<2x8xf32>
}

// ----- Products that are as large as what they are made of are not
func.func public @main(%p: !a2, %p1: !a2, %q: !b2, %q1: !b2, %l: tensor<2x2xf32>, %r: tensor<8x2xf32>)
    -> (tensor<8x2xf32>, tensor<2x2xf32>) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a2) -> tensor<8x2xf32>
  %u1 = mpmd.unassign %p1 : (!a2) -> tensor<8x2xf32>
  %v = mpmd.unassign %q : (!b2) -> tensor<8x2xf32>
  %v1 = mpmd.unassign %q1 : (!b2) -> tensor<8x2xf32>
  %g = stablehlo.add %u, %v : tensor<8x2xf32>
  %h = stablehlo.add %u1, %v1 : tensor<8x2xf32>
  %0 = stablehlo.dot_general %g, %l, contracting_dims = [1] x [1] : (tensor<8x2xf32>, tensor<2x2xf32>) -> tensor<8x2xf32>
  %1 = stablehlo.dot_general %h, %l, contracting_dims = [1] x [1] : (tensor<8x2xf32>, tensor<2x2xf32>) -> tensor<8x2xf32>
  %2 = stablehlo.dot_general %g, %r, contracting_dims = [0] x [0] : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<2x2xf32>
  %3 = stablehlo.dot_general %h, %r, contracting_dims = [0] x [0] : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<2x2xf32>
  %4 = stablehlo.transpose %2, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
  %5 = stablehlo.transpose %3, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
  %6 = stablehlo.add %0, %1 : tensor<8x2xf32>
  %7 = stablehlo.add %4, %5 : tensor<2x2xf32>
  return %6, %7 : tensor<8x2xf32>, tensor<2x2xf32>
}
