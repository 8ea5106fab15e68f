// passes: mpmd-split-and-prioritize-transfer-independent-computations
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- What needs nothing transferred comes first
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1 = mpmd.transfer %arg0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %arg0) {split_keep_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %5 = stablehlo.negate %arg3 : tensor<4xf32>
    mpmd.return %5, %arg2, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  %4 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %arg0, %3#1, %3#2) {split_drop_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4xf32>) {
    %5 = stablehlo.multiply %arg5, %arg4 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!A, !A, !A, !A) -> !A
  return %4, %3#0 : !A, !A
}

// ----- No operand is transferred
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}

// ----- All operands are transferred
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %9) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}

// ----- Halves of a split stay whole
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %p) {split_drop_transferred} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}

// ----- Everything needs what is transferred
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.add %y, %x : tensor<4xf32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}

// ----- What is transferred for nothing leaves an empty second part
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.multiply %s, %y : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1 = mpmd.transfer %arg0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %arg0) {split_keep_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %4 = stablehlo.negate %arg3 : tensor<4xf32>
    %5 = stablehlo.multiply %4, %arg3 : tensor<4xf32>
    mpmd.return %5, %4 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %arg0) {split_drop_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    mpmd.return 
  } : (!A, !A) -> ()
  return %3#0, %3#1 : !A, !A
}

// ----- Capturing a transferred argument does not count
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %d = stablehlo.negate %y : tensor<4xf32>
    %w = stablehlo.while(%i = %y) : tensor<4xf32> cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %n = stablehlo.add %i, %x : tensor<4xf32>
      stablehlo.return %n : tensor<4xf32>
    }
    %u = stablehlo.multiply %d, %x : tensor<4xf32>
    mpmd.return %u, %w : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1 = mpmd.transfer %arg0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %arg0) {split_keep_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %5 = stablehlo.negate %arg3 : tensor<4xf32>
    %6 = stablehlo.while(%iterArg = %arg3) : tensor<4xf32>
    cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %7 = stablehlo.add %iterArg, %arg2 : tensor<4xf32>
      stablehlo.return %7 : tensor<4xf32>
    }
    mpmd.return %6, %arg2, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  %4 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %arg0, %3#1, %3#2) {split_drop_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4xf32>) {
    %5 = stablehlo.multiply %arg5, %arg4 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!A, !A, !A, !A) -> !A
  return %4, %3#0 : !A, !A
}

// ----- Capturing what is computed of it counts
// In the reference the loop would stay in the first part, which does not have the captured value.
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %d = stablehlo.negate %x : tensor<4xf32>
    %w = stablehlo.while(%i = %y) : tensor<4xf32> cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %n = stablehlo.add %i, %d : tensor<4xf32>
      stablehlo.return %n : tensor<4xf32>
    }
    %u = stablehlo.abs %y : tensor<4xf32>
    mpmd.return %u, %w : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1 = mpmd.transfer %arg0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %arg0) {split_keep_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %5 = stablehlo.abs %arg3 : tensor<4xf32>
    mpmd.return %5, %arg2, %arg3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  %4 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %arg0, %3#1, %3#2) {split_drop_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4xf32>) {
    %5 = stablehlo.negate %arg4 : tensor<4xf32>
    %6 = stablehlo.while(%iterArg = %arg5) : tensor<4xf32>
    cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %7 = stablehlo.add %iterArg, %5 : tensor<4xf32>
      stablehlo.return %7 : tensor<4xf32>
    }
    mpmd.return %6 : tensor<4xf32>
  } : (!A, !A, !A, !A) -> !A
  return %3#0, %4 : !A, !A
}

// ----- After a clean-up the first part reads nothing transferred
// passes: mpmd-split-and-prioritize-transfer-independent-computations,canonicalize,mpmd-fragment-dedup,mpmd-fragment-dce
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1 : !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {split_keep_transferred} (%arg2: tensor<4xf32>) {
    %3 = stablehlo.negate %arg2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %1) {split_drop_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %3 = stablehlo.multiply %arg3, %arg2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %2, %1 : !A, !A
}
