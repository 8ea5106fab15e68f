// passes: mpmd-merge-transfers
!S = !mpmd.mesh_tensor<"alpha", tensor<f32>>
!T = !mpmd.mesh_tensor<"beta", tensor<f32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- A result that is transferred twice counts twice
func.func @main(%p: !S) -> !T attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<f32>) {
    mpmd.return %x : tensor<f32>
  } : (!S) -> !S
  %1 = mpmd.transfer %0 : (!S) -> !T
  %2 = mpmd.transfer %0 : (!S) -> !T
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<f32>, %y: tensor<f32>) {
    %s = stablehlo.subtract %x, %y : tensor<f32>
    mpmd.return %s : tensor<f32>
  } : (!T, !T) -> !T
  return %3 : !T
}
// =>
func.func @main(%arg0: !S) -> !T attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg1: tensor<f32>) {
    %5 = stablehlo.reshape %arg1 : (tensor<f32>) -> tensor<1xf32>
    %6 = stablehlo.reshape %arg1 : (tensor<f32>) -> tensor<1xf32>
    %7 = stablehlo.concatenate %5, %6, dim = 0 : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
    mpmd.return %arg1, %7 : tensor<f32>, tensor<2xf32>
  } : (!S) -> (!S, !mpmd.mesh_tensor<"alpha", tensor<2xf32>>)
  %1 = mpmd.transfer {concat_transfer} %0#1 : (!mpmd.mesh_tensor<"alpha", tensor<2xf32>>) -> !mpmd.mesh_tensor<"beta", tensor<2xf32>>
  %2 = mpmd.transfer %0#0 : (!S) -> !T
  %3 = mpmd.transfer %0#0 : (!S) -> !T
  %4 = mpmd.fragment<mesh="beta", origin=["g"]> (%2, %3, %1) (%arg1: tensor<f32>, %arg2: tensor<f32>, %arg3: tensor<2xf32>) {
    %5 = stablehlo.slice %arg3 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
    %6 = stablehlo.reshape %5 : (tensor<1xf32>) -> tensor<f32>
    %7 = stablehlo.slice %arg3 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
    %8 = stablehlo.reshape %7 : (tensor<1xf32>) -> tensor<f32>
    %9 = stablehlo.subtract %6, %8 : tensor<f32>
    mpmd.return %9 : tensor<f32>
  } : (!T, !T, !mpmd.mesh_tensor<"beta", tensor<2xf32>>) -> !T
  return %4 : !T
}

// ----- Attributes of results get an entry for the new one
// `res_attrs` is read by result number, also where MLIR reads past its end.
func.func @mt(%p: !S, %q: !S) -> !T attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) {res_attrs = [{mhlo.layout_mode = "default"}, {mhlo.layout_mode = "default"}]} (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<f32>
  } : (!S, !S) -> (!S, !S)
  %1 = mpmd.transfer %0#0 : (!S) -> !T
  %2 = mpmd.transfer %0#1 : (!S) -> !T
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%2, %1) (%x: tensor<f32>, %y: tensor<f32>) {
    %s = stablehlo.subtract %x, %y : tensor<f32>
    mpmd.return %s : tensor<f32>
  } : (!T, !T) -> !T
  return %3 : !T
}
// =>
func.func @mt(%arg0: !S, %arg1: !S) -> !T attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %arg1) {res_attrs = [{mhlo.layout_mode = "default"}, {mhlo.layout_mode = "default"}, {}]} (%arg2: tensor<f32>, %arg3: tensor<f32>) {
    %5 = stablehlo.reshape %arg2 : (tensor<f32>) -> tensor<1xf32>
    %6 = stablehlo.reshape %arg3 : (tensor<f32>) -> tensor<1xf32>
    %7 = stablehlo.concatenate %5, %6, dim = 0 : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
    mpmd.return %arg2, %arg3, %7 : tensor<f32>, tensor<f32>, tensor<2xf32>
  } : (!S, !S) -> (!S, !S, !mpmd.mesh_tensor<"alpha", tensor<2xf32>>)
  %1 = mpmd.transfer {concat_transfer} %0#2 : (!mpmd.mesh_tensor<"alpha", tensor<2xf32>>) -> !mpmd.mesh_tensor<"beta", tensor<2xf32>>
  %2 = mpmd.transfer %0#0 : (!S) -> !T
  %3 = mpmd.transfer %0#1 : (!S) -> !T
  %4 = mpmd.fragment<mesh="beta", origin=["g"]> (%3, %2, %1) (%arg2: tensor<f32>, %arg3: tensor<f32>, %arg4: tensor<2xf32>) {
    %5 = stablehlo.slice %arg4 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
    %6 = stablehlo.reshape %5 : (tensor<1xf32>) -> tensor<f32>
    %7 = stablehlo.slice %arg4 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
    %8 = stablehlo.reshape %7 : (tensor<1xf32>) -> tensor<f32>
    %9 = stablehlo.subtract %8, %6 : tensor<f32>
    mpmd.return %9 : tensor<f32>
  } : (!T, !T, !mpmd.mesh_tensor<"beta", tensor<2xf32>>) -> !T
  return %4 : !T
}

