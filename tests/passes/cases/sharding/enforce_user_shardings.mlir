// passes: mpmd-enforce-user-shardings
!s = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>

// ----- A returned argument is cut like the result
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{"e"}, {?}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d":(1)2}]>}, !s {sdy.sharding = #sdy.sharding<@mesh, [{"e"}, {}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    return %a, %a : !s, !s
  }
}
// =>
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d":(1)2}]>}, !s {sdy.sharding = #sdy.sharding<@mesh, [{"e"}, {}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    return %a, %a : !s, !s
  }
}

// ----- Private functions and missing user shardings change nothing (1)
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s) -> (!s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@mesh, [{"d"}, {}]>]> (%a) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!s) -> !s
    return %f : !s
  }
}

// ----- Private functions and missing user shardings change nothing (2)
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func private @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (!s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@mesh, [{"d"}, {}]>]> (%a) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!s) -> !s
    return %f : !s
  }
}
