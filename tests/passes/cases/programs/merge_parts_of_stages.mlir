// passes: mpmd-merge-parts-of-stages
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Another phase stays apart
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Another microbatch stays apart
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"(1)], stage=0> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Another stage stays apart
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"(1)], stage=1> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- What is of no stage stays apart
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"(1)]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- What is inferred stays apart
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}

// ----- Parts of one stage, phase and microbatch
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %1 : !A, !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1), "g"(1)], stage=0> (%arg0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.negate %arg1 : tensor<4xf32>
    %2 = stablehlo.abs %arg1 : tensor<4xf32>
    mpmd.return %1, %2 : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  return %0#0, %0#1 : !A, !A
}

// ----- A cycle stays
// What lies between on another mesh needs the first and feeds the second.
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="beta", origin=["g"]> (%1) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=["f"], stage=0> (%3) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %4 : !A
}

// ----- Parts that are apart
// As a discriminator of data, what generates something, and the discriminator of that; then the next microbatch.
func.func @main(%p: !A) -> (!A, !A, !A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["d"], stage=1> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"], stage=0> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["e"], stage=1> (%1) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %3 = mpmd.fragment<mesh="alpha", origin=["d"], stage=1> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=["g"], stage=0> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %5 = mpmd.fragment<mesh="alpha", origin=["e"], stage=1> (%4) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %0, %2, %3, %5 : !A, !A, !A, !A
}
// =>
func.func @main(%arg0: !A) -> (!A, !A, !A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["g"], stage=0> (%arg0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    %4 = stablehlo.abs %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!A) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["d", "e"], stage=1> (%arg0, %0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    %4 = stablehlo.negate %arg1 : tensor<4xf32>
    %5 = stablehlo.negate %arg2 : tensor<4xf32>
    mpmd.return %4, %5 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  %2 = mpmd.fragment<mesh="alpha", origin=["g"], stage=0> (%arg0) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>) {
    %4 = stablehlo.abs %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!A) -> !A
  %3:2 = mpmd.fragment<mesh="alpha", origin=["d", "e"], stage=1> (%arg0, %2) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    %4 = stablehlo.negate %arg1 : tensor<4xf32>
    %5 = stablehlo.negate %arg2 : tensor<4xf32>
    mpmd.return %4, %5 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  return %1#0, %1#1, %3#0, %3#1 : !A, !A, !A, !A
}
