// passes: inline{default-pipeline=canonicalize max-iterations=4}

// ----- Constants of callees in front stay there
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = func.call @g(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.constant dense<1.0> : tensor<4xf32>
  %1 = stablehlo.constant dense<2.0> : tensor<4xf32>
  %2 = stablehlo.clamp %0, %a, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
func.func private @g(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.constant dense<3.0> : tensor<4xf32>
  %1 = stablehlo.constant dense<4.0> : tensor<4xf32>
  %2 = stablehlo.clamp %0, %a, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
// =>
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.constant dense<4.0> : tensor<4xf32>
  %1 = stablehlo.constant dense<3.0> : tensor<4xf32>
  %2 = stablehlo.constant dense<1.0> : tensor<4xf32>
  %3 = stablehlo.constant dense<2.0> : tensor<4xf32>
  %4 = stablehlo.clamp %2, %a, %3 : tensor<4xf32>
  %5 = stablehlo.clamp %1, %4, %0 : tensor<4xf32>
  return %5 : tensor<4xf32>
}
