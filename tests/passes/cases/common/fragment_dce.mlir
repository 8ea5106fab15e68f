// passes: mpmd-fragment-dce
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- What is unused goes through chains and loops
func.func @main(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["a"]> (%q) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3:2 = mpmd.for (%p, %2) {iterations = 2 : ui32} (%x: !A, %y: !A, %i: tensor<ui32>) {
    %4:2 = mpmd.fragment<mesh="alpha", origin=["b"]> (%x, %y) (%a: tensor<4xf32>, %b: tensor<4xf32>) {
      %c = stablehlo.add %a, %a : tensor<4xf32>
      mpmd.return %c, %b : tensor<4xf32>, tensor<4xf32>
    } : (!A, !A) -> (!A, !A)
    mpmd.return %4#0, %y : !A, !A
  } : !A, !A
  %5 = mpmd.fragment<mesh="alpha", origin=["c"]> (%3#1) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  return %3#0 : !A
}
// =>
func.func @main(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["a"]> (%q) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3:2 = mpmd.for (%p, %2) {iterations = 2 : ui32} (%x: !A, %y: !A, %i: tensor<ui32>) {
    %4 = mpmd.fragment<mesh="alpha", origin=["b"]> (%x) (%a: tensor<4xf32>) {
      %c = stablehlo.add %a, %a : tensor<4xf32>
      mpmd.return %c : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %4, %y : !A, !A
  } : !A, !A
  return %3#0 : !A
}

// ----- Fragments with effects stay without results and empty ones go
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["a"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.custom_call @e(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["b"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.custom_call @e(%x) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %c : tensor<4xf32>
  } : (!A) -> !A
  mpmd.fragment<mesh="alpha", origin=["c"]> () () {
    mpmd.return
  } : () -> ()
  return %p : !A
}
// =>
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  mpmd.fragment<mesh="alpha", origin=["a"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.custom_call @e(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return
  } : (!A) -> ()
  return %p : !A
}

// ----- Plain functions are left alone
func.func @main(%p: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %p : tensor<f32>
  return %p : tensor<f32>
}

// ----- What a dead region captures for its results stays once more (1)
func.func @main(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %w = "stablehlo.case"(%c) ({
      %t = stablehlo.tanh %n : tensor<4xf32>
      %u = stablehlo.tanh %y : tensor<4xf32>
      stablehlo.return %t : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    %s = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %s, %w : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %0#0 : !A
}
// =>
func.func @main(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    %s = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- What a dead region captures for its results stays once more (2)
// passes: mpmd-fragment-dce,mpmd-fragment-dce
func.func @main(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %w = "stablehlo.case"(%c) ({
      %t = stablehlo.tanh %n : tensor<4xf32>
      %u = stablehlo.tanh %y : tensor<4xf32>
      stablehlo.return %t : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    %s = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %s, %w : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %0#0 : !A
}
// =>
func.func @main(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %s = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Attributes that list operands are copied as they are
sdy.mesh @mesh = <["x"=2]>
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["a"], out_shardings=[<@mesh, [{"x"}]>, <@mesh, [{}]>]> (%p) {res_attrs = [{a}, {b}]} (%x: tensor<4xf32>) {
    mpmd.return %x, %x : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  return %0#1 : !A
}
// =>
sdy.mesh @mesh = <["x"=2]>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["a"], out_shardings=[<@mesh, [{"x"}]>, <@mesh, [{}]>]> (%arg0) {res_attrs = [{a}, {b}]} (%arg1: tensor<4xf32>) {
    mpmd.return %arg1 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Equal changes give one body
// passes: mpmd-call-inline,mpmd-symbol-dce,mpmd-fragment-dce
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.call @step(%p, %q) {call_counter = 0 : ui32} : (!A, !B) -> !A
  %1 = mpmd.call @step(%p, %q) {call_counter = 1 : ui32} : (!A, !B) -> !A
  return %0, %1 : !A, !A
}
func.func private @step(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %1:3 = mpmd.fragment<mesh="alpha", origin=["f"], stage=0> (%p, %0) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %x : tensor<4xf32>
    %t = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.custom_call @effect(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    %v = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %t, %s, %u : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  return %1#1 : !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"], stage=0> (%arg0) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.negate %arg2 : tensor<4xf32>
    %3 = stablehlo.custom_call @effect(%arg2) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    %4 = "stablehlo.collective_permute"(%arg2) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"], stage=0> (%arg0) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.negate %arg2 : tensor<4xf32>
    %3 = stablehlo.custom_call @effect(%arg2) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    %4 = "stablehlo.collective_permute"(%arg2) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}
// bodies: 1
