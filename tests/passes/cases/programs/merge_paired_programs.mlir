// passes: mpmd-merge-paired-programs
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>
!H = !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="pinned_host">

// ----- The pair of each microbatch is one program
// It keeps the number of the microbatch.
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a1f) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1b : !A, !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.sine %2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.sine %2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}
// bodies: 1

// ----- A forward that another stage runs stays
// No program would be saved.
func.func @main(%p: !A, %q: !B) -> (!A, !A, !B) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %b0 = mpmd.fragment<mesh="beta", origin=["g"]> (%q) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!B) -> !B
  %a1f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a1f) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1b, %b0 : !A, !A, !B
}

// ----- A backward that another stage runs stays
// No program would be saved.
func.func @main(%p: !A, %q: !B) -> (!A, !A, !B) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %b0 = mpmd.fragment<mesh="beta", origin=["g"]> (%q) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!B) -> !B
  %a1f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a1f) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1b, %b0 : !A, !A, !B
}

// ----- All microbatches or none
// A forward without a backward at its side needs the program of the forward, so the others run that too.
func.func @main(%p: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a2 = mpmd.fragment<mesh="alpha", origin=["g"]> (%p) (%x0: tensor<4xf32>) {
    %y0 = stablehlo.cosine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a1f) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1b, %a2 : !A, !A, !A
}

// ----- What depends on a pair that stays stays
// The first forward runs alone, too; hence its backward, and hence the other forward of that.
func.func @main(%p: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.tanh %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a1f) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a2f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 2 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1b, %a2f : !A, !A, !A
}

// ----- Forwards that differ may have one backward
// As where the last one finishes the sum of the losses: two programs instead of three.
func.func @main(%p: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a1f) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a2f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 2 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.tanh %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a2b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a2f) {call_counter = 2 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1b, %a2b : !A, !A, !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    %4 = stablehlo.sine %3 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    %4 = stablehlo.sine %3 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 2 : ui32} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.tanh %arg1 : tensor<4xf32>
    %4 = stablehlo.sine %3 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1, %2 : !A, !A, !A
}
// bodies: 2

// ----- Nobody waits longer for what the forward sends
func.func @main(%p: !A) -> (!A, !B) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %b0 = mpmd.transfer %a0f : (!A) -> !B
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %b0 : !A, !B
}

// ----- The forward waits for no more than it needs
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %b0 = mpmd.fragment<mesh="beta", origin=["g"]> (%q) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.abs %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!B) -> !B
  %a0 = mpmd.transfer %b0 : (!B) -> !A
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f, %a0) {call_counter = 0 : ui32} (%x0: tensor<4xf32>, %x1: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    %y1 = stablehlo.add %y0, %x1 : tensor<4xf32>
    mpmd.return %y1 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %a0b : !A
}

// ----- A forward that needs what its backward needs
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %b0 = mpmd.fragment<mesh="beta", origin=["g"]> (%q) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.abs %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!B) -> !B
  %a0 = mpmd.transfer %b0 : (!B) -> !A
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %a0) {call_counter = 0 : ui32} (%x0: tensor<4xf32>, %x1: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    %y1 = stablehlo.add %y0, %x1 : tensor<4xf32>
    mpmd.return %y1 : tensor<4xf32>
  } : (!A, !A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f, %a0) {call_counter = 0 : ui32} (%x0: tensor<4xf32>, %x1: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    %y1 = stablehlo.add %y0, %x1 : tensor<4xf32>
    mpmd.return %y1 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %a0b : !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="beta", origin=["g"]> (%arg1) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %3 = stablehlo.abs %arg2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!B) -> !B
  %1 = mpmd.transfer %0 : (!B) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0, %1) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %3 = stablehlo.negate %arg2 : tensor<4xf32>
    %4 = stablehlo.add %3, %arg3 : tensor<4xf32>
    %5 = stablehlo.sine %4 : tensor<4xf32>
    %6 = stablehlo.add %5, %arg3 : tensor<4xf32>
    mpmd.return %6 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %2 : !A
}

