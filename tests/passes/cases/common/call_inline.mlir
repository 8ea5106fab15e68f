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
// note: @f is defined here
// error: returns
// note: @g is defined here
// error: takes
// note: @g is defined here

// ----- Attributes of the call are copied to fragments and fragment calls
// passes: mpmd-call-inline,mpmd-symbol-dce
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.for (%p) {iterations = 1 : ui32} (%x: !A, %i: tensor<ui32>) {
    %2 = mpmd.call @f(%x) {call_counter = 3 : ui32, note = "n"} : (!A) -> !A
    mpmd.return %2 : !A
  } : !A
  %1 = mpmd.call @moved(%0) {call_counter = 4 : ui32} : (!A) -> !A
  return %1 : !A
}
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 7 : ui32, keep} (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
func.func private @moved(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !A
  %1 = mpmd.fragment_call<mesh="alpha", origin=["g"]> @g(%0) : (!A) -> !A
  return %1 : !A
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
  return %x : tensor<4xf32>
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.for (%arg0) {iterations = 1 : ui32} (%arg1: !A, %index: tensor<ui32>) {
    %3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg1) {call_counter = 3 : ui32, keep, note = "n"} (%arg2: tensor<4xf32>) {
      mpmd.return %arg2 : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %3 : !A
  } : !A
  %1 = mpmd.transfer %0 : (!A) -> !A
  %2 = mpmd.fragment_call<mesh="alpha", origin=["g"]> @g(%1) {call_counter = 4 : ui32} : (!A) -> !A
  return %2 : !A
}
func.func @g(%arg0: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
  return %arg0 : tensor<4xf32>
}

// ----- A callee that is declared alone
func.func @main(%p: tensor<f32>) -> tensor<f32> {
  %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @f(tensor<f32>) -> tensor<f32>
// error: @f cannot be inlined: it is only declared; give it a body
// note: @f is defined here

// ----- A callee of two blocks
func.func @main(%p: tensor<f32>) -> tensor<f32> {
  %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @f(%p: tensor<f32>) -> tensor<f32> {
  cf.br ^bb1
^bb1:
  return %p : tensor<f32>
}
// error: @f cannot be inlined: it has more than one block; only straight-line functions can be inlined
// note: @f is defined here

// ----- Copies share the bodies of the callee
// passes: mpmd-call-inline,mpmd-symbol-dce
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.call @step(%p) {call_counter = 0 : ui32} : (!A) -> !A
  %1 = mpmd.call @step(%0) {call_counter = 1 : ui32} : (!A) -> !A
  %2 = mpmd.call @step(%1) {call_counter = 2 : ui32} : (!A) -> !A
  return %2 : !A
}
func.func private @step(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 7 : ui32} (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    mpmd.return %arg1 : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>) {
    mpmd.return %arg1 : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%1) {call_counter = 2 : ui32} (%arg1: tensor<4xf32>) {
    mpmd.return %arg1 : tensor<4xf32>
  } : (!A) -> !A
  return %2 : !A
}
// bodies: 1
