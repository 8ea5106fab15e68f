// passes: mpmd-merge-inferred-fragments{merge-any-consumer=true}
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>

// ----- Any consumer skips user fragments
// With merge-any-consumer the first consumer that may be merged is taken.
func.func @any(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
    %n = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=[]> (%0) (%x: tensor<4xf32>) {
    %n = stablehlo.exponential %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  return %1, %2 : !A, !A
}
// =>
func.func @any(%arg0: !A) -> (!A, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.exponential %2 : tensor<4xf32>
    mpmd.return %2, %3 : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0#0) (%arg1: tensor<4xf32>) {
    %2 = stablehlo.abs %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %1, %0#1 : !A, !A
}

// ----- Only the closest consumer is tried
// passes: mpmd-merge-inferred-fragments
// A producer with two user consumers is merged with the first; its result stays for the second.
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1, %2 : !A, !A
}
// CHECK-COUNT-2: mpmd.fragment
// CHECK: %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]>

// ----- A transfer round trip prevents merging
// passes: mpmd-merge-inferred-fragments
// passes: mpmd-merge-inferred-fragments{merge-any-consumer=true}
// passes: mpmd-merge-inferred-fragments{merge-sideways=true}
// The consumer needs a value that goes through another mesh and back: no place fits.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["g"]> (%1) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=[]> (%0, %3) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  return %4 : !A
}

// ----- Halves of a split stay apart
// passes: mpmd-merge-inferred-fragments
// The first half is not merged with the second, even if one is inferred.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {split_keep_transferred} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%0) {split_drop_transferred} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}

// ----- Unused pure fragments go and others stay
// passes: mpmd-merge-inferred-fragments
// A custom call is not pure: the fragment that holds it stays; transfers stay even when dead.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %t = mpmd.transfer %p : (!A) -> !B
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.custom_call @e(%x) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %p : !A
}
// CHECK-COUNT-1: mpmd.fragment
// CHECK: custom_call
// CHECK: mpmd.transfer

// ----- Both options are refused
// passes: mpmd-merge-inferred-fragments{merge-any-consumer=true merge-sideways=true}
// One run can look for candidates in one way only.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// error: cannot be used together

// ----- Reasons are joined or dropped (1)
// passes: mpmd-merge-inferred-fragments
// `mpmd.inferred_by` survives only when both fragments are inferred.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {mpmd.inferred_by = ["a", "b"]} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {mpmd.inferred_by = ["b", "c"]} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg2: tensor<4xf32>) {
    %1 = stablehlo.negate %arg2 : tensor<4xf32>
    %2 = stablehlo.negate %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Reasons are joined or dropped (2)
// passes: mpmd-merge-inferred-fragments
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {mpmd.inferred_by = ["a", "b"]} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) {mpmd.inferred_by = ["b", "c"]} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%arg0) {mpmd.inferred_by = ["a", "b", "c"]} (%arg2: tensor<4xf32>) {
    %1 = stablehlo.negate %arg2 : tensor<4xf32>
    %2 = stablehlo.negate %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- A microbatch of the first one alone
// passes: mpmd-merge-inferred-fragments
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 3 : ui32} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.abs %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- A microbatch of the second one alone
// passes: mpmd-merge-inferred-fragments
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 3 : ui32} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.abs %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- A microbatch of both
// passes: mpmd-merge-inferred-fragments
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 3 : ui32} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.abs %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- A microbatch of the first one, where that has a name
// passes: mpmd-merge-inferred-fragments
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) {call_counter = 4 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 3 : ui32} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.abs %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- A microbatch of the second one, where that has a name
// passes: mpmd-merge-inferred-fragments
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {call_counter = 4 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 4 : ui32} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.abs %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Microbatches that differ, without names
// passes: mpmd-merge-inferred-fragments
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) {call_counter = 4 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.abs %1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
