// passes: builtin.module(mpmd-copy-topology-from-main)
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>

// ----- Other functions are left alone
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = func.call @plain(%a) : (!T) -> !T
  return %0 : !T
}
func.func @plain(%a: !T) -> !T {
  return %a : !T
}
func.func @uncalled(%a: !T) -> !T {
  return %a : !T
}

// ----- A private callee keeps being private and the caller need not be main
func.func @step(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.call @blk(%a) : (!T) -> !T
  return %0 : !T
}
func.func private @blk(%a: !T) -> !T {
  return %a : !T
}
// =>
func.func @step(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.call @blk(%a) : (!T) -> !T
  return %0 : !T
}
func.func private @blk(%a: !T) -> !T attributes {topology = #topo} {
  return %a : !T
}
