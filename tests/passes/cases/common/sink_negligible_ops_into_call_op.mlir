// passes: mpmd-sink-negligible-ops-into-call-op
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Operand free fragments sink and bodies are cleaned
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> () () {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  %1 = mpmd.call @g(%p, %0) : (!A, !A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["h"]> (%1) (%x: tensor<4xf32>) {
    %d = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %2 : !A
}
func.func private @g(%a: !A, %b: !A) -> !A attributes {topology = #topo} {
  return %b : !A
}
// =>
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %1 = mpmd.call @g(%p) : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["h"]> (%1) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %2 : !A
}
func.func private @g(%a: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> () () {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : () -> !A
  return %0 : !A
}

// ----- A different operand in one call keeps the argument
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %d = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = mpmd.call @f(%p, %c) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = mpmd.call @f(%0, %d) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : tensor<f32>
  return %0 : tensor<f32>
}

// ----- An op with other uses stays and dead code goes
func.func @main(%p: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {topology = #topo} {
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %dead = stablehlo.negate %p : tensor<f32>
  %0 = mpmd.call @f(%c, %c) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0, %c : tensor<f32>, tensor<f32>
}
func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : tensor<f32>
  return %0 : tensor<f32>
}
// =>
func.func @main(%p: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {topology = #topo} {
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = mpmd.call @f() : () -> tensor<f32>
  return %0, %c : tensor<f32>, tensor<f32>
}
func.func private @f() -> tensor<f32> attributes {topology = #topo} {
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %d = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = stablehlo.add %c, %d : tensor<f32>
  return %0 : tensor<f32>
}

// ----- Unused calls have no say but follow
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = mpmd.call @f(%p, %c) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = mpmd.call @f(%p, %0) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : tensor<f32>
  return %0 : tensor<f32>
}
// =>
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
  %1 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @f(%a: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = stablehlo.add %a, %c : tensor<f32>
  return %0 : tensor<f32>
}

// ----- Calls are no operand free ops
func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = mpmd.call @one() : () -> tensor<f32>
  %1 = mpmd.call @f(%p, %0) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func private @one() -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : tensor<f32>
  return %0 : tensor<f32>
}
