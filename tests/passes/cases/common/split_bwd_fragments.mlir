// passes: mpmd-split-bwd-fragments
!M = tensor<4x4xf32>
!W = !mpmd.mesh_tensor<"alpha", tensor<4x4xf32>>
!V = !mpmd.mesh_tensor<"beta", tensor<4x4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>
!L = tensor<4xf32>
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>

// ----- The first stage is split only on request (1)
func.func @main(%w1: !W, %w2: !W, %x0: !W, %x1: !W, %g: !V) -> (!W, !W) attributes {topology = #topo} {
  %t = mpmd.transfer %g : (!V) -> !W
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%w2, %x0, %x1, %t)
  (%b: !M, %c: !M, %d: !M, %e: !M) {
    %dz2 = stablehlo.sine %e : !M
    %dw2 = stablehlo.dot_general %d, %dz2, contracting_dims = [0] x [0] : (!M, !M) -> !M
    %dx1 = stablehlo.dot_general %dz2, %b, contracting_dims = [1] x [1] : (!M, !M) -> !M
    %dw1 = stablehlo.dot_general %c, %dx1, contracting_dims = [0] x [0] : (!M, !M) -> !M
    mpmd.return %dw1, %dw2 : !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W)
  return %0#0, %0#1 : !W, !W
}

// ----- The first stage is split only on request (2)
// passes: mpmd-split-bwd-fragments{split-first-stage=true},mpmd-fragment-dedup,mpmd-fragment-dce
func.func @main(%w1: !W, %w2: !W, %x0: !W, %x1: !W, %g: !V) -> (!W, !W) attributes {topology = #topo} {
  %t = mpmd.transfer %g : (!V) -> !W
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%w2, %x0, %x1, %t)
  (%b: !M, %c: !M, %d: !M, %e: !M) {
    %dz2 = stablehlo.sine %e : !M
    %dw2 = stablehlo.dot_general %d, %dz2, contracting_dims = [0] x [0] : (!M, !M) -> !M
    %dx1 = stablehlo.dot_general %dz2, %b, contracting_dims = [1] x [1] : (!M, !M) -> !M
    %dw1 = stablehlo.dot_general %c, %dx1, contracting_dims = [0] x [0] : (!M, !M) -> !M
    mpmd.return %dw1, %dw2 : !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W)
  return %0#0, %0#1 : !W, !W
}
// =>
func.func @main(%w1: !W, %w2: !W, %x0: !W, %x1: !W, %g: !V) -> (!W, !W) attributes {topology = #topo} {
  %t = mpmd.transfer %g : (!V) -> !W
  %0:4 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%w2, %x0, %x1, %t) {split_keep_transferred}
  (%b: !M, %c: !M, %d: !M, %e: !M) {
    %dz2 = stablehlo.sine %e : !M
    %dx1 = stablehlo.dot_general %dz2, %b, contracting_dims = [1] x [1] : (!M, !M) -> !M
    mpmd.return %dz2, %d, %dx1, %c : !M, !M, !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W, !W, !W)
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%0#0, %0#1, %0#2, %0#3) {split_drop_transferred}
  (%e: !M, %d: !M, %f: !M, %c: !M) {
    %dw2 = stablehlo.dot_general %d, %e, contracting_dims = [0] x [0] : (!M, !M) -> !M
    %dw1 = stablehlo.dot_general %c, %f, contracting_dims = [0] x [0] : (!M, !M) -> !M
    mpmd.return %dw1, %dw2 : !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W)
  return %1#0, %1#1 : !W, !W
}

// ----- A stage of one layer has nothing to split
// passes: mpmd-split-bwd-fragments{split-first-stage=true}
func.func @main(%w1: !W, %w2: !W, %x0: !W, %x1: !W, %g: !V) -> (!W, !W) attributes {topology = #topo} {
  %t = mpmd.transfer %g : (!V) -> !W
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%w2, %x0, %x1, %t)
  (%b: !M, %c: !M, %d: !M, %e: !M) {
    %dz2 = stablehlo.sine %e : !M
    %dw2 = stablehlo.dot_general %d, %dz2, contracting_dims = [0] x [0] : (!M, !M) -> !M
    %dx1 = stablehlo.dot_general %dz2, %b, contracting_dims = [1] x [1] : (!M, !M) -> !M
    %dw1 = stablehlo.dot_general %c, %dx1, contracting_dims = [0] x [0] : (!M, !M) -> !M
    mpmd.return %dw2, %dw2 : !M, !M
  } : (!W, !W, !W, !W) -> (!W, !W)
  return %0#0, %0#1 : !W, !W
}

