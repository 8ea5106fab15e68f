// passes: mpmd-generate-sdy-meshes-from-topology

// ----- Meshes without axes and maximal meshes stay
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
module {
  sdy.mesh @empty_mesh = <[]>
  sdy.mesh @one = <[], device_ids=[3]>
  sdy.mesh @old = <["fast_x"=2]>
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@one, []>},
                  %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}]>},
                  %c: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{}]>})
      -> tensor<8xf32> attributes {topology = #topo} {
    return %a : tensor<8xf32>
  }
}
// =>
module {
  sdy.mesh @fast = <["fast_x"=2]>
  sdy.mesh @slow = <["slow_y"=2]>
  sdy.mesh @empty_mesh = <[]>
  sdy.mesh @one = <[], device_ids=[3]>
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@one, []>},
                  %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}]>},
                  %c: tensor<8xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}]>})
      -> tensor<8xf32> attributes {topology = #topo} {
    return %a : tensor<8xf32>
  }
}

// ----- Constraints inside of named computations
#topo = #mpmd.topology<<"fast" : <["fast_x"=2, "fast_z"=4]>>, <"slow" : <["slow_y"=2]>>>
module {
  sdy.mesh @old = <["fast_x"=2, "fast_z"=4]>
  func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> attributes {topology = #topo} {
    %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<8xf32>) {
      %1 = sdy.sharding_constraint %x <@old, [{"fast_z":(1)2}],
          replicated={"fast_x"}> : tensor<8xf32>
      mpmd.return %1 : tensor<8xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
// =>
module {
  sdy.mesh @fast = <["fast_x"=2, "fast_z"=4]>
  sdy.mesh @slow = <["slow_y"=2]>
  func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> attributes {topology = #topo} {
    %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<8xf32>) {
      %1 = sdy.sharding_constraint %x <@fast, [{"fast_z":(1)2}],
          replicated={"fast_x"}> : tensor<8xf32>
      mpmd.return %1 : tensor<8xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// ----- Replicated and unreduced axes name their mesh too
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
// The reference points these to the empty mesh, which does not have their axes.
module {
  sdy.mesh @old = <["fast_x"=2, "slow_y"=2]>
  func.func @main(
      %a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{}], replicated={"fast_x"}>},
      %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{?}], unreduced={"slow_y"}>})
      attributes {topology = #topo} {
    return
  }
}
// =>
module {
  sdy.mesh @fast = <["fast_x"=2]>
  sdy.mesh @slow = <["slow_y"=2]>
  func.func @main(
      %a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@fast, [{}], replicated={"fast_x"}>},
      %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@slow, [{?}], unreduced={"slow_y"}>})
      attributes {topology = #topo} {
    return
  }
}

// ----- A module without meshes gets them
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
module { func.func @main() attributes {topology = #topo} { return } }
// =>
module {
  sdy.mesh @fast = <["fast_x"=2]>
  sdy.mesh @slow = <["slow_y"=2]>
  func.func @main() attributes {topology = #topo} { return }
}

// ----- Wrong axes (1)
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
module {
  sdy.mesh @old = <["x"=2]>
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{"x"}]>})
      attributes {topology = #topo} {
    return
  }
}
// error: does not say its mesh

// ----- Wrong axes (2)
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
module {
  sdy.mesh @old = <["x_"=2]>
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{"x_"}]>})
      attributes {topology = #topo} {
    return
  }
}
// error: does not say its mesh

// ----- Wrong axes (3)
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
module {
  sdy.mesh @old = <["fast_x"=2, "slow_y"=2]>
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{"fast_x", "slow_y"}]>})
      attributes {topology = #topo} {
    return
  }
}
// error: mixes axes of different meshes

// ----- Wrong axes (4)
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
module {
  sdy.mesh @old = <["old_x"=2]>
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{"old_x"}]>})
      attributes {topology = #topo} {
    return
  }
}
// error: the program has an sdy mesh of that name

// ----- Wrong axes (5)
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
module {
  sdy.mesh @old = <["other_x"=2]>
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@old, [{"other_x"}]>})
      attributes {topology = #topo} {
    return
  }
}
// error: which is not in the topology

// ----- An empty mesh with axes is an error
#topo = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
module {
  sdy.mesh @empty_mesh = <["fast_x"=2]>
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}]>})
      attributes {topology = #topo} {
    return
  }
}
// error: must be a mesh without axes

// ----- No topology is an error
module {}
// error: no function of the module has a topology
