// passes: mpmd-validate-no-param-transfers{fail-on-param-transfers=true param-pattern=weights}
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!u = !mpmd.mesh_tensor<"s1", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>

// ----- Transferred parameters fail on request (1)
func.func public @main(%p: !s loc("my_weights")) -> !u attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!s) -> !u
  return %t : !u
}
// error: a parameter (a name with "weights") is transferred from mesh 's0' to mesh 's1':

// ----- Transferred parameters fail on request (2)
func.func public @main(%p: !s loc("params['transformer")) -> !u attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!s) -> !u
  return %t : !u
}
// fine

// ----- A backward dependency is reported once for two functions (1)
// passes: mpmd-validate-no-backward-deps{fail-on-backward-deps=false}
!far = !mpmd.mesh_tensor<"m10", tensor<4xf32>>
!near = !mpmd.mesh_tensor<"m2", tensor<4xf32>>
#two = #mpmd.topology<<"m10" : <["d"=2]>>, <"m2" : <["d"=2]>>>
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  return %x : tensor<4xf32>
}
func.func private @g(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32>
    attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  return %x : tensor<4xf32>
}
func.func @main(%p: !far) -> (!near, !near) attributes {topology = #two} {
  %a = mpmd.fragment_call<mesh="m10", origin=["f"]> @f(%p) : (!far) -> !far
  %b = mpmd.transfer %a : (!far) -> !near
  %c = mpmd.transfer %a : (!far) -> !near
  %d = mpmd.fragment_call<mesh="m2", origin=["g"]> @g(%b, %c) : (!near, !near) -> !near
  %e = mpmd.fragment_call<mesh="m2", origin=["g"]> @g(%d, %c) : (!near, !near) -> !near
  %h = mpmd.fragment_call<mesh="m2", origin=["f"]> @f(%c) : (!near) -> !near
  return %e, %h : !near, !near
}
// warning: @g on mesh 'm2'
// warning: @f on mesh 'm2'

// ----- A backward dependency is reported once for two functions (2)
// passes: mpmd-validate-no-backward-deps{fail-on-backward-deps=true}
!far = !mpmd.mesh_tensor<"m10", tensor<4xf32>>
!near = !mpmd.mesh_tensor<"m2", tensor<4xf32>>
#two = #mpmd.topology<<"m10" : <["d"=2]>>, <"m2" : <["d"=2]>>>
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  return %x : tensor<4xf32>
}
func.func private @g(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32>
    attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  return %x : tensor<4xf32>
}
func.func @main(%p: !far) -> (!near, !near) attributes {topology = #two} {
  %a = mpmd.fragment_call<mesh="m10", origin=["f"]> @f(%p) : (!far) -> !far
  %b = mpmd.transfer %a : (!far) -> !near
  %c = mpmd.transfer %a : (!far) -> !near
  %d = mpmd.fragment_call<mesh="m2", origin=["g"]> @g(%b, %c) : (!near, !near) -> !near
  %e = mpmd.fragment_call<mesh="m2", origin=["g"]> @g(%d, %c) : (!near, !near) -> !near
  %h = mpmd.fragment_call<mesh="m2", origin=["f"]> @f(%c) : (!near) -> !near
  return %e, %h : !near, !near
}
// error: @g on mesh 'm2'
// error: @f on mesh 'm2'

// ----- A transferred parameter is warned of, by the name of an argument
// passes: mpmd-validate-no-param-transfers
func.func public @main(%p: !s loc("params['transformer/w']")) -> !u attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!s) -> !u
  return %t : !u
}
// warning: 's0' ... 's1' ... params['transformer/w']

// ----- A transferred parameter is warned of, by the name of an op
// passes: mpmd-validate-no-param-transfers
func.func public @main(%p: !s) -> !u attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!s) -> !u loc("params['transformer/w']")
  return %t : !u
}
// warning: 's0' ... 's1' ... params['transformer/w']

// ----- Transfers of parameters on one mesh are fine
// passes: mpmd-validate-no-param-transfers
func.func public @main(%p: !s loc("params['transformer")) -> !s attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!s) -> !s
  return %t : !s
}
// fine