// ----- A forward that waits for what is computed later still
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %b0 = mpmd.fragment<mesh="beta", origin=["g"]> (%q) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.abs %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!B) -> !B
  %a0 = mpmd.transfer %b0 : (!B) -> !A
  %b1 = mpmd.fragment<mesh="beta", origin=["h"]> (%b0) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.cosine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!B) -> !B
  %a1 = mpmd.transfer %b1 : (!B) -> !A
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %a1) {call_counter = 0 : ui32} (%x0: tensor<4xf32>, %x1: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    %y1 = stablehlo.add %y0, %x1 : tensor<4xf32>
    mpmd.return %y1 : tensor<4xf32>
  } : (!A, !A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f, %a0) {call_counter = 0 : ui32} (%x0: tensor<4xf32>, %x1: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    %y1 = stablehlo.add %y0, %x1 : tensor<4xf32>
    mpmd.return %y1 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %a0b : !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="beta", origin=["g"]> (%arg1) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %5 = stablehlo.abs %arg2 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!B) -> !B
  %1 = mpmd.transfer %0 : (!B) -> !A
  %2 = mpmd.fragment<mesh="beta", origin=["h"]> (%0) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>) {
    %5 = stablehlo.cosine %arg2 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0, %3, %1) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %5 = stablehlo.negate %arg2 : tensor<4xf32>
    %6 = stablehlo.add %5, %arg3 : tensor<4xf32>
    %7 = stablehlo.sine %6 : tensor<4xf32>
    %8 = stablehlo.add %7, %arg4 : tensor<4xf32>
    mpmd.return %8 : tensor<4xf32>
  } : (!A, !A, !A) -> !A
  return %4 : !A
}

// ----- A backward that waits for an argument
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %a0 = mpmd.transfer %q : (!B) -> !A
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f, %a0) {call_counter = 0 : ui32} (%x0: tensor<4xf32>, %x1: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    %y1 = stablehlo.add %y0, %x1 : tensor<4xf32>
    mpmd.return %y1 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %a0b : !A
}
// =>
func.func @main(%arg0: !A, %arg1: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0, %0) {call_counter = 0 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %2 = stablehlo.negate %arg2 : tensor<4xf32>
    %3 = stablehlo.sine %2 : tensor<4xf32>
    %4 = stablehlo.add %3, %arg3 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %1 : !A
}

// ----- Zeros for a sum can as well be made in front of both
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1 = mpmd.fragment<mesh="alpha", origin=[]> () () {
    %y0 = stablehlo.constant dense<0.0> : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : () -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f, %a1) {call_counter = 0 : ui32} (%x0: tensor<4xf32>, %x1: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    %y1 = stablehlo.add %y0, %x1 : tensor<4xf32>
    mpmd.return %y1 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %a0b : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> () () {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    mpmd.return %cst : tensor<4xf32>
  } : () -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0, %0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.sine %2 : tensor<4xf32>
    %4 = stablehlo.add %3, %arg2 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!A, !A) -> !A
  return %1 : !A
}

// ----- Anything else between comes where the schedule has it
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.cosine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1 : !A, !A
}

// ----- What has effects comes where it is
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1 = mpmd.fragment<mesh="alpha", origin=[]> () () {
    %y0 = stablehlo.custom_call @f() {has_side_effect = true} : () -> tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : () -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1 : !A, !A
}

// ----- What the backward does not use is not its forward
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0f, %a0b : !A, !A
}

// ----- Another microbatch is another matter
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b : !A
}

// ----- What is recomputed stays apart
// XLA would find that both forwards are the same, and keep what was to be computed again.
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32, remat} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b : !A
}

// ----- What is kept on the host is not kept on the device
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !H
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!H) -> !A
  return %a0b : !A
}

// ----- Parts of blocks that were not merged are as others
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %a0f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32, mpmd.block = [0 : ui32, "F"]} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a0b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a0f) {call_counter = 0 : ui32, mpmd.block = [1 : ui32, "B"]} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1f = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.negate %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  %a1b = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%a1f) {call_counter = 1 : ui32} (%x0: tensor<4xf32>) {
    %y0 = stablehlo.sine %x0 : tensor<4xf32>
    mpmd.return %y0 : tensor<4xf32>
  } : (!A) -> !A
  return %a0b, %a1b : !A, !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.sine %2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%arg0) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.sine %2 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}
// bodies: 1
