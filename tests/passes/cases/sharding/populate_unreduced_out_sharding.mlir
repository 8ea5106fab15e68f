// passes: mpmd-populate-unreduced-out-sharding
!s = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>

// ----- Dims of an existing list are kept
module {
  sdy.mesh @m2 = <["d"=2, "e"=2]>
  func.func public @main(%a: !s) -> (!s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"], out_shardings=[<@m2, [{"e"}, {?}]>]> (%a)
    (%x: tensor<8x6xf32>) {
      %c = sdy.sharding_constraint %x <@m2, [{}, {"e"}], unreduced={"d"}> : tensor<8x6xf32>
      mpmd.return %c : tensor<8x6xf32>
    } : (!s) -> (!s)
    return %f : !s
  }
}
// =>
module {
  sdy.mesh @m2 = <["d"=2, "e"=2]>
  func.func public @main(%a: !s) -> (!s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"], out_shardings=[<@m2, [{"e"}, {?}], unreduced={"d"}>]> (%a)
    (%x: tensor<8x6xf32>) {
      %c = sdy.sharding_constraint %x <@m2, [{}, {"e"}], unreduced={"d"}> : tensor<8x6xf32>
      mpmd.return %c : tensor<8x6xf32>
    } : (!s) -> (!s)
    return %f : !s
  }
}

// ----- Nothing changes without unreduced axes or when they are there (1)
module {
  sdy.mesh @m2 = <["d"=2, "e"=2]>
  func.func public @main(%a: !s) -> (!s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a)
    (%x: tensor<8x6xf32>) {
      %c = sdy.sharding_constraint %x <@m2, [{}, {"e"}]> : tensor<8x6xf32>
      mpmd.return %c : tensor<8x6xf32>
    } : (!s) -> (!s)
    return %f : !s
  }
}

// ----- Nothing changes without unreduced axes or when they are there (2)
module {
  sdy.mesh @m2 = <["d"=2, "e"=2]>
  func.func public @main(%a: !s) -> (!s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"], out_shardings=[<@m2, [{}, {}], unreduced={"d"}>]> (%a)
    (%x: tensor<8x6xf32>) {
      %c = sdy.sharding_constraint %x <@m2, [{}, {"e"}], unreduced={"d"}> : tensor<8x6xf32>
      mpmd.return %c : tensor<8x6xf32>
    } : (!s) -> (!s)
    return %f : !s
  }
}

// ----- Nothing changes without unreduced axes or when they are there (3)
module {
  sdy.mesh @m2 = <["d"=2, "e"=2]>
  func.func public @main(%a: !s) -> (!s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a)
    (%x: tensor<8x6xf32>) {
      %c = sdy.sharding_constraint %x <@m2, [{}, {"e"}], unreduced={"d"}> : tensor<8x6xf32>
      %c2 = stablehlo.sine %c : tensor<8x6xf32>
      mpmd.return %c2 : tensor<8x6xf32>
    } : (!s) -> (!s)
    return %f : !s
  }
}

// ----- A new list refers to the mesh of the constraint
module {
  sdy.mesh @m2 = <["d"=2, "e"=2]>
  func.func public @main(%a: !s) -> (!s, !s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>>} {
    %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%a)
    (%x: tensor<8x6xf32>) {
      %c = sdy.sharding_constraint %x <@m2, [{}, {"e"}], unreduced={"d"}> : tensor<8x6xf32>
      mpmd.return %x, %c : tensor<8x6xf32>, tensor<8x6xf32>
    } : (!s) -> (!s, !s)
    return %f#0, %f#1 : !s, !s
  }
}
// =>
module {
  sdy.mesh @m2 = <["d"=2, "e"=2]>
  func.func public @main(%a: !s) -> (!s, !s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>>} {
    %f:2 = mpmd.fragment<mesh="s0", origin=["f"], out_shardings=[<@m2, [{}, {}]>, <@m2, [{}, {}], unreduced={"d"}>]> (%a)
    (%x: tensor<8x6xf32>) {
      %c = sdy.sharding_constraint %x <@m2, [{}, {"e"}], unreduced={"d"}> : tensor<8x6xf32>
      mpmd.return %x, %c : tensor<8x6xf32>, tensor<8x6xf32>
    } : (!s) -> (!s, !s)
    return %f#0, %f#1 : !s, !s
  }
}
