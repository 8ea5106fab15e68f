// passes: mpmd-scheduling-units-verifier
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>
#host = #mpmd.topology<<"alpha" : <["x"=2]>>, <"alpha/cpu" : <["x"=2]>>>

// ----- A forward and a backward of each mesh and microbatch
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %4 = mpmd.fragment<mesh="beta", origin=["f"]> (%q) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %5 = mpmd.fragment<mesh="beta", origin=["f"(1)]> (%q) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %6 = mpmd.fragment<mesh="beta", origin=["f"]> (%q) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %7 = mpmd.fragment<mesh="beta", origin=["f"(1)]> (%q) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  return %p : !A
}
// fine

// ----- Without microbatches there is nothing to verify
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %p : !A
}
// fine

// ----- A mesh without units
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %p : !A
}
// warning: Number of forward scheduling units in mesh beta does not match expected number for 1 microbatches. Got 0
// warning: Number of backward scheduling units in mesh beta does not match expected number for 1 microbatches. Got 0

// ----- Inferred fragments are no units, and too many are reported
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="beta", origin=["f"]> (%q) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %1 = mpmd.fragment<mesh="beta", origin=["f"(1)]> (%q) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["g"]> (%q) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %p : !A
}
// warning: Number of forward scheduling units in mesh alpha does not match expected number for 1 microbatches. Got 0
// warning: Number of forward scheduling units in mesh beta does not match expected number for 1 microbatches. Got 2

// ----- Counters that start at one
// There are as many microbatches as the greatest counter says, and one more if there is a counter 0.
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="beta", origin=["f"]> (%q) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.fragment<mesh="beta", origin=["f"(1)]> (%q) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  return %p : !A
}
// fine

// ----- A host mesh is no stage
func.func @main(%p: !A) -> !A attributes {topology = #host} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %p : !A
}
// warning: Number of backward scheduling units in mesh alpha does not match expected number for 1 microbatches. Got 0
