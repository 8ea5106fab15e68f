// passes: mpmd-absorb-inferred-fragments
!A = !mpmd.mesh_tensor<"alpha", tensor<4xf32>>
!B = !mpmd.mesh_tensor<"beta", tensor<4xf32>>
#topo = #mpmd.topology<<"alpha" : <["x"=2]>>, <"beta" : <["x"=2]>>>

// ----- Producers and consumers are absorbed
// The root takes the inferred fragments on both sides; transfers make room.
func.func private @callee(%p: !A, %q: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %s = stablehlo.add %n, %c : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %0) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.multiply %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  %3 = mpmd.transfer %q : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=[]> (%2, %3) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.subtract %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  return %4, %1 : !A, !B
}
// =>
func.func private @callee(%arg0: !A, %arg1: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %0) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<4xf32>
    %3 = stablehlo.negate %arg2 : tensor<4xf32>
    %4 = stablehlo.add %3, %cst : tensor<4xf32>
    %5 = stablehlo.multiply %arg2, %4 : tensor<4xf32>
    %6 = stablehlo.subtract %5, %arg3 : tensor<4xf32>
    mpmd.return %4, %6 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  %2 = mpmd.transfer %1#0 : (!A) -> !B
  return %1#1, %2 : !A, !B
}

// ----- Unused transfers and constants are tidied
// Also without anything to absorb: dead ops go, constants are unified and come first.
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!A) -> !B
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %a = stablehlo.negate %x : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %d = stablehlo.add %a, %c : tensor<4xf32>
    %e = stablehlo.constant dense<2.0> : tensor<4xf32>
    %g = stablehlo.constant dense<1.0> : tensor<4xf32>
    %h = stablehlo.add %d, %g : tensor<4xf32>
    %i = stablehlo.add %h, %e : tensor<4xf32>
    mpmd.return %i : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// =>
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %e = stablehlo.constant dense<2.0> : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %a = stablehlo.negate %x : tensor<4xf32>
    %d = stablehlo.add %a, %c : tensor<4xf32>
    %h = stablehlo.add %d, %c : tensor<4xf32>
    %i = stablehlo.add %h, %e : tensor<4xf32>
    mpmd.return %i : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Entry points only with the option (1)
// A public function is left alone unless the option says otherwise.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}

// ----- Entry points only with the option (2)
// passes: mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// CHECK-COUNT-1: mpmd.fragment

// ----- Inferred chain keeps all reasons
// Of two inferred fragments the later is the root: its entries come first.
func.func private @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {mpmd.inferred_by = ["a", "b"]} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=[]> (%0) {call_counter = 1 : ui32, mpmd.inferred_by = ["b", "c"]} (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
// CHECK: {call_counter = 1 : ui32, mpmd.inferred_by = ["b", "c", "a"]}

// ----- Constants leave nested regions
// The home of a constant is the body of the fragment, not the region of an op in it.
func.func private @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %w = stablehlo.while(%i = %x) : tensor<4xf32> cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      stablehlo.return %i : tensor<4xf32>
    }
    mpmd.return %w : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
// =>
func.func private @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %c = stablehlo.constant dense<false> : tensor<i1>
    %w = stablehlo.while(%i = %x) : tensor<4xf32> cond {
      stablehlo.return %c : tensor<i1>
    } do {
      stablehlo.return %i : tensor<4xf32>
    }
    mpmd.return %w : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}

// ----- Transfers move again for every use of a root
// passes: mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}
// A consumer that uses the root twice is looked at twice: the second time its transfers are out of the way.
func.func @main(%p: !A, %q: !A) -> (!A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n, %x : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  %1 = mpmd.transfer %0#1 : (!A) -> !B
  %2 = mpmd.transfer %q : (!A) -> !A
  %3 = mpmd.transfer %2 : (!A) -> !A
  %4 = mpmd.fragment<mesh="beta", origin=[]> (%1) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!B) -> !B
  %5 = mpmd.fragment<mesh="alpha", origin=[]> (%3, %0#0, %2, %0#1) {call_counter = 0 : ui32} (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>, %w: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    %t = stablehlo.add %z, %w : tensor<4xf32>
    %u = stablehlo.add %s, %t : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  } : (!A, !A, !A, !A) -> !A
  return %5 : !A
}
// CHECK-COUNT-1: mpmd.fragment
// CHECK-NOT: call_counter

