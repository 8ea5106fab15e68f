// passes: mpmd-symbol-dce
// passes: symbol-dce
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Private functions that nobody reaches go
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<4xf32>) {
    %1 = func.call @in_body(%x) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @in_body(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @indirect(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @indirect(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
func.func private @left(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @right(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @right(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @left(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @uncalled(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
// =>
sdy.mesh @mesh = <["x"=2]>
func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%arg0) (%arg1: tensor<4xf32>) {
    %1 = func.call @in_body(%arg1) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @in_body(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @indirect(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @indirect(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  return %arg0 : tensor<4xf32>
}
func.func @uncalled(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  return %arg0 : tensor<4xf32>
}

// ----- Attributes refer to functions, too
// Those of the op itself and others.
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @foo(%a) {called_computations = [@reducer]}
      : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.negate %0 {note = @noted} : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @reducer(%a: tensor<f32>) -> tensor<f32> {
  return %a : tensor<f32>
}
func.func private @noted(%a: tensor<f32>) -> tensor<f32> {
  return %a : tensor<f32>
}
