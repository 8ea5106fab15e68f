// passes: mpmd-convert-sdy-shardings-to-mpmd-types
!s = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>

// ----- Loops carry the sharding of their operands
!a = !mpmd.mesh_tensor<"s0", tensor<8xf32>>
module {
  sdy.mesh @m2 = <["d"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@m2, [{"d"}]>}) -> !a
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %r = mpmd.for (%p) {iterations = 3 : ui32, sdy.sharding = #sdy.sharding_per_value<[<@m2, [{"d"}]>]>}
    (%x: !a, %i: tensor<ui32>) {
      %f = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@m2, [{"d"}]>],
      out_shardings=[<@m2, [{"d"}]>]> (%x) (%y: tensor<8xf32>) {
        mpmd.return %y : tensor<8xf32>
      } : (!a) -> !a
      mpmd.return %f : !a
    } : !a
    return %r : !a
  }
}
// CHECK-NOT: !mpmd.mesh_tensor<"s0", tensor<8xf32>>

// ----- Send and recv and inherent shardings stay
!a = !mpmd.mesh_tensor<"s0", tensor<8xf32>>
module {
  sdy.mesh @m2 = <["d"=2]>
  func.func public @main(%p: !a) -> !a attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<8xf32>) {
      %k = stablehlo.create_token : !stablehlo.token
      %t = "stablehlo.send"(%x, %k) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>,
        is_host_transfer = true, sdy.sharding = #sdy.sharding_per_value<[<@m2, []>]>}
      : (tensor<8xf32>, !stablehlo.token) -> !stablehlo.token
      %c = sdy.sharding_constraint %x <@m2, [{"d"}]> : tensor<8xf32>
      %s = stablehlo.sine %c {sdy.sharding = #sdy.sharding_per_value<[<@m2, [{"d"}]>]>} : tensor<8xf32>
      mpmd.return %s : tensor<8xf32>
    } : (!a) -> !a
    return %f : !a
  }
}
// CHECK-COUNT-1: sdy.sharding_per_value
// CHECK: sdy.sharding_constraint

// ----- A transfer that would reshard is an error but no failure
module {
  sdy.mesh @m2 = <["d"=2]>
  func.func public @main(%p: !s {sdy.sharding = #sdy.sharding<@m2, [{"d"}, {}]>}) -> (!s, !s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@m2, [{}, {"d"}]>]>} %p : (!s) -> !s
    %u = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@m2, [{}, {"d"}]>]>} %p : (!s) -> !s
    return %t, %u : !s, !s
  }
}
// error, but no failure: [{"d"}, {}]
