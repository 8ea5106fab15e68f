// passes: mpmd-shardy-propagation,mpmd-convert-sdy-constants
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>

// ----- Constants everywhere are converted in place
// passes: mpmd-convert-sdy-constants
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %c = sdy.constant {foo} dense<1.0> : tensor<4xf32>
    %w = stablehlo.while(%i = %x) : tensor<4xf32> cond {
      %t = sdy.constant dense<true> : tensor<i1>
      stablehlo.return %t : tensor<i1>
    } do { stablehlo.return %c : tensor<4xf32> }
    mpmd.return %w : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
func.func private @plain() -> tensor<f32> {
  %c = sdy.constant dense<2.0> : tensor<f32>
  return %c : tensor<f32>
}
// =>
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.constant {foo} dense<1.0> : tensor<4xf32>
    %w = stablehlo.while(%i = %x) : tensor<4xf32> cond {
      %t = stablehlo.constant dense<true> : tensor<i1>
      stablehlo.return %t : tensor<i1>
    } do { stablehlo.return %c : tensor<4xf32> }
    mpmd.return %w : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
func.func private @plain() -> tensor<f32> {
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  return %c : tensor<f32>
}

// ----- Equal constants stay one (1)
// Shardy merges equal constants of a body; they are not told apart again, in a body of nothing else either.
func.func public @main(%p: !s) -> (!s, !s) attributes {topology = #topo} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c, %c : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %f#0, %f#1 : !s, !s
}

// ----- Equal constants stay one (2)
func.func public @main(%p: !s) -> (!s, !s) attributes {topology = #topo} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %d = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c, %d : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %f#0, %f#1 : !s, !s
}
// =>
func.func public @main(%p: !s) -> (!s, !s) attributes {topology = #topo} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    mpmd.return %c, %c : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %f#0, %f#1 : !s, !s
}
