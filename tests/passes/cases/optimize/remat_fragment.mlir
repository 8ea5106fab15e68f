// passes: mpmd-remat-fragment
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>

// ----- Forward fragments that a backward reads are made again
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%g, %f) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}
// =>
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %r = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32, remat} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %r2 = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32, remat} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%r2, %r) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}

// ----- A forward that is made again is merged with its backward on request
// passes: mpmd-remat-fragment{merge-remat-fragments=true}
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%g, %f) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}
// =>
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc", "enc"(1)]> (%g, %a) {call_counter = 1 : ui32, remat} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %w = stablehlo.sine %z : tensor<4xf32>
    %y = stablehlo.multiply %x, %w : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}

// ----- A backward of another microbatch reads what was computed
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%g, %f) {call_counter = 2 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}

// ----- A backward without microbatch reads what was computed
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%g, %f) (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}

// ----- A fragment that is no backward reads what was computed
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(2)]> (%g, %f) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}

// ----- A backward of another stage reads what was computed
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)], stage=1> (%g, %f) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}

// ----- A backward directly behind its forward reads what was computed
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%g, %g) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}

// ----- What is made again shares its body
func.func public @main(%a: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["enc"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["dec"]> (%a) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%g, %f) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.multiply %x, %z : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %b, %g : !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["enc"]> (%arg0) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>) {
    %5 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["dec"]> (%arg0) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>) {
    %5 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=["enc"]> (%arg0) {call_counter = 1 : ui32, remat} (%arg1: tensor<4xf32>) {
    %5 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %3 = mpmd.fragment<mesh="s0", origin=["dec"]> (%arg0) {call_counter = 1 : ui32, remat} (%arg1: tensor<4xf32>) {
    %5 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %4 = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%3, %2) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    %5 = stablehlo.multiply %arg1, %arg2 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s, !s) -> !s
  return %4, %1 : !s, !s
}
// bodies: 3
