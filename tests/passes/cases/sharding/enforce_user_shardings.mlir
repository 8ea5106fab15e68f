// passes: mpmd-enforce-user-shardings
!s = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>
!t = !mpmd.mesh_tensor<"s1", tensor<8x6xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>

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

// ----- Sub-axes are cut
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!s) -> !s
    return %f : !s
  }
}
// =>
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{"e"}, {?}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@mesh, [{"e"}, {?}]>], out_shardings=[<@mesh, [{"e"}, {?}]>]> (%a) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!s) -> !s
    return %f : !s
  }
}

// ----- Sub-axes are cut with a warning
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!s) -> !s
    return %f : !s
  }
}
// warning: argument 0 of @main has a sharding with sub-axes, which program inputs and outputs cannot
// warning: result 0 of @main has a sharding with sub-axes, which program inputs and outputs cannot

// ----- Sub-axes are cut with a warning for all functions
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!s) -> !s
    return %f : !s
  }
  func.func public @other(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{"e", "d":(1)2, ?}, {?}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!s) -> !s
    return %f : !s
  }
}
// warning: argument 0 of @main has a sharding with sub-axes, which program inputs and outputs cannot
// warning: result 0 of @main has a sharding with sub-axes, which program inputs and outputs cannot

// ----- Only the last transfer of a chain changes
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{"e"}, {}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"d"}, {}]>]>} %a : (!s) -> !t
    %u = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"d"}, {}]>]>} %t : (!t) -> !s
    return %u : !s
  }
}
// =>
module {
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (!s {sdy.sharding = #sdy.sharding<@mesh, [{"e"}, {}]>})
      attributes {topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"d"}, {}]>]>} %a : (!s) -> !t
    %u = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"e"}, {}]>]>} %t : (!t) -> !s
    return %u : !s
  }
}

// ----- A new list says nothing about the other operands
// passes: mpmd-enforce-user-shardings
// They keep types without sharding, while a list that exists types them.
sdy.mesh @mesh = <["d"=4, "e"=2]>
func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %b: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a, %b) (%x: tensor<8x6xf32>, %y: tensor<8x6xf32>) {
    mpmd.return %x : tensor<8x6xf32>
  } : (!s, !s) -> !s
  return %f : !s
}
// =>
sdy.mesh @mesh = <["d"=4, "e"=2]>
func.func public @main(%arg0: !s {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{?}, {?}]>]> (%arg0, %arg1) {mpmd.unset_in_shardings = array<i64: 1>} (%arg2: tensor<8x6xf32>, %arg3: tensor<8x6xf32>) {
    mpmd.return %arg2 : tensor<8x6xf32>
  } : (!s, !s) -> !s
  return %0 : !s
}

// ----- A list that says nothing about an operand
// passes: mpmd-convert-sdy-shardings-to-mpmd-types
sdy.mesh @mesh = <["d"=4, "e"=2]>
func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %b: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{?}, {?}]>]> (%a, %b) {mpmd.unset_in_shardings = array<i64: 1>} (%x: tensor<8x6xf32>, %y: tensor<8x6xf32>) {
    mpmd.return %x : tensor<8x6xf32>
  } : (!s, !s) -> !s
  return %0 : !s
}
// =>
sdy.mesh @mesh = <["d"=4, "e"=2]>
func.func public @main(%arg0: !mpmd.mesh_tensor<"s0", tensor<8x6xf32>, sharding=<@mesh, [{}, {}]>>, %arg1: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<8x6xf32>, %arg3: tensor<8x6xf32>) {
    mpmd.return %arg2 : tensor<8x6xf32>
  } : (!mpmd.mesh_tensor<"s0", tensor<8x6xf32>, sharding=<@mesh, [{}, {}]>>, !s) -> !s
  return %0 : !s
}

// ----- Shardings are enforced and converted
// passes: mpmd-enforce-user-shardings,mpmd-convert-sdy-shardings-to-mpmd-types
sdy.mesh @mesh = <["d"=4, "e"=2]>
func.func public @main(%a: !s {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %b: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a, %b) (%x: tensor<8x6xf32>, %y: tensor<8x6xf32>) {
    mpmd.return %x : tensor<8x6xf32>
  } : (!s, !s) -> !s
  return %f : !s
}
// =>
sdy.mesh @mesh = <["d"=4, "e"=2]>
func.func public @main(%arg0: !mpmd.mesh_tensor<"s0", tensor<8x6xf32>, sharding=<@mesh, [{}, {}]>>, %arg1: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<8x6xf32>, %arg3: tensor<8x6xf32>) {
    mpmd.return %arg2 : tensor<8x6xf32>
  } : (!mpmd.mesh_tensor<"s0", tensor<8x6xf32>, sharding=<@mesh, [{}, {}]>>, !s) -> !s
  return %0 : !s
}
