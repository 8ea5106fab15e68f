// passes: mpmd-propagate-with-chlo
#topo = #mpmd.topology<<"m" : <["x"=2, "y"=2]>>>

// ----- An op of elements
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a0: !mpmd.mesh_tensor<"m", tensor<8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})
    -> !mpmd.mesh_tensor<"m", tensor<8x4xf32>> attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="m", origin=["f"]> (%a0)
      (%0: tensor<8x4xf32>) {
    %r = "chlo.erf"(%0)
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
    mpmd.return %r : tensor<8x4xf32>
  } : (!mpmd.mesh_tensor<"m", tensor<8x4xf32>>) -> !mpmd.mesh_tensor<"m", tensor<8x4xf32>>
  return %f : !mpmd.mesh_tensor<"m", tensor<8x4xf32>>
}
// CHECK: @main(%arg0: !mpmd.mesh_tensor<"m", tensor<8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> (!mpmd.mesh_tensor<"m", tensor<8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})
// CHECK-NOT: sharding_rule

// ----- The values of the axis that is sorted stay together
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a0: !mpmd.mesh_tensor<"m", tensor<8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>})
    -> (!mpmd.mesh_tensor<"m", tensor<8x2xf32>>, !mpmd.mesh_tensor<"m", tensor<8x2xi32>>) attributes {topology = #topo} {
  %f:2 = mpmd.fragment<mesh="m", origin=["f"]> (%a0)
      (%0: tensor<8x4xf32>) {
    %r:2 = "chlo.top_k"(%0) <{k = 2 : i64}>
        : (tensor<8x4xf32>) -> (tensor<8x2xf32>, tensor<8x2xi32>)
    mpmd.return %r#0, %r#1 : tensor<8x2xf32>, tensor<8x2xi32>
  } : (!mpmd.mesh_tensor<"m", tensor<8x4xf32>>) -> (!mpmd.mesh_tensor<"m", tensor<8x2xf32>>, !mpmd.mesh_tensor<"m", tensor<8x2xi32>>)
  return %f#0, %f#1 : !mpmd.mesh_tensor<"m", tensor<8x2xf32>>, !mpmd.mesh_tensor<"m", tensor<8x2xi32>>
}
// CHECK: @main(%arg0: !mpmd.mesh_tensor<"m", tensor<8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (!mpmd.mesh_tensor<"m", tensor<8x2xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, !mpmd.mesh_tensor<"m", tensor<8x2xi32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
// CHECK-NOT: sharding_rule

// ----- Rows and features of a ragged product
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a0: !mpmd.mesh_tensor<"m", tensor<2x8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x"}, {?}]>}, %a1: !mpmd.mesh_tensor<"m", tensor<3x2x4x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}, {?}, {"y"}]>}, %a2: !mpmd.mesh_tensor<"m", tensor<3xi32>>)
    -> !mpmd.mesh_tensor<"m", tensor<2x8x6xf32>> attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="m", origin=["f"]> (%a0, %a1, %a2)
      (%0: tensor<2x8x4xf32>, %1: tensor<3x2x4x6xf32>, %2: tensor<3xi32>) {
    %r = "chlo.ragged_dot"(%0, %1, %2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [1], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2], lhs_ragged_dimensions = [1], rhs_group_dimensions = [0]>}>
        : (tensor<2x8x4xf32>, tensor<3x2x4x6xf32>, tensor<3xi32>) -> tensor<2x8x6xf32>
    mpmd.return %r : tensor<2x8x6xf32>
  } : (!mpmd.mesh_tensor<"m", tensor<2x8x4xf32>>, !mpmd.mesh_tensor<"m", tensor<3x2x4x6xf32>>, !mpmd.mesh_tensor<"m", tensor<3xi32>>) -> !mpmd.mesh_tensor<"m", tensor<2x8x6xf32>>
  return %f : !mpmd.mesh_tensor<"m", tensor<2x8x6xf32>>
}
// CHECK: @main(%arg0: !mpmd.mesh_tensor<"m", tensor<2x8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}, %arg1: !mpmd.mesh_tensor<"m", tensor<3x2x4x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {"y"}]>}, %arg2: !mpmd.mesh_tensor<"m", tensor<3xi32>>) -> (!mpmd.mesh_tensor<"m", tensor<2x8x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {"y"}]>})
// CHECK-NOT: sharding_rule

