// passes: mpmd-delay-transfers-from-cpu
!d = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!h = !mpmd.mesh_tensor<"s0", tensor<4xf32>, memory_kind="pinned_host">
!c = !mpmd.mesh_tensor<"s0/cpu", tensor<4xf32>>
!n = !mpmd.mesh_tensor<"s/cpu0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>, <"s0/cpu" : <["d"=2]>>, <"s/cpu0" : <["d"=2]>>>

// ----- Which transfers wait
// Those from host meshes and host memory; not a mesh that has /cpu inside its name, nor unused ones.
func.func public @main(%a: !c, %b: !h, %n: !n, %p: !d) -> (!d, !d, !d, !d) attributes {topology = #topo} {
  %t = mpmd.transfer %a : (!c) -> !d
  %u = mpmd.transfer %b : (!h) -> !d
  %v = mpmd.transfer %n : (!n) -> !d
  %w = mpmd.transfer %a : (!c) -> !d
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) { mpmd.return %x : tensor<4xf32> } : (!d) -> !d
  return %f, %t, %u, %v : !d, !d, !d, !d
}
// =>
func.func public @main(%a: !c, %b: !h, %n: !n, %p: !d) -> (!d, !d, !d, !d) attributes {topology = #topo} {
  %v = mpmd.transfer %n : (!n) -> !d
  %w = mpmd.transfer %a : (!c) -> !d
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) { mpmd.return %x : tensor<4xf32> } : (!d) -> !d
  %t = mpmd.transfer %a : (!c) -> !d
  %u = mpmd.transfer %b : (!h) -> !d
  return %f, %t, %u, %v : !d, !d, !d, !d
}

// ----- A transfer lands before its first reader (1)
// One that brings back what was sent away stays.
func.func public @main(%p: !d, %q: !d) -> (!d, !d, !d) attributes {topology = #topo} {
  %h = mpmd.transfer %p : (!d) -> !h
  %t = mpmd.transfer %h : (!h) -> !d
  %e = mpmd.fragment<mesh="s0", origin=["f"]> (%q) (%x: tensor<4xf32>) { mpmd.return %x : tensor<4xf32> } : (!d) -> !d
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%t) (%x: tensor<4xf32>) { mpmd.return %x : tensor<4xf32> } : (!d) -> !d
  return %e, %g, %t : !d, !d, !d
}
// =>
func.func public @main(%p: !d, %q: !d) -> (!d, !d, !d) attributes {topology = #topo} {
  %h = mpmd.transfer %p : (!d) -> !h
  %e = mpmd.fragment<mesh="s0", origin=["f"]> (%q) (%x: tensor<4xf32>) { mpmd.return %x : tensor<4xf32> } : (!d) -> !d
  %t = mpmd.transfer %h : (!h) -> !d
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%t) (%x: tensor<4xf32>) { mpmd.return %x : tensor<4xf32> } : (!d) -> !d
  return %e, %g, %t : !d, !d, !d
}

// ----- A transfer lands before its first reader (2)
func.func public @main(%p: !d, %q: !d) -> (!d, !d, !d) attributes {topology = #topo} {
  %h = mpmd.transfer {mpmd.offloaded} %p : (!d) -> !h
  %t = mpmd.transfer %h : (!h) -> !d
  %e = mpmd.fragment<mesh="s0", origin=["f"]> (%q) (%x: tensor<4xf32>) { mpmd.return %x : tensor<4xf32> } : (!d) -> !d
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%t) (%x: tensor<4xf32>) { mpmd.return %x : tensor<4xf32> } : (!d) -> !d
  return %e, %g, %t : !d, !d, !d
}
