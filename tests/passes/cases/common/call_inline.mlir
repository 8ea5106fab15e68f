// passes: mpmd-call-inline
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Unused calls and calls that return arguments
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0:2 = mpmd.call @id(%p) : (!A) -> (!A, !A)
  %1:2 = mpmd.call @id(%0#1) : (!A) -> (!A, !A)
  return %0#0 : !A
}
func.func private @id(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  return %p, %p : !A, !A
}
// =>
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  return %p : !A
}
func.func private @id(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  return %p, %p : !A, !A
}

// ----- Code that was cloned in is not visited
func.func @a(%p: tensor<f32>) -> tensor<f32> {
  %0 = mpmd.call @b(%p) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @b(%p: tensor<f32>) -> tensor<f32> {
  %0 = mpmd.call @c(%p) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @c(%p: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %p : tensor<f32>
  return %0 : tensor<f32>
}
// =>
func.func @a(%arg0: tensor<f32>) -> tensor<f32> {
  %0 = mpmd.call @c(%arg0) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @b(%arg0: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %arg0 : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @c(%arg0: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %arg0 : tensor<f32>
  return %0 : tensor<f32>
}

// ----- A callee that was processed before is inlined whole
func.func private @c(%p: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %p : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @b(%p: tensor<f32>) -> tensor<f32> {
  %0 = mpmd.call @c(%p) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @a(%p: tensor<f32>) -> tensor<f32> {
  %0 = mpmd.call @b(%p) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
// =>
func.func private @c(%arg0: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %arg0 : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @b(%arg0: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %arg0 : tensor<f32>
  return %0 : tensor<f32>
}
func.func @a(%arg0: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %arg0 : tensor<f32>
  return %0 : tensor<f32>
}

// ----- Recursion and wrong signatures are errors
func.func @f(%p: tensor<f32>) -> tensor<f32> {
  %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
  %1:2 = mpmd.call @g(%p) : (tensor<f32>) -> (tensor<f32>, tensor<f32>)
  %2 = mpmd.call @g(%p, %p) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
func.func private @g(%p: tensor<f32>) -> tensor<f32> {
  return %p : tensor<f32>
}
// error: itself
// error: returns
// error: takes
