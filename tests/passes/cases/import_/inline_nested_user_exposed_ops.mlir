// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0})
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>

// ----- Nested ops are inlined
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0,inner@p0})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0/1,inner@p0/1})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
      %2 = stablehlo.sine %y : !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    %3 = mpmd.broadcast %1 : !T
    %4 = stablehlo.abs %3 : !T
    mpmd.return %4 : !T
  } : (!T) -> !T
  return %0 : !T
}
// =>
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = stablehlo.sine %x : !T
    %2 = stablehlo.abs %1 : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}

// ----- Different meshes or stages are an error
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0,inner@p1})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0/1,inner@p0/2})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0/1,inner@p0})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
      %2 = stablehlo.sine %y : !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    %3 = mpmd.broadcast %1 : !T
    %4 = stablehlo.abs %3 : !T
    mpmd.return %4 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: named computation 'inner' is assigned to ... nested in 'outer'

// ----- An unassigned parent is an error
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=inner@p0})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
      %2 = stablehlo.sine %y : !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    %3 = mpmd.broadcast %1 : !T
    %4 = stablehlo.abs %3 : !T
    mpmd.return %4 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: 'outer', which holds the named computation 'inner', is not assigned

// ----- With `inherit`, an unassigned parent has the assignment of the computation around it
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0 inherit=true})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0/1,inner@p0/1 inherit=true})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"middle"> (%x) (%y: !T) {
      %2 = mpmd.named_computation<"inner"> (%y) (%z: !T) {
        %3 = stablehlo.sine %z : !T
        mpmd.return %3 : !T
      } : (!T) -> !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %0 : !T
}
// =>
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = stablehlo.sine %x : !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %0 : !T
}

// ----- Without `inherit`, it must be assigned
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"middle"> (%x) (%y: !T) {
      %2 = mpmd.named_computation<"inner"> (%y) (%z: !T) {
        %3 = stablehlo.sine %z : !T
        mpmd.return %3 : !T
      } : (!T) -> !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: 'middle', which holds the named computation 'inner', is not assigned

// ----- With `inherit`, an assigned parent keeps its own assignment
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0,middle@p1,inner@p1 inherit=true})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"middle"> (%x) (%y: !T) {
      %2 = mpmd.named_computation<"inner"> (%y) (%z: !T) {
        %3 = stablehlo.sine %z : !T
        mpmd.return %3 : !T
      } : (!T) -> !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: named computation 'middle' is assigned to ... nested in 'outer'

// ----- Each computation around an unassigned parent is looked at
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0,g@p1,inner@p0 inherit=true})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"middle"> (%x) (%y: !T) {
      %2 = mpmd.named_computation<"inner"> (%y) (%z: !T) {
        %3 = stablehlo.sine %z : !T
        mpmd.return %3 : !T
      } : (!T) -> !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  %4 = mpmd.named_computation<"g"> (%0) (%x: !T) {
    %1 = mpmd.named_computation<"middle"> (%x) (%y: !T) {
      %2 = mpmd.named_computation<"inner"> (%y) (%z: !T) {
        %3 = stablehlo.sine %z : !T
        mpmd.return %3 : !T
      } : (!T) -> !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %4 : !T
}
// error: named computation 'inner' is assigned to ... nested in 'g'

// ----- Another mesh or stage than that one is an error
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=outer@p0,inner@p1 inherit=true})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"middle"> (%x) (%y: !T) {
      %2 = mpmd.named_computation<"inner"> (%y) (%z: !T) {
        %3 = stablehlo.sine %z : !T
        mpmd.return %3 : !T
      } : (!T) -> !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    mpmd.return %1 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: named computation 'inner' is assigned to ... nested in 'outer'

// ----- Nested tensors vanish
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0,t@p0})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0/3,t@p0})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    %1 = mpmd.named_tensor %x name="t" : !T
    %2 = stablehlo.abs %1 : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}
// =>
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    %2 = stablehlo.abs %x : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}

// ----- A nested tensor on another mesh is an error
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0,t@p1})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0#device,t@p0#device})
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0#device,t@p0})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    %1 = mpmd.named_tensor %x name="t" : !T
    %2 = stablehlo.abs %1 : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: named tensor 't' is assigned to mesh

// ----- A nested tensor needs an assigned parent
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=t@p0})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    %1 = mpmd.named_tensor %x name="t" : !T
    %2 = stablehlo.abs %1 : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: 'f', which holds the named tensor 't'

// ----- A nested reduce is its first operand
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=})
func.func @main(%a: !T, %b: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a, %b) (%x: !T, %y: !T) {
    %1 = mpmd.reduce<add> %y, %x : (!T, !T) -> !T
    mpmd.return %1 : !T
  } : (!T, !T) -> !T
  return %0 : !T
}
// =>
func.func @main(%a: !T, %b: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a, %b) (%x: !T, %y: !T) {
    mpmd.return %y : !T
  } : (!T, !T) -> !T
  return %0 : !T
}

// ----- Ops in regions of other ops
func.func @main(%a: !T, %i: tensor<i32>) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a, %i) (%x: !T, %j: tensor<i32>) {
    %1 = "stablehlo.case"(%j) ({
      %2 = mpmd.named_computation<"g"> (%x) (%y: !T) {
        %3 = stablehlo.abs %y : !T
        mpmd.return %3 : !T
      } : (!T) -> !T
      stablehlo.return %2 : !T
    }) : (tensor<i32>) -> !T
    mpmd.return %1 : !T
  } : (!T, tensor<i32>) -> !T
  return %0 : !T
}
// =>
func.func @main(%a: !T, %i: tensor<i32>) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a, %i) (%x: !T, %j: tensor<i32>) {
    %1 = "stablehlo.case"(%j) ({
      %3 = stablehlo.abs %x : !T
      stablehlo.return %3 : !T
    }) : (tensor<i32>) -> !T
    mpmd.return %1 : !T
  } : (!T, tensor<i32>) -> !T
  return %0 : !T
}

// ----- Every function is looked at
// passes: func.func(mpmd-inline-nested-user-exposed-ops)
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
      %2 = stablehlo.sine %y : !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    %3 = mpmd.broadcast %1 : !T
    %4 = stablehlo.abs %3 : !T
    mpmd.return %4 : !T
  } : (!T) -> !T
  return %0 : !T
}
func.func private @other(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
    %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
      %2 = stablehlo.sine %y : !T
      mpmd.return %2 : !T
    } : (!T) -> !T
    %3 = mpmd.broadcast %1 : !T
    %4 = stablehlo.abs %3 : !T
    mpmd.return %4 : !T
  } : (!T) -> !T
  return %0 : !T
}
// error: named computation 'outer', which holds the named computation 'inner', is not assigned to
// error: named computation 'outer', which holds the named computation 'inner', is not assigned to

// ----- A memory kind of a nested tensor is logged
// passes: func.func(mpmd-inline-nested-user-exposed-ops{assignment=f@p0,t@p0#pinned_host})
func.func @main(%a: !T) -> !T attributes {topology = #topo} {
  %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
    %1 = mpmd.named_tensor %x name="t" : !T
    %2 = stablehlo.abs %1 : !T
    mpmd.return %2 : !T
  } : (!T) -> !T
  return %0 : !T
}
// fine
// log: named tensor 't' is assigned to memory kind "pinned_host"
