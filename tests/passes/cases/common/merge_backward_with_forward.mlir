// passes: mpmd-merge-backward-with-forward
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Steady state
// What follows on the mesh is the forward of a later microbatch; the values of both leave together.
func.func @main(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"], stage=0> (%q) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %n = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.transfer %0 : (!A) -> !B
  return %2, %1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1), "f"], stage=0> (%arg0, %arg1) {mpmd.merged_call_counters = [0 : ui32, 3 : ui32]} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %2 = stablehlo.negate %arg2 : tensor<4xf32>
    %3 = stablehlo.abs %arg3 : tensor<4xf32>
    mpmd.return %2, %3 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  %1 = mpmd.transfer %0#0 : (!A) -> !B
  return %1, %0#1 : !B, !A
}

// ----- What has to run between prevents it
// The forward needs what another mesh makes of the result of the backward.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["g"]> (%1) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=["f"]> (%3) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %4 : !A
}

// ----- Others stay apart (1)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"], stage=1> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Others stay apart (2)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Others stay apart (3)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Others stay apart (4)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Others stay apart (5)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Others stay apart (6)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Others stay apart (7)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32, split_keep_transferred} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Others stay apart (8)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32, remat} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Others stay apart (9)
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- What the backward sends is used before the forward runs
// passes: mpmd-merge-backward-with-forward
// The forward moves up, its input is there.
func.func @main(%p: !A) -> (!B, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["g"(1)]> (%1) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %2, %3 : !B, !A
}
// =>
func.func @main(%arg0: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1), "f"]> (%arg0) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    %4 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3, %4 : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  %1 = mpmd.transfer %0#0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["g"(1)]> (%1) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.abs %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!B) -> !B
  return %2, %0#1 : !B, !A
}

// ----- Blocks take in no third fragment
// passes: mpmd-merge-backward-with-forward
func.func @main(%p: !A) -> (!A, !A, !A, !A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 2 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 4 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1, %2, %3, %4 : !A, !A, !A, !A, !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A, !A, !A, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1), "f"]> (%arg0) {mpmd.merged_call_counters = [0 : ui32, 2 : ui32]} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    %4 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3, %4 : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"(1), "f"]> (%arg0) {mpmd.merged_call_counters = [1 : ui32, 3 : ui32]} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    %4 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3, %4 : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) {call_counter = 4 : ui32} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A) -> !A
  return %0#0, %0#1, %1#0, %1#1, %2 : !A, !A, !A, !A, !A
}

// ----- Results that a loop reads
// passes: mpmd-merge-backward-with-forward
// A loop between the two reads the result of the backward: it cannot wait for the forward, which can come first.
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.for (%0) {iterations = 2 : ui32, unroll_factor = 1 : ui32} (%a: !A, %i: tensor<ui32>) {
    %b = mpmd.fragment<mesh="alpha", origin=[]> (%0) (%x: tensor<4xf32>) {
      %y = stablehlo.negate %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %b : !A
  } : !A
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1, %2 : !A, !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1), "f"]> (%arg0) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %2, %3 : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  %1 = mpmd.for (%0#0) {iterations = 2 : ui32, unroll_factor = 1 : ui32} (%arg1: !A, %index: tensor<ui32>) {
    %2 = mpmd.fragment<mesh="alpha", origin=[]> (%0#0) (%arg2: tensor<4xf32>) {
      %3 = stablehlo.negate %arg2 : tensor<4xf32>
      mpmd.return %3 : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %2 : !A
  } : !A
  return %1, %0#1 : !A, !A
}
