// passes: mpmd-mark-fragment-reserved-memory
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>
!u = !mpmd.mesh_tensor<"s1", tensor<4xf32>>
!d = !mpmd.mesh_tensor<"s0", tensor<6xf32>, sharding=<@mesh, [{"d"}]>>
!b = !mpmd.mesh_tensor<"s0", tensor<4xi1>>
!c = !mpmd.mesh_tensor<"s0", tensor<2xcomplex<f32>>>

// ----- Host values and unused donated arguments take nothing
func.func public @main(%p: !s, %h: !s {mhlo.memory_kind = "pinned_host"}, %d: !s {jax.buffer_donor = true}, %k: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// =>
func.func public @main(%arg0: !s, %arg1: !s {mhlo.memory_kind = "pinned_host"}, %arg2: !s {jax.buffer_donor = true}, %arg3: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {reserved_hbm_bytes = 16 : i64} (%arg4: tensor<4xf32>) {
    %1 = stablehlo.sine %arg4 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s) -> !s
  return %0 : !s
}

// ----- A repeated operand counts once
func.func public @main(%p: !s, %q: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s, !s) -> !s
  return %f : !s
}
// =>
func.func public @main(%arg0: !s, %arg1: !s) -> !s attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0, %arg0) {reserved_hbm_bytes = 16 : i64} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %1 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s, !s) -> !s
  return %0 : !s
}

// ----- A host operand takes nothing and leaves nothing
func.func public @main(%p: !s {jax.buffer_donor = true, mhlo.memory_kind = "pinned_host"}, %q: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {arg_attrs = [{mhlo.memory_kind = "pinned_host"}]} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%q) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f, %g : !s, !s
}
// =>
func.func public @main(%arg0: !s {jax.buffer_donor = true, mhlo.memory_kind = "pinned_host"}, %arg1: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{mhlo.memory_kind = "pinned_host"}], reserved_hbm_bytes = 16 : i64} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg1) {reserved_hbm_bytes = 16 : i64} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  return %0, %1 : !s, !s
}

// ----- Values marked host on the fragment are not counted
func.func public @main(%p: !s, %q: !s) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {res_attrs = [{mhlo.memory_kind = "pinned_host"}]} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%q) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f, %g : !s, !s
}
// =>
func.func public @main(%arg0: !s, %arg1: !s) -> (!s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {res_attrs = [{mhlo.memory_kind = "pinned_host"}], reserved_hbm_bytes = 16 : i64} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg1) {reserved_hbm_bytes = 16 : i64} (%arg2: tensor<4xf32>) {
    %2 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  return %0, %1 : !s, !s
}

// ----- Transfers move bytes between meshes
func.func public @main(%p: !s {jax.buffer_donor = true}, %q: !u) -> !u attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %t = mpmd.transfer %f : (!s) -> !u
  %g = mpmd.fragment<mesh="s1", origin=["f"]> (%q) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!u) -> !u
  %h = mpmd.fragment<mesh="s1", origin=["f"]> (%t) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!u) -> !u
  return %h : !u
}
// =>
func.func public @main(%arg0: !s {jax.buffer_donor = true}, %arg1: !u) -> !u attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {reserved_hbm_bytes = 0 : i64} (%arg2: tensor<4xf32>) {
    %4 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.transfer %0 : (!s) -> !u
  %2 = mpmd.fragment<mesh="s1", origin=["f"]> (%arg1) {reserved_hbm_bytes = 16 : i64} (%arg2: tensor<4xf32>) {
    %4 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!u) -> !u
  %3 = mpmd.fragment<mesh="s1", origin=["f"]> (%1) {reserved_hbm_bytes = 16 : i64} (%arg2: tensor<4xf32>) {
    %4 = stablehlo.sine %arg2 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!u) -> !u
  return %3 : !u
}

// ----- Sizes are per device and by element
// Half of 24 bytes, 4 bits, and 16 bytes.
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !s, %d: !d, %b: !b, %c: !c) -> !s attributes {topology = #topo} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
      %y = stablehlo.sine %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!s) -> !s
    return %f : !s
  }
}
// =>
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%arg0: !s, %arg1: !d, %arg2: !b, %arg3: !c) -> !s attributes {topology = #topo} {
    %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {reserved_hbm_bytes = 29 : i64} (%arg4: tensor<4xf32>) {
      %1 = stablehlo.sine %arg4 : tensor<4xf32>
      mpmd.return %1 : tensor<4xf32>
    } : (!s) -> !s
    return %0 : !s
  }
}

// ----- Other ops are an error
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %c = mpmd.call @g(%p) : (!s) -> !s
  return %c : !s
}
func.func private @g(%p: !s) -> !s attributes {topology = #topo} { return %p : !s }
// error: mpmd.call