// ----- Merged fragments of an unused loop go with it
// passes: mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}
// The ops in a loop are visited before the loop, which is then found to be dead.
func.func @main(%p: !A, %q: !B) -> (!A) attributes {topology = #topo} {
  %l = mpmd.for (%p) {iterations = 2 : ui32, unroll_factor = 2 : ui32} (%a: !A, %i: tensor<ui32>) {
    %0 = mpmd.fragment<mesh="alpha", origin=[]> (%a) (%x: tensor<4xf32>) {
      %y = stablehlo.negate %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!A) -> !A
    %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) (%x: tensor<4xf32>) {
      %y = stablehlo.abs %x : tensor<4xf32>
      mpmd.return %y : tensor<4xf32>
    } : (!A) -> !A
    mpmd.return %1 : !A
  } : !A
  %2 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%2) (%x: tensor<4xf32>) {
    %y = stablehlo.abs %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  return %3 : !A
}
// CHECK-COUNT-1: mpmd.fragment
// CHECK-NOT: mpmd.for

// ----- Result attributes of the root reach every transfer (1)
// passes: mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}
// The root's `res_attrs` stay as they are, but for entries that the transfers of new results need.
func.func @main(%p: !A, %q: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {res_attrs = [{mhlo.layout_mode = "default"}]} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.transfer %1 : (!A) -> !B
  return %0, %2 : !A, !B
}
// CHECK: res_attrs = [{mhlo.layout_mode = "default"}, {}]

// ----- Result attributes of the root reach every transfer (2)
// passes: mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}
func.func @main(%p: !A, %q: !B) -> (!B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {res_attrs = [{mhlo.layout_mode = "default"}]} (%x: tensor<4xf32>) {
    %y = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.transfer %1 : (!A) -> !B
  return %2 : !B
}
// CHECK: res_attrs = [{mhlo.layout_mode = "default"}]}

// ----- What has absorbed an inferred fragment is not absorbed by another root
func.func private @f(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %a = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %a : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) (%x: tensor<4xf32>) {
    %a = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %a : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=[]> (%1, %0) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %a = stablehlo.add %x, %y : tensor<4xf32>
    mpmd.return %a : tensor<4xf32>
  } : (!A, !A) -> !A
  return %0, %2 : !A, !A
}
// =>
func.func private @f(%p: !A) -> (!A, !A) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %a = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %a : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0, %0) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %a = stablehlo.sine %x : tensor<4xf32>
    %b = stablehlo.add %a, %y : tensor<4xf32>
    mpmd.return %b : tensor<4xf32>
  } : (!A, !A) -> !A
  return %0, %1 : !A, !A
}

// ----- Other users of what was merged are visited again
func.func private @f(%p: !A, %q: !B) -> (!A, !A, !A) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %a = stablehlo.sine %x : tensor<4xf32>
    %b = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %a, %b : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  %1:2 = mpmd.fragment<mesh="alpha", origin=[]> (%0#1, %0#0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %a = stablehlo.add %x, %y : tensor<4xf32>
    %b = stablehlo.add %a, %z : tensor<4xf32>
    %c = stablehlo.sine %b : tensor<4xf32>
    mpmd.return %c, %b : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A, !A) -> (!A, !A)
  %t = mpmd.transfer %q : (!B) -> !A
  %2 = mpmd.fragment<mesh="alpha", origin=[]> (%p, %0#1) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %a = stablehlo.add %x, %y : tensor<4xf32>
    mpmd.return %a : tensor<4xf32>
  } : (!A, !A) -> !A
  return %1#1, %t, %2 : !A, !A, !A
}
// =>
func.func private @f(%p: !A, %q: !B) -> (!A, !A, !A) attributes {topology = #topo} {
  %t = mpmd.transfer %q : (!B) -> !A
  %0:2 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %a = stablehlo.sine %x : tensor<4xf32>
    %b = stablehlo.cosine %x : tensor<4xf32>
    %c = stablehlo.add %b, %a : tensor<4xf32>
    %d = stablehlo.add %c, %x : tensor<4xf32>
    %e = stablehlo.add %x, %b : tensor<4xf32>
    mpmd.return %d, %e : tensor<4xf32>, tensor<4xf32>
  } : (!A) -> (!A, !A)
  return %0#0, %t, %0#1 : !A, !A, !A
}
