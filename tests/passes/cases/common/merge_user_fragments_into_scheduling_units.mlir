// passes: mpmd-merge-user-fragments-into-scheduling-units
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Mixed phases are refused
// A fragment with forward and backward origins belongs to no unit.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f", "g"(1)]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// error: mixes phases

// ----- Phases stay apart
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}

// ----- Microbatches stay apart
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}

// ----- Stages stay apart
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"], stage=0> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"], stage=1> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}

// ----- Inferred fragments stay apart
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}

// ----- Mixed phases are refused only where the first user could be merged
func.func @main(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f", "f"(1)]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1, %2 : !A, !A
}
