// passes: inline{default-pipeline=canonicalize max-iterations=4}
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Calls in regions and passed through arguments
func.func @main(%i: tensor<i32>, %a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0:2 = "stablehlo.case"(%i) ({
    %1:2 = func.call @f(%a) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    stablehlo.return %1#0, %1#1 : tensor<4xf32>, tensor<4xf32>
  }) : (tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
}
func.func @f(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.negate %a : tensor<4xf32>
  return %0, %a : tensor<4xf32>, tensor<4xf32>
}
// =>
func.func @main(%i: tensor<i32>, %a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0:2 = "stablehlo.case"(%i) ({
    %1 = stablehlo.negate %a : tensor<4xf32>
    stablehlo.return %1, %a : tensor<4xf32>, tensor<4xf32>
  }) : (tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
}
func.func @f(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.negate %a : tensor<4xf32>
  return %0, %a : tensor<4xf32>, tensor<4xf32>
}

// ----- Calls that stay (1)
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @f(tensor<4xf32>) -> tensor<4xf32>

// ----- Calls that stay (2)
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> attributes {no_inline} {
  return %a : tensor<4xf32>
}

// ----- Calls that stay (3)
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.abs %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// ----- Calls of mpmd stay
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
  %0 = mpmd.call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
  %0 = stablehlo.abs %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
