// passes: mpmd-mark-aliasing-and-donation
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#more = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>

// ----- A mark that is there already is an error
func.func public @main(%p: !s {jax.buffer_donor = true}) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {arg_attrs = [{jax.buffer_donor = true}]} (%x: tensor<4xf32>) { %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  return %f : !s
}
// error: jax.buffer_donor
