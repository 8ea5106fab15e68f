// passes: mpmd-simplify-program
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!h = !mpmd.mesh_tensor<"s0", tensor<4xf32>, memory_kind="pinned_host">
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>

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

// ----- Equal results and equal operands; the first of the equal operands stays
func.func @main(%p: !s, %q: !s) -> (!s, !s) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %q, %p) {keep} (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %s = stablehlo.add %y, %z : tensor<4xf32>
    mpmd.return %s, %s : tensor<4xf32>, tensor<4xf32>
  } : (!s, !s, !s) -> (!s, !s)
  return %0#0, %0#1 : !s, !s
}
// =>
func.func @main(%arg0: !s, %arg1: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0, %arg1) {keep} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %1 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s, !s) -> !s
  return %0, %0 : !s, !s
}

// ----- Equal operands alone
func.func @main(%p: !s, %q: !s) -> (!s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!s, !s) -> !s
  return %0 : !s
}
// =>
func.func @main(%arg0: !s, %arg1: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) (%arg2: tensor<4xf32>) {
    %1 = stablehlo.add %arg2, %arg2 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s) -> !s
  return %0 : !s
}

// ----- Forwarded arguments and unused results
func.func @main(%p: !s, %q: !s) -> (!s, !s) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %q) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %x : tensor<4xf32>
    %t = stablehlo.abs %s : tensor<4xf32>
    mpmd.return %y, %s, %t : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s, !s) -> (!s, !s, !s)
  return %0#0, %0#1 : !s, !s
}
// =>
func.func @main(%arg0: !s, %arg1: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) (%arg2: tensor<4xf32>) {
    %1 = stablehlo.negate %arg2 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s) -> !s
  return %arg1, %0 : !s, !s
}

// ----- A fragment whose results all go is erased when it is pure
func.func @main(%p: !s, %q: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %0, %q : !s, !s
}
// =>
func.func @main(%arg0: !s, %arg1: !s) -> (!s, !s) attributes {topology = #topo} {
  return %arg0, %arg1 : !s, !s
}

// ----- A fragment with effects stays although the uses of its result are redirected
func.func @main(%p: !s, %q: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %s = stablehlo.custom_call @e(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %0, %q : !s, !s
}
// =>
func.func @main(%arg0: !s, %arg1: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) (%arg2: tensor<4xf32>) {
    %1 = stablehlo.custom_call @e(%arg2) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %arg2 : tensor<4xf32>
  } : (!s) -> !s
  return %arg0, %arg1 : !s, !s
}

// ----- Unused results that a call may make stay
func.func @main(%p: !s, %q: !s) -> (!s, !s) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %s = stablehlo.custom_call @e(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %t = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %s, %t : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %q, %0#1 : !s, !s
}

// ----- Equal changes give one body
// passes: mpmd-call-inline,mpmd-symbol-dce,mpmd-simplify-program
func.func public @main(%a: !s, %b: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.call @f(%a, %b) : (!s, !s) -> !s
  %1 = mpmd.call @f(%b, %a) : (!s, !s) -> !s
  return %0, %1 : !s, !s
}
func.func private @f(%a: !s, %b: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a, %b) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %u = stablehlo.sine %y : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  } : (!s, !s) -> !s
  return %f : !s
}
// =>
func.func public @main(%arg0: !s, %arg1: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg1) (%arg2: tensor<4xf32>) {
    %2 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) (%arg2: tensor<4xf32>) {
    %2 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  return %0, %1 : !s, !s
}
// bodies: 1
