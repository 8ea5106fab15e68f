// passes: mpmd-prefer-rows
!t = tensor<4xf32>
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>>

// ----- A part of the batch that two merged fragments read
// Forward of 0, forward of 1 merged with backward of 0, backward of 1: each part is read by two of them.
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%p0: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %p1: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %w: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !a attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p0, %w) {call_counter = 0 : ui32} (%v: !t, %u: !t) {
    %s = stablehlo.add %v, %u : !t
    mpmd.return %s : !t
  } : (!a, !a) -> !a
  %1 = mpmd.fragment<mesh="a", origin=["f", "f"(1)]> (%p0, %w) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%v: !t, %u: !t) {
    %s = stablehlo.add %v, %u : !t
    mpmd.return %s : !t
  } : (!a, !a) -> !a
  %2 = mpmd.fragment<mesh="a", origin=["f", "f"(1)]> (%p1, %w) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%v: !t, %u: !t) {
    %s = stablehlo.add %v, %u : !t
    mpmd.return %s : !t
  } : (!a, !a) -> !a
  %3 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%p1, %w) {call_counter = 1 : ui32} (%v: !t, %u: !t) {
    %s = stablehlo.add %v, %u : !t
    mpmd.return %s : !t
  } : (!a, !a) -> !a
  return %w : !a
}
// =>
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%arg0: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %arg1: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %arg2: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p1]>}) -> !a attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0, %arg2) {call_counter = 0 : ui32} (%arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %4 = stablehlo.add %arg3, %arg4 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!a, !a) -> !a
  %1 = mpmd.fragment<mesh="a", origin=["f", "f"(1)]> (%arg0, %arg2) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %4 = stablehlo.add %arg3, %arg4 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!a, !a) -> !a
  %2 = mpmd.fragment<mesh="a", origin=["f", "f"(1)]> (%arg1, %arg2) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %4 = stablehlo.add %arg3, %arg4 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!a, !a) -> !a
  %3 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%arg1, %arg2) {call_counter = 1 : ui32} (%arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %4 = stablehlo.add %arg3, %arg4 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!a, !a) -> !a
  return %arg2 : !a
}
