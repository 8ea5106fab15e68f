// passes: mpmd-mark-aliasing-and-donation
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#more = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>
!b = !mpmd.mesh_tensor<"s0", tensor<8xf32>>
!t = !mpmd.mesh_tensor<"s1", tensor<4xf32>>

// ----- A mark that is there already is an error
func.func public @main(%p: !s {jax.buffer_donor = true}) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {arg_attrs = [{jax.buffer_donor = true}]} (%x: tensor<4xf32>) { %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  return %f : !s
}
// error: jax.buffer_donor

// ----- An alias without a fitting output becomes a donation
func.func public @main(%p: !b {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<8xf32>) {
    %y = stablehlo.constant dense<0.0> : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!b) -> !s
  return %f : !s
}
// =>
func.func public @main(%arg0: !b {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{jax.buffer_donor = true}]} (%arg1: tensor<8xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    mpmd.return %cst : tensor<4xf32>
  } : (!b) -> !s
  return %0 : !s
}

// ----- Arguments that the user keeps are not touched
func.func public @main(%p: !s) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}

// ----- Only the last reader gets the buffer
func.func public @main(%p: !s {jax.buffer_donor = true}) -> (!s, !s) attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f, %g : !s, !s
}
// =>
func.func public @main(%arg0: !s {jax.buffer_donor = true}) -> (!s, !s) attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %2 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{jax.buffer_donor = true}]} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  return %0, %1 : !s, !s
}

// ----- What is returned keeps its buffer
func.func public @main(%p: !s {jax.buffer_donor = true}) -> (!s, !s) attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f, %p : !s, !s
}

// ----- The last of equal operands gets the mark
func.func public @main(%p: !s {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!s, !s) -> !s
  return %f : !s
}
// =>
func.func public @main(%arg0: !s {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0, %arg0) {arg_attrs = [{}, {tf.aliasing_output = 0 : i32}]} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    mpmd.return %arg1 : tensor<4xf32>
  } : (!s, !s) -> !s
  return %0 : !s
}

// ----- Transferred values are not donated
func.func public @main(%p: !s) -> (!s, !t) attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %t = mpmd.transfer %f : (!s) -> !t
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%f) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %g, %t : !s, !t
}

// ----- Arguments in host memory are left out
func.func public @main(%p: !s {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {arg_attrs = [{mhlo.memory_kind = "pinned_host"}]} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}

// ----- A result in host memory fits no operand
func.func public @main(%p: !s {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {res_attrs = [{mhlo.memory_kind = "pinned_host"}]} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// =>
func.func public @main(%arg0: !s {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{jax.buffer_donor = true}], res_attrs = [{mhlo.memory_kind = "pinned_host"}]} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s) -> !s
  return %0 : !s
}

// ----- A result of another layout fits no operand
func.func public @main(%p: !s {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) {res_attrs = [{mhlo.layout_mode = "auto"}]} (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
// =>
func.func public @main(%arg0: !s {tf.aliasing_output = 0 : i32}) -> !s attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{jax.buffer_donor = true}], res_attrs = [{mhlo.layout_mode = "auto"}]} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s) -> !s
  return %0 : !s
}

// ----- The result that the user asked for is preferred (1)
func.func public @main(%p: !s {tf.aliasing_output = 0 : i32}) -> (!s, !s) attributes {topology = #more} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    %z = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y, %z : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %f#0, %f#1 : !s, !s
}
// =>
func.func public @main(%arg0: !s {tf.aliasing_output = 0 : i32}) -> (!s, !s) attributes {topology = #more} {
  %0:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{tf.aliasing_output = 0 : i32}]} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.sine %arg1 : tensor<4xf32>
    %2 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %1, %2 : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %0#0, %0#1 : !s, !s
}

