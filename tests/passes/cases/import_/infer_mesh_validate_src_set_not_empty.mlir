// passes: mpmd-infer-mesh-validate-src-set-not-empty
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>

// ----- Sets that are fine
func.func @main(%a: !T {src=<"p0">}, %b: !T) -> (!T, !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %a {src=<"p0", "p1">} : !T
  %1 = stablehlo.add %a, %b : !T
  return %0, %1 : !T, !T
}
