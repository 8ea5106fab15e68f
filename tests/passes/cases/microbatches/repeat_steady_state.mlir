// passes: mpmd-repeat-steady-state
!t = tensor<4xf32>
!i = tensor<i32>
!a = !mpmd.mesh_tensor<"a", !t>
!k = !mpmd.mesh_tensor<"a", !i>
!s = tensor<f32>
!l = !mpmd.mesh_tensor<"a", !s>
!v = !mpmd.mesh_tensor<"a", tensor<6xf32>>
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

// ----- A stack of a result gets those of the copies
func.func public @main(%p: !a) -> (!a, !v) attributes {topology = #meshes, mpmd.omitted_iterations = 2 : ui32, mpmd.stacked_results = 1 : ui32} {
  %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%0#0) {call_counter = 1 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%1#0) {call_counter = 2 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %3:2 = mpmd.fragment<mesh="a", origin=["f"]> (%2#0) {call_counter = 3 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %4 = mpmd.fragment<mesh="a", origin=[]> (%0#1, %1#1, %2#1, %3#1) (%w: !s, %x: !s, %y: !s, %z: !s) {
    %d = stablehlo.reshape %w : (!s) -> tensor<1xf32>
    %e = stablehlo.reshape %x : (!s) -> tensor<1xf32>
    %f = stablehlo.reshape %y : (!s) -> tensor<1xf32>
    %g = stablehlo.broadcast_in_dim %z, dims = [] : (!s) -> tensor<3xf32>
    %h = stablehlo.concatenate %d, %e, %f, %g, dim = 0
      : (tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<3xf32>) -> tensor<6xf32>
    mpmd.return %h : tensor<6xf32>
  } : (!l, !l, !l, !l) -> !v
  return %3#0, %4 : !a, !v
}
// CHECK: %6 = mpmd.fragment<mesh="a", origin=[]> (%0#1, %1#1, %2#1, %3#1, %4#1, %5#1)
// CHECK: = stablehlo.reshape %arg1
// CHECK: %12 = stablehlo.reshape %arg6
// CHECK: stablehlo.concatenate %7, %8, %9, %10, %11, %12, dim = 0
// CHECK: return %5#0, %6

// ----- A value of a certain microbatch was taken out of the stack
func.func public @main(%p: !a) -> (!a, !v, !l) attributes {topology = #meshes, mpmd.omitted_iterations = 2 : ui32, mpmd.stacked_results = 1 : ui32} {
  %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%0#0) {call_counter = 1 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%1#0) {call_counter = 2 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %3:2 = mpmd.fragment<mesh="a", origin=["f"]> (%2#0) {call_counter = 3 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %4 = mpmd.fragment<mesh="a", origin=[]> (%0#1, %1#1, %2#1, %3#1) (%w: !s, %x: !s, %y: !s, %z: !s) {
    %d = stablehlo.reshape %w : (!s) -> tensor<1xf32>
    %e = stablehlo.reshape %x : (!s) -> tensor<1xf32>
    %f = stablehlo.reshape %y : (!s) -> tensor<1xf32>
    %g = stablehlo.broadcast_in_dim %z, dims = [] : (!s) -> tensor<3xf32>
    %h = stablehlo.concatenate %d, %e, %f, %g, dim = 0
      : (tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<3xf32>) -> tensor<6xf32>
    mpmd.return %h : tensor<6xf32>
  } : (!l, !l, !l, !l) -> !v
  return %3#0, %4, %1#1 : !a, !v, !l
}
// error: no ops are repeated for one microbatch after the other

// ----- Of two stacks, one is there no more
func.func public @main(%p: !a) -> (!a, !v) attributes {topology = #meshes, mpmd.omitted_iterations = 2 : ui32, mpmd.stacked_results = 2 : ui32} {
  %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%0#0) {call_counter = 1 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%1#0) {call_counter = 2 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %3:2 = mpmd.fragment<mesh="a", origin=["f"]> (%2#0) {call_counter = 3 : ui32} (%u: !t) {
    %c = stablehlo.constant dense<1.0> : !s
    mpmd.return %u, %c : !t, !s
  } : (!a) -> (!a, !l)
  %4 = mpmd.fragment<mesh="a", origin=[]> (%0#1, %1#1, %2#1, %3#1) (%w: !s, %x: !s, %y: !s, %z: !s) {
    %d = stablehlo.reshape %w : (!s) -> tensor<1xf32>
    %e = stablehlo.reshape %x : (!s) -> tensor<1xf32>
    %f = stablehlo.reshape %y : (!s) -> tensor<1xf32>
    %g = stablehlo.broadcast_in_dim %z, dims = [] : (!s) -> tensor<3xf32>
    %h = stablehlo.concatenate %d, %e, %f, %g, dim = 0
      : (tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<3xf32>) -> tensor<6xf32>
    mpmd.return %h : tensor<6xf32>
  } : (!l, !l, !l, !l) -> !v
  return %3#0, %4 : !a, !v
}
// error: no ops are repeated for one microbatch after the other