// ----- The result that the user asked for is preferred (2)
func.func public @main(%p: !s {tf.aliasing_output = 0 : i32}) -> (!s, !s) attributes {topology = #more} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    %z = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y, %z : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %f#1, %f#0 : !s, !s
}
// =>
func.func public @main(%arg0: !s {tf.aliasing_output = 0 : i32}) -> (!s, !s) attributes {topology = #more} {
  %0:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{tf.aliasing_output = 1 : i32}]} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.sine %arg1 : tensor<4xf32>
    %2 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %1, %2 : tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s)
  return %0#1, %0#0 : !s, !s
}

// ----- A chain of intermediates reuses one buffer
func.func public @main(%p: !s) -> !s attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%f) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %h = mpmd.fragment<mesh="s0", origin=["f"]> (%g) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %h : !s
}
// =>
func.func public @main(%arg0: !s) -> !s attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["f"]> (%0) {arg_attrs = [{tf.aliasing_output = 0 : i32}]} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=["f"]> (%1) {arg_attrs = [{tf.aliasing_output = 0 : i32}]} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  return %2 : !s
}

// ----- Microbatches of one program donate the same
// passes: mpmd-mark-equal-donation
// passes: mpmd-share-programs,mpmd-mark-equal-donation
// Also in a module that was read, where equal bodies are not one object: the last reader keeps it, too.
func.func public @main(%p: !s {jax.buffer_donor = true}) -> (!s, !s) attributes {topology = #more} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f, %g : !s, !s
}

// ----- An operand takes the place of what is made of all that reads it (1)
// passes: mpmd-mark-equal-donation
// The first result is there while the second is still made of the operand; the third is made of both.
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #more} {
  %g = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %f:3 = mpmd.fragment<mesh="s0", origin=[]> (%g) (%x: tensor<4xf32>) {
    %m = stablehlo.negate %x : tensor<4xf32>
    %n = stablehlo.multiply %x, %x : tensor<4xf32>
    %v = stablehlo.divide %m, %n : tensor<4xf32>
    mpmd.return %m, %n, %v : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s, !s)
  return %f#0, %f#1, %f#2 : !s, !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s, !s) attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %2 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  %1:3 = mpmd.fragment<mesh="s0", origin=[]> (%0) {arg_attrs = [{tf.aliasing_output = 2 : i32}]} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.multiply %arg1, %arg1 : tensor<4xf32>
    %4 = stablehlo.divide %2, %3 : tensor<4xf32>
    mpmd.return %2, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s, !s)
  return %1#0, %1#1, %1#2 : !s, !s, !s
}

// ----- An operand takes the place of what is made of all that reads it (2)
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #more} {
  %g = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %f:3 = mpmd.fragment<mesh="s0", origin=[]> (%g) (%x: tensor<4xf32>) {
    %m = stablehlo.negate %x : tensor<4xf32>
    %n = stablehlo.multiply %x, %x : tensor<4xf32>
    %v = stablehlo.divide %m, %n : tensor<4xf32>
    mpmd.return %m, %n, %v : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s, !s)
  return %f#0, %f#1, %f#2 : !s, !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s, !s) attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %2 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  %1:3 = mpmd.fragment<mesh="s0", origin=[]> (%0) {arg_attrs = [{tf.aliasing_output = 0 : i32}]} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.negate %arg1 : tensor<4xf32>
    %3 = stablehlo.multiply %arg1, %arg1 : tensor<4xf32>
    %4 = stablehlo.divide %2, %3 : tensor<4xf32>
    mpmd.return %2, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s) -> (!s, !s, !s)
  return %1#0, %1#1, %1#2 : !s, !s, !s
}

