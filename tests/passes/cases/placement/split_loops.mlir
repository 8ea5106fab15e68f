// passes: mpmd-open-conditionals,mpmd-split-loops
!t = tensor<4xf32>
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>

// ----- A loop that runs three times
// Each iteration needs the inner product of what the other mesh has made.
func.func public @main(%p: !a, %q: !b, %flag: tensor<i1>) -> (!t, !t) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %start = stablehlo.constant dense<0> : tensor<i32>
  %l:3 = stablehlo.while(%i = %start, %c = %u, %d = %v) : tensor<i32>, !t, !t
  cond {
    %end = stablehlo.constant dense<3> : tensor<i32>
    %less = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %dot = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (!t, !t) -> tensor<f32>
    %fill = stablehlo.broadcast_in_dim %dot, dims = [] : (tensor<f32>) -> !t
    %x = stablehlo.subtract %c, %fill : !t
    %y = stablehlo.add %d, %fill : !t
    stablehlo.return %next, %x, %y : tensor<i32>, !t, !t
  }
  return %l#1, %l#2 : !t, !t
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<4xf32>
  %1 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %2 = stablehlo.add %c, %c_0 : tensor<i32>
  %3 = stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %5 = stablehlo.subtract %0, %4 : tensor<4xf32>
  %6 = stablehlo.add %1, %4 : tensor<4xf32>
  %c_1 = stablehlo.constant dense<1> : tensor<i32>
  %7 = stablehlo.add %2, %c_1 : tensor<i32>
  %8 = stablehlo.dot_general %5, %6, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %10 = stablehlo.subtract %5, %9 : tensor<4xf32>
  %11 = stablehlo.add %6, %9 : tensor<4xf32>
  %c_2 = stablehlo.constant dense<1> : tensor<i32>
  %12 = stablehlo.add %7, %c_2 : tensor<i32>
  %13 = stablehlo.dot_general %10, %11, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %14 = stablehlo.broadcast_in_dim %13, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %15 = stablehlo.subtract %10, %14 : tensor<4xf32>
  %16 = stablehlo.add %11, %14 : tensor<4xf32>
  return %15, %16 : tensor<4xf32>, tensor<4xf32>
}

// ----- A loop that runs once
func.func public @main(%p: !a, %q: !b, %flag: tensor<i1>) -> (!t, !t) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %start = stablehlo.constant dense<2> : tensor<i32>
  %l:3 = stablehlo.while(%i = %start, %c = %u, %d = %v) : tensor<i32>, !t, !t
  cond {
    %end = stablehlo.constant dense<3> : tensor<i32>
    %less = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %dot = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (!t, !t) -> tensor<f32>
    %fill = stablehlo.broadcast_in_dim %dot, dims = [] : (tensor<f32>) -> !t
    %x = stablehlo.subtract %c, %fill : !t
    %y = stablehlo.add %d, %fill : !t
    stablehlo.return %next, %x, %y : tensor<i32>, !t, !t
  }
  return %l#1, %l#2 : !t, !t
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<4xf32>
  %1 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %c = stablehlo.constant dense<2> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %2 = stablehlo.add %c, %c_0 : tensor<i32>
  %3 = stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %5 = stablehlo.subtract %0, %4 : tensor<4xf32>
  %6 = stablehlo.add %1, %4 : tensor<4xf32>
  return %5, %6 : tensor<4xf32>, tensor<4xf32>
}

// ----- A loop that runs never
func.func public @main(%p: !a, %q: !b, %flag: tensor<i1>) -> (!t, !t) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %start = stablehlo.constant dense<3> : tensor<i32>
  %l:3 = stablehlo.while(%i = %start, %c = %u, %d = %v) : tensor<i32>, !t, !t
  cond {
    %end = stablehlo.constant dense<3> : tensor<i32>
    %less = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %dot = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (!t, !t) -> tensor<f32>
    %fill = stablehlo.broadcast_in_dim %dot, dims = [] : (tensor<f32>) -> !t
    %x = stablehlo.subtract %c, %fill : !t
    %y = stablehlo.add %d, %fill : !t
    stablehlo.return %next, %x, %y : tensor<i32>, !t, !t
  }
  return %l#1, %l#2 : !t, !t
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<4xf32>
  %1 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %c = stablehlo.constant dense<3> : tensor<i32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// ----- A loop in a conditional that runs three times
