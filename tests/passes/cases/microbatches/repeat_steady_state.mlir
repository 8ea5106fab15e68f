// passes: mpmd-repeat-steady-state
!t = tensor<4xf32>
!i = tensor<i32>
!a = !mpmd.mesh_tensor<"a", !t>
!k = !mpmd.mesh_tensor<"a", !i>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>>

// ----- Indices continue
func.func public @main(%p: !a) -> !a attributes {topology = #meshes, mpmd.omitted_iterations = 1 : ui32} {
  %k:4 = mpmd.fragment<mesh="a", origin=[]> () () {
    %0 = stablehlo.constant dense<4> : !i
    %1 = stablehlo.constant dense<6> : !i
    %2 = stablehlo.constant dense<8> : !i
    %3 = stablehlo.constant dense<10> : !i
    mpmd.return %0, %1, %2, %3 : !i, !i, !i, !i
  } : () -> (!k, !k, !k, !k)
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %k#0) {call_counter = 0 : ui32} (%u: !t, %n: !i) {
    mpmd.return %u : !t
  } : (!a, !k) -> !a
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0, %k#1) {call_counter = 1 : ui32} (%u: !t, %n: !i) {
    mpmd.return %u : !t
  } : (!a, !k) -> !a
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%1, %k#2) {call_counter = 2 : ui32} (%u: !t, %n: !i) {
    mpmd.return %u : !t
  } : (!a, !k) -> !a
  %3 = mpmd.fragment<mesh="a", origin=["f"]> (%2, %k#3) {call_counter = 3 : ui32} (%u: !t, %n: !i) {
    mpmd.return %u : !t
  } : (!a, !k) -> !a
  return %3 : !a
}
// CHECK: stablehlo.constant dense<12> : tensor<i32>
// CHECK: (%4, %0#4) {call_counter = 4 : ui32}
// CHECK: return %5

// ----- Too few iterations to see what repeats
func.func public @main(%p: !a) -> !a attributes {topology = #meshes, mpmd.omitted_iterations = 1 : ui32} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0) {call_counter = 1 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  return %1 : !a
}
// error: no ops are repeated for one microbatch after the other

// ----- Forwards before all backwards: a period has only the forward of a microbatch
func.func public @main(%p: !a) -> (!a, !a, !a) attributes {topology = #meshes, mpmd.omitted_iterations = 1 : ui32} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0) {call_counter = 1 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%1) {call_counter = 2 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %3 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%2) {call_counter = 0 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %4 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%1) {call_counter = 1 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %5 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%0) {call_counter = 2 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  return %3, %4, %5 : !a, !a, !a
}
// error: no ops are repeated for one microbatch after the other

// ----- What is behind the periods reads something of a microbatch before them, here for more of them than there are
func.func public @main(%p: !a) -> (!a, !a) attributes {topology = #meshes, mpmd.omitted_iterations = 1 : ui32} {
  %0 = mpmd.fragment<mesh="a", origin=["g"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%1) {call_counter = 1 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  %3 = mpmd.fragment<mesh="a", origin=["f"]> (%2) {call_counter = 2 : ui32} (%u: !t) {
    mpmd.return %u : !t
  } : (!a) -> !a
  return %3, %0 : !a, !a
}
// error: no ops are repeated for one microbatch after the other
