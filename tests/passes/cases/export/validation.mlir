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
