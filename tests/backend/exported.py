"""An exported module for the tests of the backend, and meshes to run it on."""

# ruff: noqa: E501  (MLIR text)

from __future__ import annotations

from pipelines import mesh

#: Meshes `a` and `b` of one device each, and of two.
ONES = {"a": mesh(0, (1,), "x"), "b": mesh(1, (1,), "x")}
PAIRS = {"a": mesh(0, (2,), "x"), "b": mesh(2, (2,), "x")}


#: The sum of %p over two devices, in the manual computation that gives %r of %x.
MANUAL_SUM = """
      %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>]
          out_shardings=[<@mesh, [{}], replicated={"x"}>] manual_axes={"x"} (%p: tensor<2xf32>) {
        %1 = "stablehlo.all_reduce"(%p) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
            use_global_device_ids, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
        ^bb0(%u: tensor<f32>, %v: tensor<f32>):
          %s = stablehlo.add %u, %v : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) : (tensor<2xf32>) -> tensor<2xf32>
        sdy.return %1 : tensor<2xf32>
      } : (tensor<4xf32>) -> tensor<2xf32>
"""
PIPELINE = """
!a = !mpmd.mesh_tensor<"a", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
!wa = !mpmd.mesh_tensor<"a", tensor<8x8xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
!wb = !mpmd.mesh_tensor<"b", tensor<8x8xf32>>
#x = #sdy.sharding<@mesh, [{"x"}, {}]>
#topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>
module @jit_step {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: !a loc("x"), %w: !wa {jax.buffer_donor = true} loc("params['w']"), %v: !wb loc("params['v']"))
      -> (!b {jax.result_info = "y"}, !wa {jax.result_info = "w"}) attributes {topology = #topology} {
    %0 = mpmd.fragment_call<mesh="a", origin=["f"]> @p0_f.step(%x, %w) : (!a, !wa) -> !a
    %1 = mpmd.transfer %0 : (!a) -> !b
    %2 = mpmd.fragment_call<mesh="b", origin=["g"]> @p1_g.step(%1, %v) : (!b, !wb) -> !b
    %3 = mpmd.fragment_call<mesh="a", origin=[]> @p2_inferred.step(%w) : (!wa) -> !wa
    return %2, %3 : !b, !wa
  }
  func.func @p0_f.step(%x: tensor<4x8xf32> {sdy.sharding = #x}, %w: tensor<8x8xf32>) -> (tensor<4x8xf32> {sdy.sharding = #x})
      attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<4x8xf32>
    %2 = stablehlo.tanh %1 : tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
  func.func @p1_g.step(%x: tensor<4x8xf32> {sdy.sharding = #x, jax.buffer_donor = true}, %w: tensor<8x8xf32>)
      -> (tensor<4x8xf32> {sdy.sharding = #x}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = func.call @helper(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func private @helper(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @p2_inferred.step(%w: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x8xf32>
      attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %c = stablehlo.constant dense<0.5> : tensor<8x8xf32>
    %0 = stablehlo.multiply %w, %c : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""
