// passes: mpmd-split-bwd-fragments
!M = tensor<4x4xf32>
!W = !mpmd.mesh_tensor<"alpha", tensor<4x4xf32>>
!V = !mpmd.mesh_tensor<"beta", tensor<4x4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- The first stage is split only on request (1)
func.func @main(%w1: !W, %w2: !W, %x0: !W, %x1: !W, %g: !V) -> (!W, !W) attributes {topology = #topo} {
  %t = mpmd.transfer %g : (!V) -> !W
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%w2, %x0, %x1, %t)
  (%b: !M, %c: !M, %d: !M, %e: !M) {
    %dz2 = stablehlo.sine %e : !M
    %dw2 = stablehlo.dot_general %d, %dz2, contracting_dims = [0] x [0] : (!M, !M) -> !M
    %dx1 = stablehlo.dot_general %dz2, %b, contracting_dims = [1] x [1] : (!M, !M) -> !M
    %dw1 = stablehlo.dot_general %c, %dx1, contracting_dims = [0] x [0] : (!M, !M) -> !M
    mpmd.return %dw1, %dw2 : !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W)
  return %0#0, %0#1 : !W, !W
}

// ----- The first stage is split only on request (2)
// passes: mpmd-split-bwd-fragments{split-first-stage=true},mpmd-fragment-dedup,mpmd-fragment-dce
func.func @main(%w1: !W, %w2: !W, %x0: !W, %x1: !W, %g: !V) -> (!W, !W) attributes {topology = #topo} {
  %t = mpmd.transfer %g : (!V) -> !W
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%w2, %x0, %x1, %t)
  (%b: !M, %c: !M, %d: !M, %e: !M) {
    %dz2 = stablehlo.sine %e : !M
    %dw2 = stablehlo.dot_general %d, %dz2, contracting_dims = [0] x [0] : (!M, !M) -> !M
    %dx1 = stablehlo.dot_general %dz2, %b, contracting_dims = [1] x [1] : (!M, !M) -> !M
    %dw1 = stablehlo.dot_general %c, %dx1, contracting_dims = [0] x [0] : (!M, !M) -> !M
    mpmd.return %dw1, %dw2 : !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W)
  return %0#0, %0#1 : !W, !W
}
// =>
func.func @main(%w1: !W, %w2: !W, %x0: !W, %x1: !W, %g: !V) -> (!W, !W) attributes {topology = #topo} {
  %t = mpmd.transfer %g : (!V) -> !W
  %0:4 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%w2, %x0, %x1, %t) {split_keep_transferred}
  (%b: !M, %c: !M, %d: !M, %e: !M) {
    %dz2 = stablehlo.sine %e : !M
    %dx1 = stablehlo.dot_general %dz2, %b, contracting_dims = [1] x [1] : (!M, !M) -> !M
    mpmd.return %dz2, %d, %dx1, %c : !M, !M, !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W, !W, !W)
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%0#0, %0#1, %0#2, %0#3) {split_drop_transferred}
  (%e: !M, %d: !M, %f: !M, %c: !M) {
    %dw2 = stablehlo.dot_general %d, %e, contracting_dims = [0] x [0] : (!M, !M) -> !M
    %dw1 = stablehlo.dot_general %c, %f, contracting_dims = [0] x [0] : (!M, !M) -> !M
    mpmd.return %dw1, %dw2 : !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W)
  return %1#0, %1#1 : !W, !W
}

// ----- A stage of one layer has nothing to split
// passes: mpmd-split-bwd-fragments{split-first-stage=true}
func.func @main(%w1: !W, %w2: !W, %x0: !W, %x1: !W, %g: !V) -> (!W, !W) attributes {topology = #topo} {
  %t = mpmd.transfer %g : (!V) -> !W
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%w2, %x0, %x1, %t)
  (%b: !M, %c: !M, %d: !M, %e: !M) {
    %dz2 = stablehlo.sine %e : !M
    %dw2 = stablehlo.dot_general %d, %dz2, contracting_dims = [0] x [0] : (!M, !M) -> !M
    %dx1 = stablehlo.dot_general %dz2, %b, contracting_dims = [1] x [1] : (!M, !M) -> !M
    %dw1 = stablehlo.dot_general %c, %dx1, contracting_dims = [0] x [0] : (!M, !M) -> !M
    mpmd.return %dw2, %dw2 : !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W)
  return %0#0, %0#1 : !W, !W
}
