// passes: func.func(mpmd-insert-nameless-clone-of-negligible-ops)
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>

// ----- Constants are repeated outside except for the return
func.func @main(%a: !T) -> (!T, !T) attributes {topology = #topo} {
  %0:2 = mpmd.named_computation<"k"> (%a) (%x: !T) {
    %c = stablehlo.constant dense<5.0> : !T
    %i = stablehlo.iota dim = 0 : !T
    mpmd.return %c, %i : !T, !T
  } : (!T) -> (!T, !T)
  %1 = stablehlo.add %0#0, %a : !T
  return %1, %0#1 : !T, !T
}
// =>
func.func @main(%a: !T) -> (!T, !T) attributes {topology = #topo} {
  %0:2 = mpmd.named_computation<"k"> (%a) (%x: !T) {
    %c = stablehlo.constant dense<5.0> : !T
    %i = stablehlo.iota dim = 0 : !T
    mpmd.return %c, %i : !T, !T
  } : (!T) -> (!T, !T)
  %c2 = stablehlo.constant dense<5.0> : !T
  %i2 = stablehlo.iota dim = 0 : !T
  %1 = stablehlo.add %c2, %a : !T
  return %1, %0#1 : !T, !T
}

// ----- One clone per result even if it is unused
func.func @main() -> !T attributes {topology = #topo} {
  %0:2 = mpmd.named_computation<"k"> () () {
    %c = stablehlo.constant dense<5.0> : !T
    mpmd.return %c, %c : !T, !T
  } : () -> (!T, !T)
  return %0#0 : !T
}
// =>
func.func @main() -> !T attributes {topology = #topo} {
  %0:2 = mpmd.named_computation<"k"> () () {
    %c = stablehlo.constant dense<5.0> : !T
    mpmd.return %c, %c : !T, !T
  } : () -> (!T, !T)
  %1 = stablehlo.constant dense<5.0> : !T
  %2 = stablehlo.constant dense<5.0> : !T
  return %0#0 : !T
}

// ----- The return of an enclosing computation takes the clone
func.func @main() -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"out"> () () {
    %1 = mpmd.named_computation<"in"> () () {
      %c = stablehlo.constant dense<5.0> : !T
      mpmd.return %c : !T
    } : () -> !T
    mpmd.return %1 : !T
  } : () -> !T
  %2 = stablehlo.abs %0 : !T
  return %2 : !T
}
// =>
func.func @main() -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"out"> () () {
    %1 = mpmd.named_computation<"in"> () () {
      %c = stablehlo.constant dense<5.0> : !T
      mpmd.return %c : !T
    } : () -> !T
    %3 = stablehlo.constant dense<5.0> : !T
    mpmd.return %3 : !T
  } : () -> !T
  %4 = stablehlo.constant dense<5.0> : !T
  %2 = stablehlo.abs %4 : !T
  return %2 : !T
}
