// passes: mpmd-rule-based-merge
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Dead ops go even without rules
// The driver removes unused transfers; constants stay where they are.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!A) -> !B
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// CHECK-NOT: transfer

// ----- Cycle
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["f","g"],stage=1,call_counter=0,mesh_name="alpha"))}
// Merging around a fragment of another mesh cannot be ordered.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["h"]> (%1) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=["g"]> (%3) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %4 : !A
}
// error: Cycle detected

// ----- The target overwrites the label of a pair
// What does not wait for the pair comes before it.
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="s0"),FragmentInfo(origins=["h"],call_counter=0,mesh_name="s0")],target=FragmentInfo(origins=["fh"],stage=3,call_counter=7,mesh_name="s0"))}
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
func.func public @main(%a: !s, %b: !s) -> (!s, !s, !s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["g"]> (%b) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %h = mpmd.fragment<mesh="s0", origin=["h"]> (%f, %g) {call_counter = 0 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%a) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f, %h, %k : !s, !s, !s
}
// =>
func.func public @main(%a: !s, %b: !s) -> (!s, !s, !s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %g = mpmd.fragment<mesh="s0", origin=["g"]> (%b) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%a) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %m:2 = mpmd.fragment<mesh="s0", origin=["fh"], stage=3> (%a, %g) {call_counter = 7 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    %w = stablehlo.multiply %y, %z : tensor<4xf32>
    mpmd.return %y, %w : tensor<4xf32>, tensor<4xf32>
  } : (!s, !s) -> (!s, !s)
  return %m#0, %m#1, %k : !s, !s, !s
}

// ----- Sources whose origins are not sorted match nothing
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["g","f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["h"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["x"],call_counter=0,mesh_name="alpha"))}
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["g", "f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["h"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Sources without a mesh match nothing
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name=""),FragmentInfo(origins=["h"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["x"],call_counter=0,mesh_name="alpha"))}
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["g", "f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["h"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Sources with sorted origins and a mesh match
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f","g"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["h"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["x"],call_counter=0,mesh_name="alpha"))}
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["g", "f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["h"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> (!A, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["x"]> (%arg0) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %1 = stablehlo.negate %arg2 : tensor<4xf32>
    %2 = stablehlo.negate %arg2 : tensor<4xf32>
    mpmd.return %1, %2 : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  return %0#0, %0#1 : !A, !A
}

// ----- Fragments in loops take no part
// One in a loop runs several times, so it is not merged with one that runs once.
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["f","g"],stage=1,call_counter=0,mesh_name="alpha"))}
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %l = mpmd.for (%0) {iterations = 2 : ui32, unroll_factor = 2 : ui32} (%a: !A, %i: tensor<ui32>) {
    %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%a) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
      %y = stablehlo.negate %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %1 : !A
  } : !A
  return %l : !A
}

// ----- A fragment is a source of one rule at most
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["f","g"],stage=1,call_counter=0,mesh_name="alpha")),FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["x"],call_counter=0,mesh_name="alpha"))}
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  return %p : !A
}
// error: already part of another merge rule

// ----- A target on no mesh
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["t"],mesh_name=""))}
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// error: the target of a merge rule names no mesh, but fragment ["g"] on mesh 'alpha', call_counter 0, which the rule merges, is on mesh 'alpha': write mesh_name="alpha" in the target of FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["t"],mesh_name=""))

// ----- A target on another mesh
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["t"],mesh_name="beta"))}
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// error: the target of a merge rule names mesh 'beta', but fragment ["g"] on mesh 'alpha', call_counter 0, which the rule merges, is on mesh 'alpha': write mesh_name="alpha" in the target of FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["t"],mesh_name="beta"))

// ----- A target on the mesh of its sources
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["t"],mesh_name="alpha"))}
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["t"]> (%arg0) (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.negate %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Three members and a rule that takes the result
// passes: mpmd-rule-based-merge{rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["g"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["missing"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["fg"],call_counter=0,mesh_name="alpha")),FragmentMergeRule(sources=[FragmentInfo(origins=["fg"],call_counter=0,mesh_name="alpha"),FragmentInfo(origins=["h"],call_counter=0,mesh_name="alpha")],target=FragmentInfo(origins=["all"],mesh_name="alpha"))}
// A target can be a source of another rule; a missing member does not matter.
func.func @main(%p: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32, remat} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%p) {call_counter = 0 : ui32, remat} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["h"]> (%p) {call_counter = 0 : ui32, remat} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1, %2 : !A, !A, !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["all"]> (%arg0) (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A, !A)
  return %0#1, %0#2, %0#0 : !A, !A, !A
}
