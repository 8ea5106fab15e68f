// passes: func.func(mpmd-validate-named-ops-in-mpmd-func)
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>

// ----- Ops in mpmd functions and in each other are fine (1)
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
      mpmd.return %y : !T
    } : (!T) -> !T
    %2 = mpmd.named_tensor %1 name="t" : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}

// ----- Ops in mpmd functions and in each other are fine (2)
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
      mpmd.return %y : !T
    } : (!T) -> !T
    %2 = mpmd.named_tensor %1 name="t" : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}
// fine

// ----- Ops in other regions are reported
func.func @main(%a: !T, %i: tensor<i32>) -> !T attributes {topology = #topo} {
  %0 = "stablehlo.case"(%i) ({
    %1 = mpmd.named_tensor %a name="t" : !T
    %2 = mpmd.named_computation<"f"> (%1) (%x: !T) {
      mpmd.return %x : !T
    } : (!T) -> !T
    stablehlo.return %2 : !T
  }) : (tensor<i32>) -> !T
  return %0 : !T
}
// error, but no failure: named tensor 't' is in the body of a 'stablehlo.case' in @main
// error, but no failure: named computation 'f' is in the body of a 'stablehlo.case'

// ----- Only the outer op of a plain function is reported
// passes: func.func(mpmd-validate-named-ops-in-mpmd-func)
func.func @main(%a: !T) -> !T {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
      mpmd.return %y : !T
    } : (!T) -> !T
    %2 = mpmd.named_tensor %1 name="t" : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error, but no failure: named computation 'outer' is in function @main, which has no topology. Named computations can only be nested in mpmd functions or mpmd ops: call that function with mpmd.call, or move the name into the entry point