func.func public @main(%p: !a, %q: !b, %flag: tensor<i1>) -> (!t, !t) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %start = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = "stablehlo.if"(%flag) ({
    %l:3 = stablehlo.while(%i = %start, %c = %u, %d = %v) : tensor<i32>, !t, !t
    cond {
      %end = stablehlo.constant dense<3> : tensor<i32>
      %less = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %dot = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (!t, !t) -> tensor<f32>
      %fill = stablehlo.broadcast_in_dim %dot, dims = [] : (tensor<f32>) -> !t
      %x = stablehlo.subtract %c, %fill : !t
      %y = stablehlo.add %d, %fill : !t
      stablehlo.return %next, %x, %y : tensor<i32>, !t, !t
    }
    stablehlo.return %l#1, %l#2 : !t, !t
  }, {
    stablehlo.return %v, %u : !t, !t
  }) : (tensor<i1>) -> (!t, !t)
  return %0#0, %0#1 : !t, !t
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<4xf32>
  %1 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %2 = stablehlo.add %c, %c_0 {mpmd.branch = "0:1"} : tensor<i32>
  %3 = stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] {mpmd.branch = "0:1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [] {mpmd.branch = "0:1"} : (tensor<f32>) -> tensor<4xf32>
  %5 = stablehlo.subtract %0, %4 {mpmd.branch = "0:1"} : tensor<4xf32>
  %6 = stablehlo.add %1, %4 {mpmd.branch = "0:1"} : tensor<4xf32>
  %c_1 = stablehlo.constant dense<1> : tensor<i32>
  %7 = stablehlo.add %2, %c_1 {mpmd.branch = "0:1"} : tensor<i32>
  %8 = stablehlo.dot_general %5, %6, contracting_dims = [0] x [0] {mpmd.branch = "0:1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %9 = stablehlo.broadcast_in_dim %8, dims = [] {mpmd.branch = "0:1"} : (tensor<f32>) -> tensor<4xf32>
  %10 = stablehlo.subtract %5, %9 {mpmd.branch = "0:1"} : tensor<4xf32>
  %11 = stablehlo.add %6, %9 {mpmd.branch = "0:1"} : tensor<4xf32>
  %c_2 = stablehlo.constant dense<1> : tensor<i32>
  %12 = stablehlo.add %7, %c_2 {mpmd.branch = "0:1"} : tensor<i32>
  %13 = stablehlo.dot_general %10, %11, contracting_dims = [0] x [0] {mpmd.branch = "0:1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %14 = stablehlo.broadcast_in_dim %13, dims = [] {mpmd.branch = "0:1"} : (tensor<f32>) -> tensor<4xf32>
  %15 = stablehlo.subtract %10, %14 {mpmd.branch = "0:1"} : tensor<4xf32>
  %16 = stablehlo.add %11, %14 {mpmd.branch = "0:1"} : tensor<4xf32>
  %17 = stablehlo.select %arg2, %15, %1 {mpmd.selects = 0 : i64} : tensor<i1>, tensor<4xf32>
  %18 = stablehlo.select %arg2, %16, %0 {mpmd.selects = 0 : i64} : tensor<i1>, tensor<4xf32>
  return %17, %18 : tensor<4xf32>, tensor<4xf32>
}

// ----- A loop in a conditional that runs once
func.func public @main(%p: !a, %q: !b, %flag: tensor<i1>) -> (!t, !t) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %start = stablehlo.constant dense<2> : tensor<i32>
  %0:2 = "stablehlo.if"(%flag) ({
    %l:3 = stablehlo.while(%i = %start, %c = %u, %d = %v) : tensor<i32>, !t, !t
    cond {
      %end = stablehlo.constant dense<3> : tensor<i32>
      %less = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %dot = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (!t, !t) -> tensor<f32>
      %fill = stablehlo.broadcast_in_dim %dot, dims = [] : (tensor<f32>) -> !t
      %x = stablehlo.subtract %c, %fill : !t
      %y = stablehlo.add %d, %fill : !t
      stablehlo.return %next, %x, %y : tensor<i32>, !t, !t
    }
    stablehlo.return %l#1, %l#2 : !t, !t
  }, {
    stablehlo.return %v, %u : !t, !t
  }) : (tensor<i1>) -> (!t, !t)
  return %0#0, %0#1 : !t, !t
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<4xf32>
  %1 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %c = stablehlo.constant dense<2> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %2 = stablehlo.add %c, %c_0 {mpmd.branch = "0:1"} : tensor<i32>
  %3 = stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] {mpmd.branch = "0:1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [] {mpmd.branch = "0:1"} : (tensor<f32>) -> tensor<4xf32>
  %5 = stablehlo.subtract %0, %4 {mpmd.branch = "0:1"} : tensor<4xf32>
  %6 = stablehlo.add %1, %4 {mpmd.branch = "0:1"} : tensor<4xf32>
  %7 = stablehlo.select %arg2, %5, %1 {mpmd.selects = 0 : i64} : tensor<i1>, tensor<4xf32>
  %8 = stablehlo.select %arg2, %6, %0 {mpmd.selects = 0 : i64} : tensor<i1>, tensor<4xf32>
  return %7, %8 : tensor<4xf32>, tensor<4xf32>
}

// ----- A loop in a conditional that runs never
func.func public @main(%p: !a, %q: !b, %flag: tensor<i1>) -> (!t, !t) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %start = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = "stablehlo.if"(%flag) ({
    %l:3 = stablehlo.while(%i = %start, %c = %u, %d = %v) : tensor<i32>, !t, !t
    cond {
      %end = stablehlo.constant dense<3> : tensor<i32>
      %less = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %dot = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (!t, !t) -> tensor<f32>
      %fill = stablehlo.broadcast_in_dim %dot, dims = [] : (tensor<f32>) -> !t
      %x = stablehlo.subtract %c, %fill : !t
      %y = stablehlo.add %d, %fill : !t
      stablehlo.return %next, %x, %y : tensor<i32>, !t, !t
    }
    stablehlo.return %l#1, %l#2 : !t, !t
  }, {
    stablehlo.return %v, %u : !t, !t
  }) : (tensor<i1>) -> (!t, !t)
  return %0#0, %0#1 : !t, !t
}
// =>
func.func public @main(%arg0: !a, %arg1: !b, %arg2: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #meshes} {
  %0 = mpmd.unassign %arg0 : (!a) -> tensor<4xf32>
  %1 = mpmd.unassign %arg1 : (!b) -> tensor<4xf32>
  %c = stablehlo.constant dense<3> : tensor<i32>
  %2 = stablehlo.select %arg2, %0, %1 {mpmd.selects = 0 : i64} : tensor<i1>, tensor<4xf32>
  %3 = stablehlo.select %arg2, %1, %0 {mpmd.selects = 0 : i64} : tensor<i1>, tensor<4xf32>
  return %2, %3 : tensor<4xf32>, tensor<4xf32>
}

// ----- A loop whose end is computed stays
// passes: mpmd-split-loops
func.func public @main(%p: !a, %q: !b, %flag: tensor<i1>) -> (!t, !t) attributes {topology = #meshes} {
  %u = mpmd.unassign %p : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %start = stablehlo.constant dense<9> : tensor<i32>
  %l:3 = stablehlo.while(%i = %start, %c = %u, %d = %v) : tensor<i32>, !t, !t
  cond {
    %end = stablehlo.constant dense<3> : tensor<i32>
    %less = stablehlo.compare LT, %end, %i, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %dot = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (!t, !t) -> tensor<f32>
    %fill = stablehlo.broadcast_in_dim %dot, dims = [] : (tensor<f32>) -> !t
    %x = stablehlo.subtract %c, %fill : !t
    %y = stablehlo.add %d, %fill : !t
    stablehlo.return %next, %x, %y : tensor<i32>, !t, !t
  }
  return %l#1, %l#2 : !t, !t
}
// CHECK-COUNT-1: stablehlo.while
