// passes: mpmd-repeat-calls
!t = tensor<4xf32>
!a = !mpmd.mesh_tensor<"a", !t>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>>

// ----- A result of an early iteration that is read behind the loop
func.func public @main(%p: !a) -> (!a, !a) attributes {topology = #meshes} {
  %0 = mpmd.call @f(%p) {call_counter = 0 : ui32} : (!a) -> !a
  %1 = mpmd.call @f(%0) {call_counter = 1 : ui32} : (!a) -> !a
  %2 = mpmd.call @f(%1) {call_counter = 2 : ui32, mpmd.repeats = 2 : ui32} : (!a) -> !a
  return %2, %1 : !a, !a
}
func.func private @f(%p: !a) -> !a attributes {topology = #meshes} {
  return %p : !a
}
// error: an iteration is another one than that before

// ----- Results that change places from iteration to iteration
func.func public @main(%p: !a, %q: !a) -> (!a, !a) attributes {topology = #meshes} {
  %0:2 = mpmd.call @f(%p, %q) {call_counter = 0 : ui32} : (!a, !a) -> (!a, !a)
  %1:2 = mpmd.call @f(%0#0, %0#1) {call_counter = 1 : ui32} : (!a, !a) -> (!a, !a)
  %2:2 = mpmd.call @f(%1#1, %1#0) {call_counter = 2 : ui32, mpmd.repeats = 2 : ui32} : (!a, !a) -> (!a, !a)
  return %2#0, %2#1 : !a, !a
}
func.func private @f(%p: !a, %q: !a) -> (!a, !a) attributes {topology = #meshes} {
  return %p, %q : !a, !a
}
// error: an iteration is another one than that before

// ----- A function that is only declared
func.func public @main(%p: !a) -> !a attributes {topology = #meshes} {
  %0 = mpmd.call @f(%p) {call_counter = 0 : ui32} : (!a) -> !a
  %1 = mpmd.call @f(%0) {call_counter = 1 : ui32} : (!a) -> !a
  %2 = mpmd.call @f(%1) {call_counter = 2 : ui32, mpmd.repeats = 2 : ui32} : (!a) -> !a
  return %2 : !a
}
func.func private @f(%p: !a) -> !a attributes {topology = #meshes}
// error: @f cannot be inlined: it is only declared; give it a body
// note: @f is defined here