// ----- An effect goes where its result belongs
func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.custom_call @e(%y) {has_side_effect = true} : (!L) -> !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %unused = mpmd.transfer %r : (!B) -> !A
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {split_keep_transferred} (%arg3: !L, %arg4: !L) {
    %4 = stablehlo.negate %arg3 : !L
    mpmd.return %4, %arg4 : !L, !L
  } : (!A, !A) -> (!A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1) {split_drop_transferred} (%arg3: !L, %arg4: !L, %arg5: !L) {
    %4 = stablehlo.custom_call @e(%arg5) {has_side_effect = true} : (!L) -> !L
    mpmd.return %4 : !L
  } : (!A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  return %2, %1 : !B, !A
}

// ----- Attributes stay on both parts
func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) {call_counter = 3 : ui32, note} (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %unused = mpmd.transfer %r : (!B) -> !A
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {call_counter = 3 : ui32, note, split_keep_transferred} (%arg3: !L, %arg4: !L) {
    %4 = stablehlo.negate %arg3 : !L
    mpmd.return %4, %arg4, %4 : !L, !L, !L
  } : (!A, !A) -> (!A, !A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1, %0#2) {call_counter = 3 : ui32, note, split_drop_transferred} (%arg3: !L, %arg4: !L, %arg5: !L, %arg6: !L) {
    %4 = stablehlo.multiply %arg6, %arg5 : !L
    mpmd.return %4 : !L
  } : (!A, !A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  return %2, %1 : !B, !A
}

// ----- Tokens cannot go from one part to the other
func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %t = stablehlo.create_token : !stablehlo.token
    %o:2 = stablehlo.optimization_barrier %x, %t : !L, !stablehlo.token
    %z = stablehlo.after_all %o#1 : !stablehlo.token
    %b:2 = stablehlo.optimization_barrier %y, %z : !L, !stablehlo.token
    mpmd.return %o#0, %b#0 : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %unused = mpmd.transfer %r : (!B) -> !A
  return %t0, %0#1 : !B, !A
}
// error: !stablehlo.token

// ----- An operand that is read twice counts once (1)
func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.sine %y : !L
    %c = stablehlo.multiply %a, %b : !L
    %s = stablehlo.tanh %c : !L
    %d = stablehlo.clamp %a, %b, %a : !L
    mpmd.return %s, %d : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %unused = mpmd.transfer %r : (!B) -> !A
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {split_keep_transferred} (%arg3: !L, %arg4: !L) {
    %4 = stablehlo.negate %arg3 : !L
    %5 = stablehlo.sine %arg4 : !L
    %6 = stablehlo.multiply %4, %5 : !L
    %7 = stablehlo.tanh %6 : !L
    mpmd.return %7, %5, %4 : !L, !L, !L
  } : (!A, !A) -> (!A, !A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1, %0#2) {split_drop_transferred} (%arg3: !L, %arg4: !L, %arg5: !L, %arg6: !L) {
    %4 = stablehlo.clamp %arg6, %arg5, %arg6 : !L
    mpmd.return %4 : !L
  } : (!A, !A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  return %2, %1 : !B, !A
}

// ----- An operand that is read twice counts once (2)
func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.sine %y : !L
    %c = stablehlo.multiply %a, %b : !L
    %s = stablehlo.tanh %c : !L
    %d, %w = stablehlo.while(%i = %a, %j = %b) : !L, !L cond {
      %n = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %n : tensor<i1>
    } do {
      %k = stablehlo.add %i, %a : !L
      stablehlo.return %k, %j : !L, !L
    }
    mpmd.return %s, %d : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %unused = mpmd.transfer %r : (!B) -> !A
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {split_keep_transferred} (%arg3: !L, %arg4: !L) {
    %4 = stablehlo.negate %arg3 : !L
    %5 = stablehlo.sine %arg4 : !L
    %6 = stablehlo.multiply %4, %5 : !L
    %7 = stablehlo.tanh %6 : !L
    mpmd.return %7, %5, %4 : !L, !L, !L
  } : (!A, !A) -> (!A, !A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1, %0#2) {split_drop_transferred} (%arg3: !L, %arg4: !L, %arg5: !L, %arg6: !L) {
    %4:2 = stablehlo.while(%iterArg = %arg6, %iterArg_0 = %arg5) : !L, !L
    cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %5 = stablehlo.add %iterArg, %arg6 : !L
      stablehlo.return %5, %iterArg_0 : !L, !L
    }
    mpmd.return %4#0 : !L
  } : (!A, !A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  return %2, %1 : !B, !A
}