// ----- Two scalars are sent together
!a = !mpmd.mesh_tensor<"alpha", tensor<f32>>
!b = !mpmd.mesh_tensor<"beta", tensor<f32>>
func.func @main(%p: !a, %q: !a) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<f32>
  } : (!a, !a) -> (!a, !a)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!a) -> !b
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x : tensor<f32>
  } : (!b, !b) -> !b
  return %3 : !b
}
// CHECK-COUNT-1: concat_transfer
// CHECK: -> !mpmd.mesh_tensor<"beta", tensor<2xf32>>

// ----- Two values of one element are sent together
!a = !mpmd.mesh_tensor<"alpha", tensor<1x1xi32>>
!b = !mpmd.mesh_tensor<"beta", tensor<1x1xi32>>
func.func @main(%p: !a, %q: !a) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<1x1xi32>, %y: tensor<1x1xi32>) {
    mpmd.return %x, %y : tensor<1x1xi32>, tensor<1x1xi32>
  } : (!a, !a) -> (!a, !a)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!a) -> !b
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<1x1xi32>, %y: tensor<1x1xi32>) {
    mpmd.return %x : tensor<1x1xi32>
  } : (!b, !b) -> !b
  return %3 : !b
}
// CHECK-COUNT-1: concat_transfer
// CHECK: -> !mpmd.mesh_tensor<"beta", tensor<2x1x1xi32>>

// ----- Two scalars in the memory of devices are sent together
!a = !mpmd.mesh_tensor<"alpha", tensor<f32>, memory_kind="device">
!b = !mpmd.mesh_tensor<"beta", tensor<f32>>
func.func @main(%p: !a, %q: !a) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<f32>
  } : (!a, !a) -> (!a, !a)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!a) -> !b
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x : tensor<f32>
  } : (!b, !b) -> !b
  return %3 : !b
}
// CHECK-COUNT-1: concat_transfer
// CHECK: -> !mpmd.mesh_tensor<"beta", tensor<2xf32>>

// ----- Two scalars to host memory are sent together
!a = !mpmd.mesh_tensor<"alpha", tensor<f32>>
!b = !mpmd.mesh_tensor<"beta", tensor<f32>, memory_kind="pinned_host">
func.func @main(%p: !a, %q: !a) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<f32>
  } : (!a, !a) -> (!a, !a)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!a) -> !b
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x : tensor<f32>
  } : (!b, !b) -> !b
  return %3 : !b
}
// CHECK-COUNT-1: concat_transfer
// CHECK: -> !mpmd.mesh_tensor<"beta", tensor<2xf32>>

// ----- Two values of one element with an open sharding are sent together
!a = !mpmd.mesh_tensor<"alpha", tensor<1xf32>, sharding=<@mesh, [{?}]>>
!b = !mpmd.mesh_tensor<"beta", tensor<1xf32>>
sdy.mesh @mesh = <["x"=2]>
func.func @main(%p: !a, %q: !a) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<1xf32>, %y: tensor<1xf32>) {
    mpmd.return %x, %y : tensor<1xf32>, tensor<1xf32>
  } : (!a, !a) -> (!a, !a)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!a) -> !b
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<1xf32>, %y: tensor<1xf32>) {
    mpmd.return %x : tensor<1xf32>
  } : (!b, !b) -> !b
  return %3 : !b
}
// CHECK-COUNT-1: concat_transfer
// CHECK: -> !mpmd.mesh_tensor<"beta", tensor<2x1xf32>>

// ----- Values of several elements are sent alone
!a = !mpmd.mesh_tensor<"alpha", tensor<2xf32>>
!b = !mpmd.mesh_tensor<"beta", tensor<2xf32>>
func.func @main(%p: !a, %q: !a) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<2xf32>, %y: tensor<2xf32>) {
    mpmd.return %x, %y : tensor<2xf32>, tensor<2xf32>
  } : (!a, !a) -> (!a, !a)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!a) -> !b
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<2xf32>, %y: tensor<2xf32>) {
    mpmd.return %x : tensor<2xf32>
  } : (!b, !b) -> !b
  return %3 : !b
}
// CHECK-NOT: concat_transfer