// ----- An inferred fragment of a pass that may infer some
// passes: mpmd-validate-no-inferred-fragments
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=[]> (%p) {mpmd.inferred_by = ["uniquify"]} (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// warning: a computation on mesh 's0' belongs to no named computation and could not be merged into one

// ----- An inferred fragment of two passes, one of which may infer some
// passes: mpmd-validate-no-inferred-fragments
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=[]> (%p) {mpmd.inferred_by = ["mine", "extract_reshards"]} (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// warning: a computation on mesh 's0' belongs to no named computation and could not be merged into one

// ----- An inferred fragment of another pass
// passes: mpmd-validate-no-inferred-fragments
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=[]> (%p) {mpmd.inferred_by = ["mine"]} (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// error: a computation on mesh 's0' belongs to no named computation and could not be merged into one

// ----- An inferred fragment of another pass, if it is not to fail
// passes: mpmd-validate-no-inferred-fragments{fail-on-inferred-fragments=false}
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=[]> (%p) {mpmd.inferred_by = ["mine"]} (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// warning: a computation on mesh 's0' belongs to no named computation and could not be merged into one

// ----- An inferred fragment of no pass
// passes: mpmd-validate-no-inferred-fragments{fail-on-inferred-fragments=false}
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=[]> (%p) {mpmd.inferred_by = []} (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// error: internal error

// ----- A fragment without name that nobody inferred
// passes: mpmd-validate-no-inferred-fragments
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// error: internal error

// ----- A reshard is warned of with its value
// passes: mpmd-validate-no-reshards
func.func public @main(%p: !u) -> (!s {jax.result_info = "loss"}) attributes {topology = #topo} {
  %f = mpmd.fragment_call<mesh="s1", origin=["f"]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=[]> @g(%t) : (!s) -> !s
  return %g : !s
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  return %x : tensor<4xf32>
}
// warning: @g ... tensor<4xf32> ... Replicated ... loss

// ----- A reshard fails on request
// passes: mpmd-validate-no-reshards{fail-on-reshard-only-fragments=true}
func.func public @main(%p: !u) -> (!s {jax.result_info = "loss"}) attributes {topology = #topo} {
  %f = mpmd.fragment_call<mesh="s1", origin=["f"]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=[]> @g(%t) : (!s) -> !s
  return %g : !s
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  return %x : tensor<4xf32>
}
// error: @g

// ----- What computes something is no reshard
// passes: mpmd-validate-no-reshards{fail-on-reshard-only-fragments=true}
func.func public @main(%p: !u) -> (!s {jax.result_info = "loss"}) attributes {topology = #topo} {
  %f = mpmd.fragment_call<mesh="s1", origin=["f"]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=[]> @g(%t) : (!s) -> !s
  return %g : !s
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
// fine

// ----- A reshard with a name is an internal error
// passes: mpmd-validate-no-reshards
func.func public @main(%p: !u) -> (!s {jax.result_info = "loss"}) attributes {topology = #topo} {
  %f = mpmd.fragment_call<mesh="s1", origin=["f"]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=["g"]> @g(%t) : (!s) -> !s
  return %g : !s
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  return %x : tensor<4xf32>
}
// error: @g

// ----- A backward dependency is warned of
// passes: mpmd-validate-no-backward-deps
func.func public @main(%p: !u) -> (!s {jax.result_info = "loss"}) attributes {topology = #topo} {
  %f = mpmd.fragment_call<mesh="s1", origin=["f"]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=["g"]> @g(%t) : (!s) -> !s
  return %g : !s
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
// warning: @g ... 's0' ... @f ... 's1'

// ----- A backward dependency fails on request
// passes: mpmd-validate-no-backward-deps{fail-on-backward-deps=true}
func.func public @main(%p: !u) -> (!s {jax.result_info = "loss"}) attributes {topology = #topo} {
  %f = mpmd.fragment_call<mesh="s1", origin=["f"]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=["g"]> @g(%t) : (!s) -> !s
  return %g : !s
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
// error: @f

// ----- Programs with a backward pass may have backward dependencies
// passes: mpmd-validate-no-backward-deps
func.func public @main(%p: !u) -> (!s {jax.result_info = "loss"}) attributes {topology = #topo} {
  %f = mpmd.fragment_call<mesh="s1", origin=["f"]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=["g"(1)]> @g(%t) : (!s) -> !s
  return %g : !s
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
// fine

// ----- Programs with a backward pass may not, if that is to fail
// passes: mpmd-validate-no-backward-deps{fail-on-backward-deps=true}
func.func public @main(%p: !u) -> (!s {jax.result_info = "loss"}) attributes {topology = #topo} {
  %f = mpmd.fragment_call<mesh="s1", origin=["f"]> @f(%p) : (!u) -> !u
  %t = mpmd.transfer %f : (!u) -> !s
  %g = mpmd.fragment_call<mesh="s0", origin=["g"(1)]> @g(%t) : (!s) -> !s
  return %g : !s
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["d"=2]>} {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
// error: forward-only
