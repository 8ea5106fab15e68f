// passes: mpmd-simplify-program
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!h = !mpmd.mesh_tensor<"s0", tensor<4xf32>, memory_kind="pinned_host">

// ----- A forwarded argument with another type stays
func.func public @main(%a: !s, %b: !s) -> (!s, !h) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    mpmd.return %x, %x : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !h)
  return %f#0, %f#1 : !s, !h
}
// =>
func.func public @main(%a: !s, %b: !s) -> (!s, !h) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> (!h)
  return %a, %f : !s, !h
}

// ----- An unused result frees the fragment that made its operand
func.func public @main(%a: !s, %b: !s) -> (!s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%b) (%x: tensor<4xf32>) {
    %u = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  } : (!s) -> (!s)
  %g:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%a, %f) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %u = stablehlo.sine %x : tensor<4xf32>
    %v = stablehlo.cosine %y : tensor<4xf32>
    mpmd.return %u, %v : tensor<4xf32>, tensor<4xf32>
  } : (!s, !s) -> (!s, !s)
  return %g#0 : !s
}
// =>
func.func public @main(%a: !s, %b: !s) -> (!s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %u = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  } : (!s) -> (!s)
  return %g : !s
}

// ----- Effects keep a fragment
func.func public @main(%a: !s, %b: !s) -> (!s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%a, %b) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    stablehlo.custom_call @log(%x) {has_side_effect = true} : (tensor<4xf32>) -> ()
    mpmd.return %x, %y : tensor<4xf32>, tensor<4xf32>
  } : (!s, !s) -> (!s, !s)
  return %a : !s
}

// ----- Attribute lists are copied as they are
func.func public @main(%a: !s, %b: !s) -> (!s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a, %b) {arg_attrs = [{p}, {q}], call_counter = 3 : ui32} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %u = stablehlo.sine %y : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  } : (!s, !s) -> (!s)
  return %f : !s
}
// =>
func.func public @main(%a: !s, %b: !s) -> (!s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%b) {arg_attrs = [{p}, {q}], call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %u = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  } : (!s) -> (!s)
  return %f : !s
}

// ----- Constants are unique and in front
func.func public @main(%a: !s, %b: !s) -> (!s, !s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %u = stablehlo.sine %x : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %d = stablehlo.constant dense<2.0> : tensor<4xf32>
    %e = stablehlo.constant dense<1.0> : tensor<4xf32>
    %v = stablehlo.add %u, %c : tensor<4xf32>
    %w = stablehlo.add %d, %e : tensor<4xf32>
    mpmd.return %v, %w : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %f#0, %f#1 : !s, !s
}
// =>
func.func public @main(%a: !s, %b: !s) -> (!s, !s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<4xf32>) {
    %d = stablehlo.constant dense<2.0> : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %u = stablehlo.sine %x : tensor<4xf32>
    %v = stablehlo.add %u, %c : tensor<4xf32>
    %w = stablehlo.add %d, %c : tensor<4xf32>
    mpmd.return %v, %w : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %f#0, %f#1 : !s, !s
}