// ----- Values of two shapes are sent alone
!a = !mpmd.mesh_tensor<"alpha", tensor<f32>>
!c = !mpmd.mesh_tensor<"alpha", tensor<1xf32>>
!b = !mpmd.mesh_tensor<"beta", tensor<f32>>
!d = !mpmd.mesh_tensor<"beta", tensor<1xf32>>
func.func @main(%p: !a, %q: !c) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<1xf32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<1xf32>
  } : (!a, !c) -> (!a, !c)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!c) -> !d
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<f32>, %y: tensor<1xf32>) {
    mpmd.return %x : tensor<f32>
  } : (!b, !d) -> !b
  return %3 : !b
}
// CHECK-NOT: concat_transfer

// ----- Values of two types are sent alone
!a = !mpmd.mesh_tensor<"alpha", tensor<f32>>
!c = !mpmd.mesh_tensor<"alpha", tensor<i32>>
!b = !mpmd.mesh_tensor<"beta", tensor<f32>>
!d = !mpmd.mesh_tensor<"beta", tensor<i32>>
func.func @main(%p: !a, %q: !c) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<i32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<i32>
  } : (!a, !c) -> (!a, !c)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!c) -> !d
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<f32>, %y: tensor<i32>) {
    mpmd.return %x : tensor<f32>
  } : (!b, !d) -> !b
  return %3 : !b
}
// CHECK-NOT: concat_transfer

// ----- Values in host memory are sent alone
!a = !mpmd.mesh_tensor<"alpha", tensor<f32>, memory_kind="pinned_host">
!b = !mpmd.mesh_tensor<"beta", tensor<f32>>
func.func @main(%p: !a, %q: !a) -> !b attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<f32>
  } : (!a, !a) -> (!a, !a)
  %1 = mpmd.transfer %0#0 : (!a) -> !b
  %2 = mpmd.transfer %0#1 : (!a) -> !b
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%1, %2) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x : tensor<f32>
  } : (!b, !b) -> !b
  return %3 : !b
}
// CHECK-NOT: concat_transfer

