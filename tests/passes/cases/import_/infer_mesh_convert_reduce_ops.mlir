// passes: func.func(mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true})
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>

// ----- Ops inside of other ops stay
// The reference converts them, too, which no later step understands.
// passes: mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true}
func.func @main(%a: !T, %b: !T, %i: tensor<i32>) -> !T attributes {topology = #topo} {
  %0 = "stablehlo.case"(%i) ({
    %1 = stablehlo.add %a, %b {mpmd.reduce = #mpmd.reduction<add>} : !T
    stablehlo.return %1 : !T
  }) : (tensor<i32>) -> !T
  return %0 : !T
}

// ----- Only equal kinds are flattened
func.func @main(%a: !T, %b: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b {mpmd.reduce = #mpmd.reduction<add>} : !T
  %1 = stablehlo.maximum %0, %b {mpmd.reduce = #mpmd.reduction<max>, src=<"p1">,
      use=<"p0">} : !T
  %2 = stablehlo.add %a, %1 {mpmd.reduce = #mpmd.reduction<add>} : !T
  %3 = stablehlo.add %2, %0 {mpmd.reduce = #mpmd.reduction<add>} : !T
  %4 = stablehlo.add %3, %b : !T
  return %4, %2 : !T, !T
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = mpmd.reduce<add> %arg0, %arg1 : (!T, !T) -> !T
  %1 = mpmd.reduce<max> {src=<"p1">} %0, %arg1 : (!T, !T) -> !T
  %2 = mpmd.reduce<add> %arg0, %1 : (!T, !T) -> !T
  %3 = mpmd.reduce<add> %arg0, %1, %arg0, %arg1 : (!T, !T, !T, !T) -> !T
  %4 = stablehlo.add %3, %arg1 : !T
  return %4, %2 : !T, !T
}

// ----- Only what the user asked for
// Through ops with one operand; of the same kind only.
// passes: func.func(mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=false})
func.func @main(%a: !T, %b: !T) -> (!T, !T, !T) attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b {mpmd.reduce = #mpmd.reduction<add>} : !T
  %1 = stablehlo.maximum %0, %b {mpmd.reduce = #mpmd.reduction<max>} : !T
  %2 = stablehlo.maximum %1, %a {mpmd.reduce = #mpmd.reduction<max>} : !T
  %3 = stablehlo.abs %2 : !T
  %4 = stablehlo.negate %3 : !T
  %5 = mpmd.reduce<none> %4 : (!T) -> !T
  %6 = stablehlo.maximum %a, %b {mpmd.reduce = #mpmd.reduction<max>} : !T
  %7 = stablehlo.subtract %a, %b : !T
  %8 = mpmd.reduce<none> %7 : (!T) -> !T
  %9 = mpmd.reduce<none> %a : (!T) -> !T
  return %5, %6, %8 : !T, !T, !T
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!T, !T, !T) attributes {topology = #topo} {
  %0 = stablehlo.add %arg0, %arg1 {mpmd.reduce = #mpmd.reduction<add>} : !T
  %1 = mpmd.reduce<max> %0, %arg1, %arg0 : (!T, !T, !T) -> !T
  %2 = stablehlo.abs %1 : !T
  %3 = stablehlo.negate %2 : !T
  %4 = mpmd.reduce<none> %3 : (!T) -> !T
  %5 = stablehlo.maximum %arg0, %arg1 {mpmd.reduce = #mpmd.reduction<max>} : !T
  %6 = stablehlo.subtract %arg0, %arg1 : !T
  %7 = mpmd.reduce<none> %6 : (!T) -> !T
  %8 = mpmd.reduce<none> %arg0 : (!T) -> !T
  return %4, %5, %7 : !T, !T, !T
}

// ----- Concat reduce
// Operands become reshapes with the attributes of what produces them.
func.func @main(%a: tensor<1x6x2xf32>, %b: !T) -> !T attributes {topology = #topo} {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reshape %b {use=<"p0">, src=<"p1">} : (!T) -> tensor<1x6x2xf32>
  %1 = stablehlo.concatenate %a, %0, %0, dim = 0 {mpmd.reduce = #mpmd.reduction<add>}
      : (tensor<1x6x2xf32>, tensor<1x6x2xf32>, tensor<1x6x2xf32>) -> tensor<3x6x2xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0]
      {mpmd.reduce = #mpmd.reduction<add>, src=<"p1", "p2">} : (tensor<3x6x2xf32>,
      tensor<f32>) -> !T
  return %2 : !T
}
// =>
func.func @main(%arg0: tensor<1x6x2xf32>, %arg1: !T) -> !T attributes {topology = #topo} {
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reshape %arg1 {src=<"p1">, use=<"p0">} : (!T) -> tensor<1x6x2xf32>
  %1 = stablehlo.reshape %arg0 : (tensor<1x6x2xf32>) -> !T
  %2 = stablehlo.reshape %0 {src=<"p1">, use=<"p0">} : (tensor<1x6x2xf32>) -> !T
  %3 = stablehlo.reshape %0 {src=<"p1">, use=<"p0">} : (tensor<1x6x2xf32>) -> !T
  %4 = mpmd.reduce<add> {src=<"p1", "p2">} %1, %2, %3 : (!T, !T, !T) -> !T
  return %4 : !T
}

// ----- An initial value that does not matter is left out
// passes: mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true keep-initial-value}
func.func @main(%a: tensor<1x6x2xf32>, %b: tensor<1x6x2xf32>) -> !T attributes {topology = #topo} {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.concatenate %a, %b, dim = 0 {mpmd.reduce = #mpmd.reduction<add>}
      : (tensor<1x6x2xf32>, tensor<1x6x2xf32>) -> tensor<2x6x2xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0]
      {mpmd.reduce = #mpmd.reduction<add>} : (tensor<2x6x2xf32>, tensor<f32>) -> !T
  return %2 : !T
}
// =>
func.func @main(%arg0: tensor<1x6x2xf32>, %arg1: tensor<1x6x2xf32>) -> tensor<6x2xf32> attributes {topology = #topo} {
  %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %0 = stablehlo.reshape %arg0 : (tensor<1x6x2xf32>) -> tensor<6x2xf32>
  %1 = stablehlo.reshape %arg1 : (tensor<1x6x2xf32>) -> tensor<6x2xf32>
  %2 = mpmd.reduce<add> %0, %1 : (tensor<6x2xf32>, tensor<6x2xf32>) -> tensor<6x2xf32>
  return %2 : tensor<6x2xf32>
}

// ----- An initial value that matters is kept on request
// passes: mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true keep-initial-value}
// The reference forgets it.
func.func @main(%a: tensor<1x6x2xf32>, %b: tensor<1x6x2xf32>) -> !T attributes {topology = #topo} {
  %z = stablehlo.constant dense<5.0> : tensor<f32>
  %1 = stablehlo.concatenate %a, %b, dim = 0 {mpmd.reduce = #mpmd.reduction<add>}
      : (tensor<1x6x2xf32>, tensor<1x6x2xf32>) -> tensor<2x6x2xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0]
      {mpmd.reduce = #mpmd.reduction<add>} : (tensor<2x6x2xf32>, tensor<f32>) -> !T
  return %2 : !T
}
// =>
func.func @main(%arg0: tensor<1x6x2xf32>, %arg1: tensor<1x6x2xf32>) -> tensor<6x2xf32> attributes {topology = #topo} {
  %cst = stablehlo.constant dense<5.000000e+00> : tensor<f32>
  %0 = stablehlo.reshape %arg0 : (tensor<1x6x2xf32>) -> tensor<6x2xf32>
  %1 = stablehlo.reshape %arg1 : (tensor<1x6x2xf32>) -> tensor<6x2xf32>
  %2 = mpmd.reduce<add> %0, %1 : (tensor<6x2xf32>, tensor<6x2xf32>) -> tensor<6x2xf32>
  %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<6x2xf32>
  %4 = stablehlo.add %2, %3 : tensor<6x2xf32>
  return %4 : tensor<6x2xf32>
}
