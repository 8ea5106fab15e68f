// passes: mpmd-delay-inferred-fragments
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>

// ----- Chains move together and unused ones stay
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %a = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=[]> (%a) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %n = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %u = mpmd.fragment<mesh="s0", origin=["u"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %v = mpmd.fragment<mesh="s0", origin=["v"]> (%b) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %v : !s
}
// =>
func.func public @main(%arg0: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["u"]> (%arg0) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.tanh %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %3 = mpmd.fragment<mesh="s0", origin=[]> (%2) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %4 = mpmd.fragment<mesh="s0", origin=["v"]> (%3) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.abs %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  return %4 : !s
}

// ----- The first user is found in the new order
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %c = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %a = mpmd.fragment<mesh="s0", origin=[]> (%c) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=[]> (%c) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %u = mpmd.fragment<mesh="s0", origin=["u"]> (%b) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %v = mpmd.fragment<mesh="s0", origin=["v"]> (%a) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %v : !s
}
// =>
func.func public @main(%arg0: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=[]> (%0) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=["u"]> (%1) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.tanh %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %3 = mpmd.fragment<mesh="s0", origin=[]> (%0) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  %4 = mpmd.fragment<mesh="s0", origin=["v"]> (%3) (%arg1: tensor<4xf32>) {
    %5 = stablehlo.abs %arg1 : tensor<4xf32>
    mpmd.return %5 : tensor<4xf32>
  } : (!s) -> !s
  return %4 : !s
}
