// passes: mpmd-extract-reshards-from-inter-mesh-transfers
!a = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>
!b = !mpmd.mesh_tensor<"s1", tensor<8x6xf32>>
!h = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>, memory_kind="pinned_host">
!k = !mpmd.mesh_tensor<"s1", tensor<8x6xf32>, memory_kind="pinned_host">

// ----- Functions of one mesh are an error
func.func public @main(%p: tensor<4xf32>) attributes {mesh_shape = #sdy.mesh<["d"=2]>} { return }
// error: topology

// ----- A larger argument is resharded at the producer
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh2, [{"d"}, {}]>}) -> (!b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{"d", "e"}, {}]>]>} %p : (!a) -> !b
    return %t : !b
  }
}
// =>
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh2, [{"d"}, {}]>}) -> (!b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %r = mpmd.fragment<mesh="s0", origin=[], out_shardings=[<@mesh2, [{"d", "e"}, {}]>]> (%p) {mpmd.inferred_by = ["extract_reshards"]} (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!a) -> !a
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{"d", "e"}, {}]>]>} %r : (!a) -> !b
    return %t : !b
  }
}

// ----- A fragment that makes the value reshards itself
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a) -> (!b, !a)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"], out_shardings=[<@mesh2, [{"d"}, {}]>]> (%p) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!a) -> !a
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{"d", "e"}, {}]>]>} %f : (!a) -> !b
    return %t, %f : !b, !a
  }
}
// =>
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a) -> (!b, !a)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"], out_shardings=[<@mesh2, [{"d", "e"}, {}]>]> (%p) (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!a) -> !a
    %r = mpmd.fragment<mesh="s0", origin=[], out_shardings=[<@mesh2, [{"d"}, {}]>]> (%f) {mpmd.inferred_by = ["extract_reshards"]} (%x: tensor<8x6xf32>) {
      mpmd.return %x : tensor<8x6xf32>
    } : (!a) -> !a
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{"d", "e"}, {}]>]>} %f : (!a) -> !b
    return %t, %r : !b, !a
  }
}

// ----- Different meshes are left alone
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh2, [{"d"}, {}]>}) -> (!b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=4]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {"e"}]>]>} %p : (!a) -> !b
    return %t : !b
  }
}

// ----- Replicated and absent are the same
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a) -> (!b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {?}]>]>} %p : (!a) -> !b
    return %t : !b
  }
}

// ----- Host to host is an error but no failure
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !h) -> (!k)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {"e"}]>]>} %p : (!h) -> !k
    return %t : !k
  }
}
// error, but no failure: the transfer goes from host memory of mesh 's0' to host memory of mesh 's1', where

// ----- Resharding warns once
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh2, [{"d"}, {}]>}) -> (!b, !b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {"e"}]>]>} %p : (!a) -> !b
    %u = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {"e"}]>]>} %p : (!a) -> !b
    return %t, %u : !b, !b
  }
}
// warning: a transfer from mesh 's0' to mesh 's1' changes the sharding from <@mesh2, [{"d"}, {}]> to

// ----- Resharding warns once for all functions
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh2, [{"d"}, {}]>}) -> (!b, !b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {"e"}]>]>} %p : (!a) -> !b
    %u = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {"e"}]>]>} %p : (!a) -> !b
    return %t, %u : !b, !b
  }
  func.func public @other(%p: !a {sdy.sharding = #sdy.sharding<@mesh2, [{"d"}, {}]>}) -> (!b, !b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {"e"}]>]>} %p : (!a) -> !b
    %u = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {"e"}]>]>} %p : (!a) -> !b
    return %t, %u : !b, !b
  }
}
// warning: a transfer from mesh 's0' to mesh 's1' changes the sharding from <@mesh2, [{"d"}, {}]> to

// ----- What becomes unreduced is resharded (1)
// An absent sharding is the same as no axes and no unreduced axes; the reference overlooks the latter.
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a) -> (!b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {}], unreduced={"d"}>]>} %p : (!a) -> !b
    return %t : !b
  }
}
// =>
sdy.mesh @mesh2 = <["d"=2, "e"=2]>
func.func public @main(%arg0: !a) -> !b attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
  %0 = mpmd.transfer %arg0 : (!a) -> !b
  %1 = mpmd.fragment<mesh="s1", origin=[], out_shardings=[<@mesh2, [{}, {}], unreduced={"d"}>]> (%0) {mpmd.inferred_by = ["extract_reshards"]} (%arg1: tensor<8x6xf32>) {
    mpmd.return %arg1 : tensor<8x6xf32>
  } : (!b) -> !b
  return %1 : !b
}

// ----- What becomes unreduced is resharded (2)
module {
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh2, [{}, {}], unreduced={"d"}>}) -> (!b)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
    %t = mpmd.transfer %p : (!a) -> !b
    return %t : !b
  }
}
// =>
sdy.mesh @mesh2 = <["d"=2, "e"=2]>
func.func public @main(%arg0: !a {sdy.sharding = #sdy.sharding<@mesh2, [{}, {}], unreduced={"d"}>}) -> !b attributes {topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <["d"=2, "e"=2]>>>} {
  %0 = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@mesh2, [{}, {}], unreduced={"d"}>]>} %arg0 : (!a) -> !b
  %1 = mpmd.fragment<mesh="s1", origin=[]> (%0) {mpmd.inferred_by = ["extract_reshards"]} (%arg1: tensor<8x6xf32>) {
    mpmd.return %arg1 : tensor<8x6xf32>
  } : (!b) -> !b
  return %1 : !b
}
