// passes: mpmd-sink-create-token-into-fragments
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>

// ----- Several tokens come in operand order and lists are filtered
module { sdy.mesh @m = <["d"=2]>
func.func public @main(%p: !s, %k: !stablehlo.token, %l: !stablehlo.token) -> !s
    attributes {topology = #topo} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@m, [{"d"}]>, <@m, []>, <@m, []>],
      out_shardings=[<@m, []>, <@m, [{"d"}]>]> (%p, %k, %l)
      {arg_attrs = [{a}, {b}, {c}], res_attrs = [{t}, {r}]}
      (%x: tensor<4xf32>, %m: !stablehlo.token, %n: !stablehlo.token) {
    %o = stablehlo.after_all %n, %m : !stablehlo.token
    mpmd.return %o, %x : !stablehlo.token, tensor<4xf32>
  } : (!s, !stablehlo.token, !stablehlo.token) -> (!stablehlo.token, !s)
  return %f#1 : !s
}
}
// =>
module { sdy.mesh @m = <["d"=2]>
func.func public @main(%p: !s, %k: !stablehlo.token, %l: !stablehlo.token) -> !s
    attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@m, [{"d"}]>], out_shardings=[<@m, [{"d"}]>]>
      (%p) {arg_attrs = [{a}], res_attrs = [{r}]} (%x: tensor<4xf32>) {
    %m = stablehlo.create_token : !stablehlo.token
    %n = stablehlo.create_token : !stablehlo.token
    %o = stablehlo.after_all %n, %m : !stablehlo.token
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
}

// ----- A token that something else uses is an error
func.func public @main(%p: !s) -> !stablehlo.token attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %k = stablehlo.create_token : !stablehlo.token
    mpmd.return %k : !stablehlo.token
  } : (!s) -> !stablehlo.token
  return %f : !stablehlo.token
}
// error: func.return
