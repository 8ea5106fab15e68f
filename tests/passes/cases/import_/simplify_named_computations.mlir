// passes: builtin.module(func.func(mpmd-simplify-named-computations))
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>

// ----- Repeated and passed through values
func.func @main(%a: !T, %b: !T) -> (!T, !T, !T) attributes {topology = #topo} {
  %0:4 = mpmd.named_computation<"k"(1)> (%a, %b, %a) (%x: !T, %y: !T, %z: !T) {
    %p:2 = stablehlo.optimization_barrier %x, %y : !T, !T
    %q = stablehlo.multiply %p#0, %z : !T
    %w = stablehlo.abs %q : !T
    mpmd.return %q, %p#1, %q, %w : !T, !T, !T, !T
  } : (!T, !T, !T) -> (!T, !T, !T, !T)
  return %0#0, %0#1, %0#2 : !T, !T, !T
}
// =>
func.func @main(%a: !T, %b: !T) -> (!T, !T, !T) attributes {topology = #topo} {
  %0 = mpmd.named_computation<"k"(1)> (%a) (%x: !T) {
    %p = stablehlo.optimization_barrier %x : !T
    %q = stablehlo.multiply %p, %x : !T
    mpmd.return %q : !T
  } : (!T) -> !T
  return %0, %b, %0 : !T, !T, !T
}

// ----- Nothing to do
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"k"> (%a) {foo = 1 : i32} (%x: !T) {
    %1 = stablehlo.abs %x : !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %0 : !T
}

// ----- Other attributes go when the computation changes
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"k"> (%a, %a) {foo = 1 : i32} (%x: !T, %y: !T) {
    %1 = stablehlo.add %x, %y : !T
    mpmd.return %1 : !T
  } : (!T, !T) -> !T
  return %0 : !T
}
// =>
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"k"> (%a) (%x: !T) {
    %1 = stablehlo.add %x, %x : !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %0 : !T
}

// ----- Nested computations are simplified too
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"out"> (%a) (%x: !T) {
    %1:2 = mpmd.named_computation<"in"> (%x, %x) (%y: !T, %z: !T) {
      %2 = stablehlo.add %y, %z : !T
      mpmd.return %2, %z : !T, !T
    } : (!T, !T) -> (!T, !T)
    %3 = stablehlo.multiply %1#0, %1#1 : !T
    mpmd.return %3 : !T
  } : (!T) -> !T
  return %0 : !T
}
// =>
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"out"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"in"> (%x) (%y: !T) {
      %2 = stablehlo.add %y, %y : !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    %3 = stablehlo.multiply %1, %x : !T
    mpmd.return %3 : !T
  } : (!T) -> !T
  return %0 : !T
}
