// passes: mpmd-shardy-propagation
!a = !mpmd.mesh_tensor<"m0", tensor<8x6xf32>>
!b = !mpmd.mesh_tensor<"m1", tensor<8x6xf32>>
!r = !mpmd.mesh_tensor<"m0", tensor<8xf32>>
!s = !mpmd.mesh_tensor<"m1", tensor<8xf32>>
#one = #mpmd.topology<<"m0" : <["d"=2]>>>
#two = #mpmd.topology<<"m0" : <["d"=2]>>, <"m1" : <["d"=2]>>>

// ----- Fragments, transfers and results
sdy.mesh @mesh = <["d"=2]>
func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}, %q: !a) -> (!b, !a) attributes {topology = #two} {
  %f:2 = mpmd.fragment<mesh="m0", origin=["f"]> (%p, %q) (%x: tensor<8x6xf32>, %z: tensor<8x6xf32>) {
    %c = stablehlo.constant dense<1.0> : tensor<8x6xf32>
    %y = stablehlo.add %x, %c : tensor<8x6xf32>
    %w = stablehlo.add %z, %c : tensor<8x6xf32>
    mpmd.return %y, %w : tensor<8x6xf32>, tensor<8x6xf32>
  } : (!a, !a) -> (!a, !a)
  %t = mpmd.transfer %f#0 : (!a) -> !b
  return %t, %f#1 : !b, !a
}
// =>
sdy.mesh @mesh = <["d"=2]> {stablehlo.mesh = {axes = [{name = "d", size = 2 : i64}]}}
func.func public @main(%arg0: !a {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}, %arg1: !a) -> (!b {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}, !a) attributes {topology = #two} {
  %0:2 = mpmd.fragment<mesh="m0", origin=["f"], in_shardings=[<@mesh, [{"d"}, {}]>, <@mesh, [{}, {}]>], out_shardings=[<@mesh, [{"d"}, {}]>, <@mesh, [{}, {}]>]> (%arg0, %arg1) (%arg2: tensor<8x6xf32>, %arg3: tensor<8x6xf32>) {
    %2 = sdy.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"d"}, {}]>]>} dense<1.000000e+00> : tensor<8x6xf32>
    %3 = sdy.constant dense<1.000000e+00> : tensor<8x6xf32>
    %4 = stablehlo.add %arg2, %2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"d"}, {}]>]>} : tensor<8x6xf32>
    %5 = stablehlo.add %arg3, %3 : tensor<8x6xf32>
    mpmd.return %4, %5 : tensor<8x6xf32>, tensor<8x6xf32>
  } : (!a, !a) -> (!a, !a)
  %1 = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"d"}, {}]>]>} %0#0 : (!a) -> !b
  return %1, %0#1 : !b, !a
}

// ----- Meshes of another shape stop it
sdy.mesh @mesh = <["d"=2]>
func.func public @main(%p: !r {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}) -> !s
    attributes {topology = #mpmd.topology<<"m0" : <["d"=2]>>, <"m1" : <["d"=4]>>>} {
  %t = mpmd.transfer %p : (!r) -> !s
  return %t : !s
}
// =>
sdy.mesh @mesh = <["d"=2]> {stablehlo.mesh = {axes = [{name = "d", size = 2 : i64}]}}
func.func public @main(%arg0: !r {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}) -> !s attributes {topology = #mpmd.topology<<"m0" : <["d"=2]>>, <"m1" : <["d"=4]>>>} {
  %0 = mpmd.transfer %arg0 : (!r) -> !s
  return %0 : !s
}

// ----- Unused ops go and the others are still matched
sdy.mesh @mesh = <["d"=2]>
func.func public @main(%p: !r {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}, %q: !r) -> !r attributes {topology = #one} {
  %t = mpmd.transfer %q : (!r) -> !r
  %u = mpmd.transfer %t : (!r) -> !r
  %f = mpmd.fragment<mesh="m0", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<8xf32>) {
    %y = stablehlo.cosine %x : tensor<8xf32>
    mpmd.return %y : tensor<8xf32>
  } : (!r) -> !r
  return %f : !r
}
// =>
sdy.mesh @mesh = <["d"=2]> {stablehlo.mesh = {axes = [{name = "d", size = 2 : i64}]}}
func.func public @main(%arg0: !r {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}, %arg1: !r) -> (!r {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}) attributes {topology = #one} {
  %0 = mpmd.fragment<mesh="m0", origin=["f"], in_shardings=[<@mesh, [{"d"}]>], out_shardings=[<@mesh, [{"d"}]>]> (%arg0) {call_counter = 1 : ui32} (%arg2: tensor<8xf32>) {
    %1 = stablehlo.cosine %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"d"}]>]>} : tensor<8xf32>
    mpmd.return %1 : tensor<8xf32>
  } : (!r) -> !r
  return %0 : !r
}
