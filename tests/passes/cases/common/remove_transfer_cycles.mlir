// passes: mpmd-remove-transfer-cycles
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Repeated turns unwind
func.func @main(%p: !A) -> (!B, !A, !B, !A, !B, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !B
  %1 = mpmd.transfer %0 : (!B) -> !A
  %2 = mpmd.transfer %1 : (!A) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  %4 = mpmd.transfer %3 : (!A) -> !B
  %5 = mpmd.transfer %4 : (!B) -> !A
  return %0, %1, %2, %3, %4, %5 : !B, !A, !B, !A, !B, !A
}
// =>
func.func @main(%arg0: !A) -> (!B, !A, !B, !A, !B, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!A) -> !B
  return %0, %arg0, %0, %arg0, %0, %arg0 : !B, !A, !B, !A, !B, !A
}

// ----- Identities go
func.func @main(%p: !A) -> (!A, !B, !B) attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !B
  return %0, %1, %2 : !A, !B, !B
}
// =>
func.func @main(%arg0: !A) -> (!A, !B, !B) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!A) -> !B
  return %arg0, %0, %0 : !A, !B, !B
}

// ----- A way through the host is kept (1)
func.func @main(%p: !A) -> (!mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">
  %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">) -> !A
  return %0, %1 : !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">, !A
}
// =>
func.func @main(%arg0: !A) -> (!mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!A) -> !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">
  %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">) -> !A
  return %0, %1 : !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">, !A
}

// ----- A way through the host is kept (2)
func.func @main(%p: !A) -> (!B, !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">, !B, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !B
  %1 = mpmd.transfer %0 : (!B) -> !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">
  %2 = mpmd.transfer %1 : (!mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  return %0, %1, %2, %3 : !B, !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">, !B, !A
}
// =>
func.func @main(%arg0: !A) -> (!B, !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">, !B, !A) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!A) -> !B
  %1 = mpmd.transfer %0 : (!B) -> !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">
  %2 = mpmd.transfer %1 : (!mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">) -> !B
  %3 = mpmd.transfer %2 : (!B) -> !A
  return %0, %1, %2, %3 : !B, !mpmd.mesh_tensor<"beta", tensor<4xf32>, memory_kind="pinned_host">, !B, !A
}

// ----- Types must be equal including the memory kind (1)
func.func @main(%p: !A) -> (!B, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">) attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !B
  %1 = mpmd.transfer %0 : (!B) -> !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
  return %0, %1 : !B, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
}
// =>
func.func @main(%arg0: !A) -> (!B, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!A) -> !B
  %1 = mpmd.transfer %0 : (!B) -> !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
  return %0, %1 : !B, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
}

// ----- Types must be equal including the memory kind (2)
func.func @main(%p: !A) -> (!mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">, !B, !A, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">) attributes {topology = #topo} {
  %0 = mpmd.transfer %p : (!A) -> !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
  %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">) -> !B
  %2 = mpmd.transfer %1 : (!B) -> !A
  %3 = mpmd.transfer %2 : (!A) -> !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
  return %0, %1, %2, %3 : !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">, !B, !A, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
}
// =>
func.func @main(%arg0: !A) -> (!mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">, !B, !A, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!A) -> !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
  %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">) -> !B
  return %0, %1, %arg0, %0 : !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">, !B, !A, !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">
}
