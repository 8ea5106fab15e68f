// passes: mpmd-lower-to-fragment-calls
!t = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!u = !mpmd.mesh_tensor<"s1", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>
!a = !mpmd.mesh_tensor<"s0", tensor<4xf32>, sharding=<@mesh, [{"d"}]>>
!c = !mpmd.mesh_tensor<"s0", tensor<4xf32>, sharding=<@mesh, [{}]>>
!b = !mpmd.mesh_tensor<"s0", tensor<4xf32>>

// ----- Names of computations and of microbatches
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f0 = mpmd.fragment<mesh="s0", origin=["f_007"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f1 = mpmd.fragment<mesh="s0", origin=["f_-3"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f2 = mpmd.fragment<mesh="s0", origin=["f_"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f3 = mpmd.fragment<mesh="s0", origin=["a_b_1", "a_b_3"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f4 = mpmd.fragment<mesh="s0", origin=["z", "y", "y"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f5 = mpmd.fragment<mesh="s0", origin=["k"], stage=5> (%p) {call_counter = 2 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.exponential %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK: mesh="s0", origin=["f_007"]> @p0_f_7.main(
// CHECK: mesh="s0", origin=["f_-3"]> @"p1_f_-3_call1.main"(
// CHECK: mesh="s0", origin=["f_"]> @p2_f__call0.main(
// CHECK: mesh="s0", origin=["a_b_1", "a_b_3"]> @"p3_a_b_1:3.main"(
// CHECK: mesh="s0", origin=["z", "y", "y"]> @p4_y....main(
// CHECK: mesh="s0", origin=["k"]> @p5_stage5_call2.main(

// ----- Names of phases and of stages
module @jit_jit_x {
  func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
    %f0 = mpmd.fragment<mesh="s0", origin=["f_1"(1), "f_2"(1)]> (%p) (%x: tensor<4xf32>) {
      %y = stablehlo.sine %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!t) -> !t
    %f1 = mpmd.fragment<mesh="s0", origin=["q"]> (%p) (%x: tensor<4xf32>) {
      %y = stablehlo.cosine %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!t) -> !t
    %f2 = mpmd.fragment<mesh="s0", origin=["g"(3)], stage=4> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
      %y = stablehlo.tanh %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!t) -> !t
    %f3 = mpmd.fragment<mesh="s0", origin=["a"(1), "b"]> (%p) {call_counter = 7 : ui32} (%x: tensor<4xf32>) {
      %y = stablehlo.negate %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!t) -> !t
    return
  }
}
// CHECK: mesh="s0", origin=["f_1"(1), "f_2"(1)]> @"p0_f_2:1_bwd.jit_x"(
// CHECK: mesh="s0", origin=["q"]> @p1_q_fwd.jit_x(
// CHECK: mesh="s0", origin=["g"(3)]> @p2_stage4_transpose3_call0.jit_x(
// CHECK: mesh="s0", origin=["a"(1), "b"]> @p3_a..._fwd_bwd_call7.jit_x(

// ----- Inferred fragments
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f0 = mpmd.fragment<mesh="s0", origin=[]> (%p) {mpmd.inferred_by = ["uniquify"]} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK: mesh="s0", origin=[]> @p0_inferred.main(

// ----- Numbers are what 64 bits hold, without a plus
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f0 = mpmd.fragment<mesh="s0", origin=["f_2", "f_9223372036854775807"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f1 = mpmd.fragment<mesh="s0", origin=["f_2", "f_9223372036854775808"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f2 = mpmd.fragment<mesh="s0", origin=["f_2", "f_+3"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK: mesh="s0", origin=["f_2", "f_9223372036854775807"]> @"p0_f_2:9223372036854775807.main"(
// CHECK: mesh="s0", origin=["f_2", "f_9223372036854775808"]> @p1_f_2....main(
// CHECK: mesh="s0", origin=["f_2", "f_+3"]> @p2_f_2....main(

// ----- Microbatches of a shared function
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f0 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f1 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 2 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK-COUNT-3: mesh="s0", origin=["f"]> @p0_f_calls0to2.main(

// ----- Microbatches in the other order
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f0 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 2 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f1 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK-COUNT-3: mesh="s0", origin=["f"]> @p0_f_calls2from0.main(

// ----- Microbatches with a gap
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f0 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f1 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 2 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK-COUNT-2: mesh="s0", origin=["f"]> @p0_f.main(

// ----- A microbatch twice
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f0 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f1 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK-COUNT-2: mesh="s0", origin=["f"]> @p0_f.main(

// ----- A fragment without microbatch
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f0 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %f1 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK-COUNT-2: mesh="s0", origin=["f"]> @p0_f.main(

// ----- Different names in a group keep the first without microbatches
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {call_counter = 0 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %g = mpmd.fragment<mesh="s0", origin=["g"]> (%p) {call_counter = 1 : ui32} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK: mesh="s0", origin=["f"]> @p0_f.main(
// CHECK: mesh="s0", origin=["g"]> @p0_f.main(

// ----- Long names are cut
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK: mesh="s0", origin=["nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"]> @"p0_nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn<...>.main"(

// ----- Another mesh keeps fragments apart
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %g = mpmd.fragment<mesh="s1", origin=["f"]> (%q) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!u) -> !u
  return
}
// CHECK: mesh="s0", origin=["f"]> @p0_f.main(
// CHECK: mesh="s1", origin=["f"]> @p1_f.main(

// ----- Another op keeps fragments apart
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK: mesh="s0", origin=["f"]> @p0_f.main(
// CHECK: mesh="s0", origin=["f"]> @p1_f.main(

// ----- Attributes of arguments keep fragments apart
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {arg_attrs = [{}]} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK: mesh="s0", origin=["f"]> @p0_f.main(
// CHECK: mesh="s0", origin=["f"]> @p1_f.main(

// ----- Attributes of results keep fragments apart
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {res_attrs = [{mhlo.layout_mode = "auto"}]} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK: mesh="s0", origin=["f"]> @p0_f.main(
// CHECK: mesh="s0", origin=["f"]> @p1_f.main(

// ----- The most reserved bytes count
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {reserved_hbm_bytes = 16 : i64} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  %h = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {reserved_hbm_bytes = 8 : i64} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK-COUNT-1: {mesh_shape = #sdy.mesh<["d"=2]>, reserved_hbm_bytes = 16 : i64}

// ----- No reserved bytes
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// CHECK-NOT: reserved_hbm_bytes

// ----- The order of operands and of results matters
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %a:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.add %x, %z : tensor<4xf32>
    mpmd.return %y, %x : tensor<4xf32>, tensor<4xf32>
  } : (!t, !t) -> (!t, !t)
  %b:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.add %x, %z : tensor<4xf32>
    mpmd.return %y, %z : tensor<4xf32>, tensor<4xf32>
  } : (!t, !t) -> (!t, !t)
  %c:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.add %z, %x : tensor<4xf32>
    mpmd.return %y, %x : tensor<4xf32>, tensor<4xf32>
  } : (!t, !t) -> (!t, !t)
  return
}
// CHECK: mesh="s0", origin=["f"]> @p0_f.main(
// CHECK: mesh="s0", origin=["f"]> @p1_f.main(
// CHECK: mesh="s0", origin=["f"]> @p2_f.main(

// ----- Different shardings get different functions
// The reference shares the function of the first, whose shardings are wrong for others.
sdy.mesh @mesh = <["d"=2]>
func.func public @main(%p: !a, %q: !b, %r: !c) -> (!a, !b, !c) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!a) -> !a
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%q) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!b) -> !b
  %h = mpmd.fragment<mesh="s0", origin=["f"]> (%r) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!c) -> !c
  return %f, %g, %h : !a, !b, !c
}
// CHECK: @p0_f.main(%arg0)
// CHECK: @p1_f.main(%arg1)
// CHECK: @p1_f.main(%arg2)

// ----- Functions are shared across shardings on request (1)
sdy.mesh @mesh = <["d"=2]>
func.func public @main(%p: !a) -> (!a, !b) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!a) -> !a
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!a) -> !b
  return %f, %g : !a, !b
}
// CHECK: @p1_f.main

// ----- Functions are shared across shardings on request (2)
// passes: mpmd-lower-to-fragment-calls{share-across-shardings=true}
sdy.mesh @mesh = <["d"=2]>
func.func public @main(%p: !a) -> (!a, !b) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!a) -> !a
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!a) -> !b
  return %f, %g : !a, !b
}
// CHECK-NOT: @p1_f.main

// ----- A taken name is an error
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
func.func private @p0_f.main() {
  return
}
// error: the fragment is to become the function @p0_f.main, but the module has a symbol of that name already; rename that symbol

// ----- The mark of a recomputation is a unit, whatever it was
func.func public @main(%p: !t, %q: !u) attributes {topology = #topo} {
  %a = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {remat = "x", split_keep_transferred} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!t) -> !t
  return
}
// =>
func.func public @main(%arg0: !t, %arg1: !u) attributes {topology = #topo} {
  %0 = mpmd.fragment_call<mesh="s0", origin=["f"]> @p0_f.main(%arg0) {remat} : (!t) -> !t
  return
}
func.func @p0_f.main(%arg0: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %0 = stablehlo.sine %arg0 : tensor<4xf32>
  return %0 : tensor<4xf32>
}
