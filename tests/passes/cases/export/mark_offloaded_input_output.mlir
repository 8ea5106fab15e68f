// passes: mpmd-mark-offloaded-input-output
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>

// ----- A placement without a place is an error
func.func public @main(%p: !s) -> (!s {}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %r = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {other = "device"}} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// error: _xla_buffer_placement

// ----- Users of an argument must agree
func.func public @main(%p: !s {mhlo.memory_kind = "pinned_host"}) -> (!s, !s) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f, %p : !s, !s
}
// error: func.return ... mpmd.fragment
// error: argument 0 of @main has memory kind "pinned_host", but its users expect no memory kind
// error: result 1 of @main is declared with no memory kind (device), but what produces it gives

// ----- A result must be where the signature says
func.func public @main(%p: !s) -> (!s {}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %h : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// error: result 0

// ----- Existing entries are not overwritten
func.func public @main(%p: !s) -> (!s {mhlo.memory_kind = "pinned_host"}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {res_attrs = [{mhlo.memory_kind = "pinned_host"}]} (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %h : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// error: mhlo.memory_kind

// ----- Private functions are left alone
func.func private @main(%p: !s) -> (!s {}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}

// ----- Host memory passes a barrier
func.func public @main(%p: !s) -> (!s {mhlo.memory_kind = "pinned_host"}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.optimization_barrier %h : tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK: res_attrs = [{mhlo.memory_kind = "pinned_host"}]

// ----- Host memory does not pass a copy back to the device
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.custom_call @annotate_device_placement(%h) {mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK-NOT: res_attrs = [{mhlo.memory_kind = "pinned_host"

// ----- Host memory passes a sharding
func.func public @main(%p: !s) -> (!s {mhlo.memory_kind = "pinned_host"}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.custom_call @Sharding(%h) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK: res_attrs = [{mhlo.memory_kind = "pinned_host"}]

// ----- Host memory does not pass another custom call
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.custom_call @Other(%h) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK-NOT: res_attrs = [{mhlo.memory_kind = "pinned_host"

// ----- Host memory does not pass arithmetic
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.sine %h : tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK-NOT: res_attrs = [{mhlo.memory_kind = "pinned_host"

// ----- Host memory passes what is computed on the host
func.func public @main(%p: !s) -> (!s {mhlo.memory_kind = "pinned_host"}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.sine %x {mhlo.frontend_attributes = {_xla_compute_type = "host"}} : tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK: res_attrs = [{mhlo.memory_kind = "pinned_host"}]

// ----- Host memory passes a reshape that adds one and removes it
func.func public @main(%p: !s) -> (!s {mhlo.memory_kind = "pinned_host"}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %q = stablehlo.reshape %h : (tensor<4xf32>) -> tensor<1x4xf32>
    %r = stablehlo.reshape %q : (tensor<1x4xf32>) -> tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK: res_attrs = [{mhlo.memory_kind = "pinned_host"}]

// ----- Host memory does not pass a reshape that mixes dimensions
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %q = stablehlo.reshape %h : (tensor<4xf32>) -> tensor<2x2xf32>
    %r = stablehlo.reshape %q : (tensor<2x2xf32>) -> tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK-NOT: res_attrs = [{mhlo.memory_kind = "pinned_host"

// ----- Host memory passes an update of a part
func.func public @main(%p: !s) -> (!s {mhlo.memory_kind = "pinned_host"}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %i = stablehlo.constant dense<0> : tensor<i32>
    %r = stablehlo.dynamic_update_slice %x, %h, %i : (tensor<4xf32>, tensor<4xf32>, tensor<i32>) -> tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK: res_attrs = [{mhlo.memory_kind = "pinned_host"}]

// ----- Host memory passes a loop
func.func public @main(%p: !s) -> (!s {mhlo.memory_kind = "pinned_host"}) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.while(%i = %x) : tensor<4xf32>
    cond {
      %c = stablehlo.constant dense<true> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %j = stablehlo.custom_call @annotate_device_placement(%i) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %j : tensor<4xf32>
    }
    mpmd.return %r : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// CHECK: res_attrs = [{mhlo.memory_kind = "pinned_host"}]
