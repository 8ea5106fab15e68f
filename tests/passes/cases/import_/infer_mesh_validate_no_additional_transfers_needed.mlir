// passes: mpmd-infer-mesh-validate-no-additional-transfers-needed
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>

// ----- Sets that are fine
// Absent sets, equal sets in another order, subsets.
func.func @main(%a: !T {src=<"p0", "p1">, use=<"p1">}, %b: !T {use=<"p1">}) -> (!T, !T)
    attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<"p0", "p1">, use=<"p1"["x"], "p0">} : !T
  %1 = stablehlo.add %a, %b {src=<"p1">} : !T
  return %0, %1 : !T, !T
}

// ----- Arguments are silent when a user was reported
func.func @main(%a: !T {src=<"p0">, use=<"p2">}) -> !T attributes {topology = #topo} {
  %0 = mpmd.call @f(%a) : (!T) -> !T
  return %0 : !T
}
func.func private @f(%x: !T {src=<"p0">, use=<"p2">}) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %x {src=<"p0">, use=<"p2">} : !T
  return %0 : !T
}
// error: 'stablehlo.abs'

// ----- Empty set
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<>, use=<"p2">} : !T
  return %0 : !T
}
// error: can be on no mesh