// ----- Batches and what is summed over of a ragged product
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a0: !mpmd.mesh_tensor<"m", tensor<2x8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}, {"y"}]>}, %a1: !mpmd.mesh_tensor<"m", tensor<3x2x4x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}, {?}, {?}]>}, %a2: !mpmd.mesh_tensor<"m", tensor<3xi32>>)
    -> !mpmd.mesh_tensor<"m", tensor<2x8x6xf32>> attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="m", origin=["f"]> (%a0, %a1, %a2)
      (%0: tensor<2x8x4xf32>, %1: tensor<3x2x4x6xf32>, %2: tensor<3xi32>) {
    %r = "chlo.ragged_dot"(%0, %1, %2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [1], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2], lhs_ragged_dimensions = [1], rhs_group_dimensions = [0]>}>
        : (tensor<2x8x4xf32>, tensor<3x2x4x6xf32>, tensor<3xi32>) -> tensor<2x8x6xf32>
    mpmd.return %r : tensor<2x8x6xf32>
  } : (!mpmd.mesh_tensor<"m", tensor<2x8x4xf32>>, !mpmd.mesh_tensor<"m", tensor<3x2x4x6xf32>>, !mpmd.mesh_tensor<"m", tensor<3xi32>>) -> !mpmd.mesh_tensor<"m", tensor<2x8x6xf32>>
  return %f : !mpmd.mesh_tensor<"m", tensor<2x8x6xf32>>
}
// CHECK: @main(%arg0: !mpmd.mesh_tensor<"m", tensor<2x8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}, %arg1: !mpmd.mesh_tensor<"m", tensor<3x2x4x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {"y"}, {}]>}, %arg2: !mpmd.mesh_tensor<"m", tensor<3xi32>>) -> (!mpmd.mesh_tensor<"m", tensor<2x8x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>})
// CHECK-NOT: sharding_rule

// ----- Features of a ragged product that sums over groups
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a0: !mpmd.mesh_tensor<"m", tensor<8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x"}]>}, %a1: !mpmd.mesh_tensor<"m", tensor<8x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y"}]>}, %a2: !mpmd.mesh_tensor<"m", tensor<3xi32>>)
    -> !mpmd.mesh_tensor<"m", tensor<3x4x6xf32>> attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="m", origin=["f"]> (%a0, %a1, %a2)
      (%0: tensor<8x4xf32>, %1: tensor<8x6xf32>, %2: tensor<3xi32>) {
    %r = "chlo.ragged_dot"(%0, %1, %2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}>
        : (tensor<8x4xf32>, tensor<8x6xf32>, tensor<3xi32>) -> tensor<3x4x6xf32>
    mpmd.return %r : tensor<3x4x6xf32>
  } : (!mpmd.mesh_tensor<"m", tensor<8x4xf32>>, !mpmd.mesh_tensor<"m", tensor<8x6xf32>>, !mpmd.mesh_tensor<"m", tensor<3xi32>>) -> !mpmd.mesh_tensor<"m", tensor<3x4x6xf32>>
  return %f : !mpmd.mesh_tensor<"m", tensor<3x4x6xf32>>
}
// CHECK: @main(%arg0: !mpmd.mesh_tensor<"m", tensor<8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: !mpmd.mesh_tensor<"m", tensor<8x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, %arg2: !mpmd.mesh_tensor<"m", tensor<3xi32>>) -> (!mpmd.mesh_tensor<"m", tensor<3x4x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {"y"}]>})
// CHECK-NOT: sharding_rule

// ----- Batches with groups of a ragged product
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a0: !mpmd.mesh_tensor<"m", tensor<4x8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {?}]>}, %a1: !mpmd.mesh_tensor<"m", tensor<4x4x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}, {?}]>}, %a2: !mpmd.mesh_tensor<"m", tensor<3xi32>>)
    -> !mpmd.mesh_tensor<"m", tensor<4x8x6xf32>> attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="m", origin=["f"]> (%a0, %a1, %a2)
      (%0: tensor<4x8x4xf32>, %1: tensor<4x4x6xf32>, %2: tensor<3xi32>) {
    %r = "chlo.ragged_dot"(%0, %1, %2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0]>}>
        : (tensor<4x8x4xf32>, tensor<4x4x6xf32>, tensor<3xi32>) -> tensor<4x8x6xf32>
    mpmd.return %r : tensor<4x8x6xf32>
  } : (!mpmd.mesh_tensor<"m", tensor<4x8x4xf32>>, !mpmd.mesh_tensor<"m", tensor<4x4x6xf32>>, !mpmd.mesh_tensor<"m", tensor<3xi32>>) -> !mpmd.mesh_tensor<"m", tensor<4x8x6xf32>>
  return %f : !mpmd.mesh_tensor<"m", tensor<4x8x6xf32>>
}
// CHECK: @main(%arg0: !mpmd.mesh_tensor<"m", tensor<4x8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}]>}, %arg1: !mpmd.mesh_tensor<"m", tensor<4x4x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}, %arg2: !mpmd.mesh_tensor<"m", tensor<3xi32>>) -> (!mpmd.mesh_tensor<"m", tensor<4x8x6xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}]>})
// CHECK-NOT: sharding_rule