// ----- Values captured by regions count as operands
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) (%arg3: !L, %arg4: !L) {
    %3 = stablehlo.negate %arg3 : !L
    %4 = stablehlo.abs %arg4 : !L
    %5 = stablehlo.while(%iterArg = %arg3) : !L
    cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %7 = stablehlo.add %iterArg, %3 : !L
      stablehlo.return %7 : !L
    }
    %6 = stablehlo.while(%iterArg = %4) : !L
    cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %7 = stablehlo.add %iterArg, %3 : !L
      stablehlo.return %7 : !L
    }
    mpmd.return %5, %6 : !L, !L
  } : (!A, !A) -> (!A, !A)
  %1 = mpmd.transfer %0#0 : (!A) -> !B
  %2 = mpmd.transfer %arg2 : (!B) -> !A
  return %1, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {split_keep_transferred} (%arg3: !L, %arg4: !L) {
    %4 = stablehlo.negate %arg3 : !L
    %5 = stablehlo.while(%iterArg = %arg3) : !L
    cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %6 = stablehlo.add %iterArg, %4 : !L
      stablehlo.return %6 : !L
    }
    mpmd.return %5, %4, %arg4 : !L, !L, !L
  } : (!A, !A) -> (!A, !A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1, %0#2) {split_drop_transferred} (%arg3: !L, %arg4: !L, %arg5: !L, %arg6: !L) {
    %4 = stablehlo.abs %arg6 : !L
    %5 = stablehlo.while(%iterArg = %4) : !L
    cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %6 = stablehlo.add %iterArg, %arg5 : !L
      stablehlo.return %6 : !L
    }
    mpmd.return %5 : !L
  } : (!A, !A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  return %2, %1 : !B, !A
}

// ----- Constants are copied and dead code does not matter
// The reference crashes on dead ops that need what only the first part has.
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) (%arg3: !L, %arg4: !L) {
    %cst = stablehlo.constant dense<1.000000e+00> : !L
    %4 = stablehlo.negate %arg3 : !L
    %5 = stablehlo.abs %4 : !L
    %6 = stablehlo.add %5, %5 : !L
    %7 = stablehlo.multiply %cst, %arg4 : !L
    mpmd.return %5, %7 : !L, !L
  } : (!A, !A) -> (!A, !A)
  %1 = mpmd.transfer %0#0 : (!A) -> !B
  %2 = mpmd.transfer %arg2 : (!B) -> !A
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  return %1, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {split_keep_transferred} (%arg3: !L, %arg4: !L) {
    %5 = stablehlo.negate %arg3 : !L
    %6 = stablehlo.abs %5 : !L
    mpmd.return %6, %arg4 : !L, !L
  } : (!A, !A) -> (!A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1) {split_drop_transferred} (%arg3: !L, %arg4: !L, %arg5: !L) {
    %cst = stablehlo.constant dense<1.000000e+00> : !L
    %5 = stablehlo.multiply %cst, %arg5 : !L
    mpmd.return %5 : !L
  } : (!A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  %4 = mpmd.transfer %arg2 : (!B) -> !A
  return %2, %1 : !B, !A
}

// ----- Nothing happens when the function has one op more than what stays (1)
// The reference compares with the size of the wrong block. Here 4 ops: fragment, 2 transfers, return.
func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.negate %a : !L
    %c = stablehlo.negate %b : !L
    %d = stablehlo.multiply %a, %y : !L
    mpmd.return %c, %d : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %unused = mpmd.transfer %r : (!B) -> !A
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) (%arg3: !L, %arg4: !L) {
    %3 = stablehlo.negate %arg3 : !L
    %4 = stablehlo.negate %3 : !L
    %5 = stablehlo.negate %4 : !L
    %6 = stablehlo.multiply %3, %arg4 : !L
    mpmd.return %5, %6 : !L, !L
  } : (!A, !A) -> (!A, !A)
  %1 = mpmd.transfer %0#0 : (!A) -> !B
  %2 = mpmd.transfer %arg2 : (!B) -> !A
  return %1, %0#1 : !B, !A
}

// ----- Nothing happens when the function has one op more than what stays (2)
func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.abs %x : !L
    %c = stablehlo.negate %b : !L
    %d = stablehlo.multiply %a, %y : !L
    mpmd.return %c, %d : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %unused = mpmd.transfer %r : (!B) -> !A
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {split_keep_transferred} (%arg3: !L, %arg4: !L) {
    %4 = stablehlo.abs %arg3 : !L
    %5 = stablehlo.negate %4 : !L
    mpmd.return %5, %arg4, %arg3 : !L, !L, !L
  } : (!A, !A) -> (!A, !A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1, %0#2) {split_drop_transferred} (%arg3: !L, %arg4: !L, %arg5: !L, %arg6: !L) {
    %4 = stablehlo.negate %arg6 : !L
    %5 = stablehlo.multiply %4, %arg5 : !L
    mpmd.return %5 : !L
  } : (!A, !A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  return %2, %1 : !B, !A
}

