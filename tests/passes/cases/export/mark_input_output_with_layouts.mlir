// passes: mpmd-mark-input-output-with-layouts
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#both = #mpmd.topology<<"s0" : <["d"=2]>>, <"s0/cpu" : <["d"=2]>>>

// ----- Incompatible results are an error
func.func public @main(%p: !s) -> (!s {mhlo.layout_mode = "{1}"}, !s {mhlo.layout_mode = "{0}"}) attributes {topology = #both} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) { %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  return %f, %f : !s, !s }
// error: result 0 ... result 1

// ----- An argument returned with another layout is an error
func.func public @main(%p: !s) -> (!s {mhlo.layout_mode = "{0}"}) attributes {topology = #both} {
  return %p : !s }
// error: argument 0
