// passes: mpmd-merge-inferred-fragments
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- General case
// Operands are unified, results that only the consumer used go, the user keeps its counter.
func.func @general(%p: !A, %q: !A) -> (!A, !B) attributes {topology = #topo} {
  %e:2 = mpmd.fragment<mesh="alpha", origin=["enc"], stage=1> (%p, %q, %p) {call_counter = 2 : ui32, remat} (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %s = stablehlo.add %x, %z : tensor<4xf32>
    %t = stablehlo.multiply %s, %y : tensor<4xf32>
    mpmd.return %s, %t : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A, !A) -> (!A, !A)
  %t = mpmd.transfer %e#1 : (!A) -> !B
  %i = mpmd.fragment<mesh="alpha", origin=[]> (%q, %e#0, %e#1) {call_counter = 5 : ui32, mpmd.inferred_by = ["p"]} (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %s = stablehlo.subtract %x, %y : tensor<4xf32>
    %u = stablehlo.maximum %s, %z : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  } : (!A, !A, !A) -> !A
  return %i, %t : !A, !B
}
// =>
func.func @general(%arg0: !A, %arg1: !A) -> (!A, !B) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["enc"], stage=1> (%arg0, %arg1) {call_counter = 2 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %2 = stablehlo.add %arg2, %arg2 : tensor<4xf32>
    %3 = stablehlo.multiply %2, %arg3 : tensor<4xf32>
    %4 = stablehlo.subtract %arg3, %2 : tensor<4xf32>
    %5 = stablehlo.maximum %4, %3 : tensor<4xf32>
    mpmd.return %3, %5 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  %1 = mpmd.transfer %0#0 : (!A) -> !B
  return %0#1, %1 : !A, !B
}

// ----- Single use keeps the operand order of the consumer
// The operand of the producer stands where its result stood, even if it is there twice.
func.func @fast(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {mpmd.inferred_by = ["a"]} (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%q, %0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    %t = stablehlo.add %s, %z : tensor<4xf32>
    mpmd.return %t : tensor<4xf32>
  } : (!A, !A, !A) -> !A
  return %1 : !A
}
// =>
func.func @fast(%arg0: !A, %arg1: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["g"]> (%arg1, %arg0, %arg0) (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %1 = stablehlo.negate %arg3 : tensor<4xf32>
    %2 = stablehlo.add %arg2, %1 : tensor<4xf32>
    %3 = stablehlo.add %2, %arg4 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A, !A, !A) -> !A
  return %0 : !A
}

// ----- Different stages are refused
// The message names both fragments and their stages.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"], stage=1> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[], stage=2> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// error: stage 1 ... stage 2 ... stages differ
// note: the other fragment

// ----- Loops are refused
// Fragments in a loop have no place among the ops of the function.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %r = mpmd.for (%p) {iterations = 2 : ui32, unroll_factor = 2 : ui32} (%l: !A, %i: tensor<ui32>) {
    %0 = mpmd.fragment<mesh="alpha", origin=[]> (%l) (%x: tensor<4xf32>) {
      %y = stablehlo.negate %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!A) -> !A
    %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) (%x: tensor<4xf32>) {
      %y = stablehlo.negate %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %1 : !A
  } : !A
  return %r : !A
}
// error: unroll loops

// ----- Microbatches share merged bodies
// passes: mpmd-call-inline,mpmd-symbol-dce,mpmd-merge-inferred-fragments,mpmd-cse,mpmd-canonicalize
func.func private @step(%p: !A) -> !B attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.transfer %1 : (!A) -> !B
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%2) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %4 = mpmd.fragment<mesh="beta", origin=[]> (%3) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  return %4 : !B
}
func.func @main(%p: !A, %q: !B) -> (!B, !B) attributes {topology = #topo} {
  %c0 = mpmd.call @step(%p) {call_counter = 0 : ui32} : (!A) -> !B
  %c1 = mpmd.call @step(%p) {call_counter = 1 : ui32} : (!A) -> !B
  return %c0, %c1 : !B, !B
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> (!B, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %6 = stablehlo.negate %arg2 : tensor<4xf32>
    %7 = stablehlo.abs %6 : tensor<4xf32>
    mpmd.return %7 : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["g"]> (%1) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %6 = stablehlo.sine %arg2 : tensor<4xf32>
    %7 = stablehlo.cosine %6 : tensor<4xf32>
    mpmd.return %7 : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>) {
    %6 = stablehlo.negate %arg2 : tensor<4xf32>
    %7 = stablehlo.abs %6 : tensor<4xf32>
    mpmd.return %7 : tensor<4xf32>
  } : (!A) -> !A
  %4 = mpmd.transfer %3 : (!A) -> !B
  %5 = mpmd.fragment<mesh="beta", origin=["g"]> (%4) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>) {
    %6 = stablehlo.sine %arg2 : tensor<4xf32>
    %7 = stablehlo.cosine %6 : tensor<4xf32>
    mpmd.return %7 : tensor<4xf32>
  } : (!B) -> !B
  return %2, %5 : !B, !B
}
// bodies: 2