// ----- Nothing happens when the function has one op more than what stays (3)
func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %unused = mpmd.transfer %r : (!B) -> !A
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A, %arg2: !B) -> (!B, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {split_keep_transferred} (%arg3: !L, %arg4: !L) {
    %4 = stablehlo.negate %arg3 : !L
    mpmd.return %4, %arg4, %4 : !L, !L, !L
  } : (!A, !A) -> (!A, !A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1, %0#2) {split_drop_transferred} (%arg3: !L, %arg4: !L, %arg5: !L, %arg6: !L) {
    %4 = stablehlo.multiply %arg6, %arg5 : !L
    mpmd.return %4 : !L
  } : (!A, !A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3 = mpmd.transfer %arg2 : (!B) -> !A
  return %2, %1 : !B, !A
}

// ----- One phase in several computations
func.func @main(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1), "g"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"(1), "g"(1)]> (%arg0, %arg1) {split_keep_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %3 = stablehlo.negate %arg2 : tensor<4xf32>
    mpmd.return %3, %arg3, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1), "g"(1)]> (%arg0, %arg1, %0#1, %0#2) {split_drop_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4xf32>) {
    %3 = stablehlo.multiply %arg5, %arg4 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A, !A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  return %2, %1 : !B, !A
}

// ----- A forward stays whole
func.func @main(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  return %t0, %0#1 : !B, !A
}

// ----- A second backward stays whole
func.func @main(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(2)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  return %t0, %0#1 : !B, !A
}

// ----- A fragment of two phases stays whole
func.func @main(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f", "g"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  return %t0, %0#1 : !B, !A
}

// ----- An inferred fragment stays whole
func.func @main(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=[]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  return %t0, %0#1 : !B, !A
}

// ----- The first half of a split stays whole
func.func @main(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) {split_keep_transferred} (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  return %t0, %0#1 : !B, !A
}

// ----- The second half of a split stays whole
func.func @main(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) {split_drop_transferred} (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  return %t0, %0#1 : !B, !A
}

// ----- A backward that sends all that it makes stays whole
func.func @main(%p: !A, %q: !A) -> (!B, !B) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  %t1 = mpmd.transfer %0#1 : (!A) -> !B
  return %t0, %t1 : !B, !B
}

// ----- A backward that sends nothing stays whole
func.func @main(%p: !A, %q: !A, %r: !B) -> (!A, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %unused = mpmd.transfer %r : (!B) -> !A
  return %0#0, %0#1 : !A, !A
}

// ----- Microbatches share both halves
// passes: mpmd-call-inline,mpmd-symbol-dce,mpmd-split-bwd-fragments
func.func @main(%p: !A, %q: !A) -> (!B, !A, !B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.call @step(%p, %q) {call_counter = 0 : ui32} : (!A, !A) -> (!B, !A)
  %1:2 = mpmd.call @step(%p, %q) {call_counter = 1 : ui32} : (!A, !A) -> (!B, !A)
  return %0#0, %0#1, %1#0, %1#1 : !B, !A, !B, !A
}
func.func private @step(%p: !A, %q: !A) -> (!B, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%p, %q) (%x: !L, %y: !L) {
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
  } : (!A, !A) -> (!A, !A)
  %t0 = mpmd.transfer %0#0 : (!A) -> !B
  return %t0, %0#1 : !B, !A
}
// =>
func.func @main(%arg0: !A, %arg1: !A) -> (!B, !A, !B, !A) attributes {topology = #topo} {
  %0:3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {call_counter = 0 : ui32, split_keep_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %6 = stablehlo.negate %arg2 : tensor<4xf32>
    mpmd.return %6, %arg3, %6 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  %1 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %0#1, %0#2) {call_counter = 0 : ui32, split_drop_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4xf32>) {
    %6 = stablehlo.multiply %arg5, %arg4 : tensor<4xf32>
    mpmd.return %6 : tensor<4xf32>
  } : (!A, !A, !A, !A) -> !A
  %2 = mpmd.transfer %0#0 : (!A) -> !B
  %3:3 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1) {call_counter = 1 : ui32, split_keep_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %6 = stablehlo.negate %arg2 : tensor<4xf32>
    mpmd.return %6, %arg3, %6 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  %4 = mpmd.fragment<mesh="alpha", origin=["f"(1)]> (%arg0, %arg1, %3#1, %3#2) {call_counter = 1 : ui32, split_drop_transferred} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4xf32>) {
    %6 = stablehlo.multiply %arg5, %arg4 : tensor<4xf32>
    mpmd.return %6 : tensor<4xf32>
  } : (!A, !A, !A, !A) -> !A
  %5 = mpmd.transfer %3#0 : (!A) -> !B
  return %2, %1, %5, %4 : !B, !A, !B, !A
}
// bodies: 2