// ----- Bundles are not bundled again
// passes: mpmd-merge-transfers,mpmd-fragment-dce
// passes: mpmd-merge-transfers,mpmd-fragment-dce,mpmd-merge-transfers
func.func @main(%p: !S, %q: !S) -> !T attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<f32>
  } : (!S, !S) -> (!S, !S)
  %1 = mpmd.transfer %0#0 : (!S) -> !T
  %2 = mpmd.transfer %0#1 : (!S) -> !T
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%2, %1) (%x: tensor<f32>, %y: tensor<f32>) {
    %s = stablehlo.subtract %x, %y : tensor<f32>
    mpmd.return %s : tensor<f32>
  } : (!T, !T) -> !T
  return %3 : !T
}
// =>
func.func @main(%arg0: !S, %arg1: !S) -> !T attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %arg1) (%arg2: tensor<f32>, %arg3: tensor<f32>) {
    %3 = stablehlo.reshape %arg2 : (tensor<f32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %arg3 : (tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.concatenate %3, %4, dim = 0 : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
    mpmd.return %5 : tensor<2xf32>
  } : (!S, !S) -> !mpmd.mesh_tensor<"alpha", tensor<2xf32>>
  %1 = mpmd.transfer {concat_transfer} %0 : (!mpmd.mesh_tensor<"alpha", tensor<2xf32>>) -> !mpmd.mesh_tensor<"beta", tensor<2xf32>>
  %2 = mpmd.fragment<mesh="beta", origin=["g"]> (%1) (%arg2: tensor<2xf32>) {
    %3 = stablehlo.slice %arg2 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.slice %arg2 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
    %6 = stablehlo.reshape %5 : (tensor<1xf32>) -> tensor<f32>
    %7 = stablehlo.subtract %6, %4 : tensor<f32>
    mpmd.return %7 : tensor<f32>
  } : (!mpmd.mesh_tensor<"beta", tensor<2xf32>>) -> !T
  return %2 : !T
}

// ----- Microbatches share bodies
// passes: mpmd-call-inline,mpmd-symbol-dce,mpmd-merge-transfers
func.func @main(%p: !S, %q: !S) -> (!T, !T) attributes {topology = #topo} {
  %0 = mpmd.call @step(%p, %q) {call_counter = 0 : ui32} : (!S, !S) -> !T
  %1 = mpmd.call @step(%p, %q) {call_counter = 1 : ui32} : (!S, !S) -> !T
  return %0, %1 : !T, !T
}
func.func private @step(%p: !S, %q: !S) -> !T attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<f32>, %y: tensor<f32>) {
    mpmd.return %x, %y : tensor<f32>, tensor<f32>
  } : (!S, !S) -> (!S, !S)
  %1 = mpmd.transfer %0#0 : (!S) -> !T
  %2 = mpmd.transfer %0#1 : (!S) -> !T
  %3 = mpmd.fragment<mesh="beta", origin=["g"]> (%2, %1) (%x: tensor<f32>, %y: tensor<f32>) {
    %s = stablehlo.subtract %x, %y : tensor<f32>
    mpmd.return %s : tensor<f32>
  } : (!T, !T) -> !T
  return %3 : !T
}
// =>
func.func @main(%arg0: !S, %arg1: !S) -> (!T, !T) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %arg1) {call_counter = 0 : ui32} (%arg2: tensor<f32>, %arg3: tensor<f32>) {
    %10 = stablehlo.reshape %arg2 : (tensor<f32>) -> tensor<1xf32>
    %11 = stablehlo.reshape %arg3 : (tensor<f32>) -> tensor<1xf32>
    %12 = stablehlo.concatenate %10, %11, dim = 0 : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
    mpmd.return %arg2, %arg3, %12 : tensor<f32>, tensor<f32>, tensor<2xf32>
  } : (!S, !S) -> (!S, !S, !mpmd.mesh_tensor<"alpha", tensor<2xf32>>)
  %1 = mpmd.transfer {concat_transfer} %0#2 : (!mpmd.mesh_tensor<"alpha", tensor<2xf32>>) -> !mpmd.mesh_tensor<"beta", tensor<2xf32>>
  %2 = mpmd.transfer %0#0 : (!S) -> !T
  %3 = mpmd.transfer %0#1 : (!S) -> !T
  %4 = mpmd.fragment<mesh="beta", origin=["g"]> (%3, %2, %1) {call_counter = 0 : ui32} (%arg2: tensor<f32>, %arg3: tensor<f32>, %arg4: tensor<2xf32>) {
    %10 = stablehlo.slice %arg4 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
    %11 = stablehlo.reshape %10 : (tensor<1xf32>) -> tensor<f32>
    %12 = stablehlo.slice %arg4 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
    %13 = stablehlo.reshape %12 : (tensor<1xf32>) -> tensor<f32>
    %14 = stablehlo.subtract %13, %11 : tensor<f32>
    mpmd.return %14 : tensor<f32>
  } : (!T, !T, !mpmd.mesh_tensor<"beta", tensor<2xf32>>) -> !T
  %5:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %arg1) {call_counter = 1 : ui32} (%arg2: tensor<f32>, %arg3: tensor<f32>) {
    %10 = stablehlo.reshape %arg2 : (tensor<f32>) -> tensor<1xf32>
    %11 = stablehlo.reshape %arg3 : (tensor<f32>) -> tensor<1xf32>
    %12 = stablehlo.concatenate %10, %11, dim = 0 : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
    mpmd.return %arg2, %arg3, %12 : tensor<f32>, tensor<f32>, tensor<2xf32>
  } : (!S, !S) -> (!S, !S, !mpmd.mesh_tensor<"alpha", tensor<2xf32>>)
  %6 = mpmd.transfer {concat_transfer} %5#2 : (!mpmd.mesh_tensor<"alpha", tensor<2xf32>>) -> !mpmd.mesh_tensor<"beta", tensor<2xf32>>
  %7 = mpmd.transfer %5#0 : (!S) -> !T
  %8 = mpmd.transfer %5#1 : (!S) -> !T
  %9 = mpmd.fragment<mesh="beta", origin=["g"]> (%8, %7, %6) {call_counter = 1 : ui32} (%arg2: tensor<f32>, %arg3: tensor<f32>, %arg4: tensor<2xf32>) {
    %10 = stablehlo.slice %arg4 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
    %11 = stablehlo.reshape %10 : (tensor<1xf32>) -> tensor<f32>
    %12 = stablehlo.slice %arg4 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
    %13 = stablehlo.reshape %12 : (tensor<1xf32>) -> tensor<f32>
    %14 = stablehlo.subtract %13, %11 : tensor<f32>
    mpmd.return %14 : tensor<f32>
  } : (!T, !T, !mpmd.mesh_tensor<"beta", tensor<2xf32>>) -> !T
  return %4, %9 : !T, !T
}
// bodies: 2
