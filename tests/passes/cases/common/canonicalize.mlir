// passes: mpmd-canonicalize
!d = !mpmd.mesh_tensor<"left", tensor<6xf32>>
!h = !mpmd.mesh_tensor<"left", tensor<6xf32>, memory_kind="pinned_host">
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>

// ----- Bypass and transfers
// One result per argument is bypassed; a round trip on one mesh disappears.
func.func @canon(%a: !d, %b: !d) -> (!d, !d, !d, !d)
    attributes {topology = #mpmd.topology<<"left" : <["x"=2]>>>} {
  %0 = mpmd.transfer %a : (!d) -> !h
  %1 = mpmd.transfer %0 : (!h) -> !d
  %2:3 = mpmd.fragment<mesh="left", origin=["f"]> (%a, %b) (%x: tensor<6xf32>, %y: tensor<6xf32>) {
    mpmd.return %x, %y, %x : tensor<6xf32>, tensor<6xf32>, tensor<6xf32>
  } : (!d, !d) -> (!d, !d, !d)
  return %1, %2#0, %2#1, %2#2 : !d, !d, !d, !d
}
// =>
func.func @canon(%arg0: !d, %arg1: !d) -> (!d, !d, !d, !d)
    attributes {topology = #mpmd.topology<<"left" : <["x"=2]>>>} {
  %0:3 = mpmd.fragment<mesh="left", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<6xf32>, %arg3: tensor<6xf32>) {
    mpmd.return %arg2, %arg3, %arg2 : tensor<6xf32>, tensor<6xf32>, tensor<6xf32>
  } : (!d, !d) -> (!d, !d, !d)
  return %arg0, %0#0, %arg1, %arg0 : !d, !d, !d, !d
}

// ----- Broadcasts and reduces
// passes: mpmd-canonicalize
// passes: canonicalize{max-iterations=10 max-num-rewrites=-1 region-simplify=disabled test-convergence=false top-down=false}
// Chains collapse; a reduce of a reduce of the same kind drops further operands.
func.func @main(%t: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #topo} {
  %0 = mpmd.broadcast %t : tensor<4xf32>
  %1 = mpmd.broadcast {x} %0 : tensor<4xf32>
  %2 = mpmd.reduce<add> %t, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = mpmd.reduce<add> %2, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = mpmd.reduce<none> %3 : (tensor<4xf32>) -> tensor<4xf32>
  %5 = mpmd.reduce<max> %4, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1, %5 : tensor<4xf32>, tensor<4xf32>
}
// =>
func.func @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #topo} {
  %0 = mpmd.broadcast %arg0 : tensor<4xf32>
  %1 = mpmd.reduce<add> %arg0, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = mpmd.reduce<max> %1, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %2 : tensor<4xf32>, tensor<4xf32>
}

// ----- Equal fragments become one (1)
// passes: mpmd-cse
// passes: cse
// Fragments with equal operands and bodies; as in MLIR, addition is not known to commute.
func.func @main(%p: !A, %r: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %r) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %r) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  return %0, %1 : !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %1 = stablehlo.add %arg2, %arg3 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %0, %0 : !A, !A
}

// ----- Equal fragments become one (2)
// passes: mpmd-cse
// passes: cse
func.func @main(%p: !A, %r: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %r) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %r) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.add %y, %x : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  return %0, %1 : !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %2 = stablehlo.add %arg2, %arg3 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A, !A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %2 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %0, %1 : !A, !A
}

// ----- Ops outside of fragments (1)
// passes: mpmd-canonicalize
// passes: canonicalize{max-iterations=10 max-num-rewrites=-1 region-simplify=disabled test-convergence=false top-down=false}
func.func @main(%p: !A, %t: tensor<4xf32>, %b: tensor<i1>) -> (!A, !A, tensor<4xf32>) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = stablehlo.add %t, %t : tensor<4xf32>
  %3 = stablehlo.add %t, %t : tensor<4xf32>
  %4 = "stablehlo.if"(%b) ({
    stablehlo.return %2 : tensor<4xf32>
  }, {
    stablehlo.return %3 : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  return %0, %1, %4 : !A, !A, tensor<4xf32>
}

// ----- Ops outside of fragments (2)
// passes: mpmd-cse
// passes: cse
func.func @main(%p: !A, %t: tensor<4xf32>, %b: tensor<i1>) -> (!A, !A, tensor<4xf32>) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = stablehlo.add %t, %t : tensor<4xf32>
  %3 = stablehlo.add %t, %t : tensor<4xf32>
  %4 = "stablehlo.if"(%b) ({
    stablehlo.return %2 : tensor<4xf32>
  }, {
    stablehlo.return %3 : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  return %0, %1, %4 : !A, !A, tensor<4xf32>
}
// =>
func.func @main(%arg0: !A, %arg1: tensor<4xf32>, %arg2: tensor<i1>) -> (!A, !A, tensor<4xf32>) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg3: tensor<4xf32>) {
    %3 = stablehlo.negate %arg3 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %1 = stablehlo.add %arg1, %arg1 : tensor<4xf32>
  %2 = "stablehlo.if"(%arg2) ({
    stablehlo.return %1 : tensor<4xf32>
  }, {
    stablehlo.return %1 : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  return %0, %0, %2 : !A, !A, tensor<4xf32>
}

// ----- Fragments of one body still have one
// passes: mpmd-call-inline,mpmd-symbol-dce,mpmd-canonicalize
func.func @main(%p: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0 = mpmd.call @f(%p) : (!A) -> !A
  %1 = mpmd.call @f(%p) : (!A) -> !A
  %2 = mpmd.call @f(%p) : (!A) -> !A
  return %0, %1, %2 : !A, !A, !A
}
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    %z = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1, %2 : !A, !A, !A
}
// bodies: 1