// ----- Operands that can take one place alone have it
// passes: mpmd-mark-equal-donation
// Where another one can take any.
func.func public @main(%p: !s) -> (!s, !s) attributes {topology = #more} {
  %g = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %h = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %f:2 = mpmd.fragment<mesh="s0", origin=[]> (%g, %h) (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %m = stablehlo.negate %x : tensor<4xf32>
    %n = stablehlo.multiply %m, %z : tensor<4xf32>
    mpmd.return %n, %m : tensor<4xf32>, tensor<4xf32>
  } : (!s, !s) -> (!s, !s)
  return %f#0, %f#1 : !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s) attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %2:2 = mpmd.fragment<mesh="s0", origin=[]> (%0, %1) {arg_attrs = [{tf.aliasing_output = 1 : i32}, {tf.aliasing_output = 0 : i32}]} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    %3 = stablehlo.negate %arg1 : tensor<4xf32>
    %4 = stablehlo.multiply %3, %arg2 : tensor<4xf32>
    mpmd.return %4, %3 : tensor<4xf32>, tensor<4xf32>
  } : (!s, !s) -> (!s, !s)
  return %2#0, %2#1 : !s, !s
}

// ----- A sum stays in its place
// passes: mpmd-mark-equal-donation
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #more} {
  %sum = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %kept = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %x = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %f:3 = mpmd.fragment<mesh="s0", origin=[]> (%sum, %kept, %x) (%s: tensor<4xf32>, %k: tensor<4xf32>, %u: tensor<4xf32>) {
    %g = stablehlo.multiply %k, %k : tensor<4xf32>
    %n = stablehlo.add %s, %g : tensor<4xf32>
    %v = stablehlo.tanh %u : tensor<4xf32>
    %w = stablehlo.add %v, %u : tensor<4xf32>
    mpmd.return %w, %n, %v : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s, !s, !s) -> (!s, !s, !s)
  return %f#0, %f#1, %f#2 : !s, !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s, !s) attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %4 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %4 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %4 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!s) -> !s
  %3:3 = mpmd.fragment<mesh="s0", origin=[]> (%0, %1, %2) {arg_attrs = [{tf.aliasing_output = 1 : i32}, {tf.aliasing_output = 2 : i32}, {tf.aliasing_output = 0 : i32}]} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %4 = stablehlo.multiply %arg2, %arg2 : tensor<4xf32>
    %5 = stablehlo.add %arg1, %4 : tensor<4xf32>
    %6 = stablehlo.tanh %arg3 : tensor<4xf32>
    %7 = stablehlo.add %6, %arg3 : tensor<4xf32>
    mpmd.return %7, %5, %6 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s, !s, !s) -> (!s, !s, !s)
  return %3#0, %3#1, %3#2 : !s, !s, !s
}

// ----- Halves of a program of two microbatches do not wait for each other
// passes: mpmd-mark-equal-donation
// A result of one half is not in the place of what the other reads.
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #more} {
  %sum = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %kept = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %x = mpmd.fragment<mesh="s0", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %f:3 = mpmd.fragment<mesh="s0", origin=[]> (%sum, %kept, %x) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%s: tensor<4xf32>, %k: tensor<4xf32>, %u: tensor<4xf32>) {
    %g = stablehlo.multiply %k, %k : tensor<4xf32>
    %n = stablehlo.add %s, %g : tensor<4xf32>
    %v = stablehlo.tanh %u : tensor<4xf32>
    %w = stablehlo.add %v, %u : tensor<4xf32>
    mpmd.return %w, %n, %v : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s, !s, !s) -> (!s, !s, !s)
  return %f#0, %f#1, %f#2 : !s, !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s, !s) attributes {topology = #more} {
  %0 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %4 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %4 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=[]> (%arg0) (%arg1: tensor<4xf32>) {
    %4 = stablehlo.negate %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!s) -> !s
  %3:3 = mpmd.fragment<mesh="s0", origin=[]> (%0, %1, %2) {arg_attrs = [{tf.aliasing_output = 1 : i32}, {}, {tf.aliasing_output = 0 : i32}], mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %4 = stablehlo.multiply %arg2, %arg2 : tensor<4xf32>
    %5 = stablehlo.add %arg1, %4 : tensor<4xf32>
    %6 = stablehlo.tanh %arg3 : tensor<4xf32>
    %7 = stablehlo.add %6, %arg3 : tensor<4xf32>
    mpmd.return %7, %5, %6 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!s, !s, !s) -> (!s, !s, !s)
  return %3#0, %3#1, %3#2 : !s, !s, !s
}
