// passes: mpmd-fragment-dedup
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Returned arguments of equal operands are equal results
func.func @main(%p: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    mpmd.return %x, %y, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">)
  %1 = mpmd.transfer %0#2 : (!mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">) -> !A
  return %0#0, %0#1, %1 : !A, !A, !A
}
// =>
func.func @main(%p: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    mpmd.return %x, %x, %x : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">)
  %1 = mpmd.transfer %0#2 : (!mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">) -> !A
  return %0#0, %0#0, %1 : !A, !A, !A
}

// ----- Uses in nested regions are redirected
// passes: mpmd-fragment-dedup,mpmd-fragment-dce
func.func @main(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %w = stablehlo.while(%i = %x) : tensor<4xf32> cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %n = stablehlo.add %i, %y : tensor<4xf32>
      stablehlo.return %n : tensor<4xf32>
    }
    mpmd.return %w : tensor<4xf32>
  } : (!A, !A) -> !A
  return %0 : !A
}
// =>
func.func @main(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %1 = stablehlo.while(%iterArg = %arg1) : tensor<4xf32>
    cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %2 = stablehlo.add %iterArg, %arg1 : tensor<4xf32>
      stablehlo.return %2 : tensor<4xf32>
    }
    mpmd.return %1 : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Different values stay different results
func.func @main(%p: !A, %q: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    mpmd.return %x, %y, %x : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  return %0#0, %0#1, %0#2 : !A, !A, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A) -> (!A, !A, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    mpmd.return %arg2, %arg3, %arg2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  return %0#0, %0#1, %0#0 : !A, !A, !A
}
