// passes: mpmd-share-programs
!t = tensor<4xf32>
!v = !mpmd.mesh_tensor<"a", tensor<4xf32>>
#meshes = #mpmd.topology<<"a" : <["x"=2]>>>

// ----- Zeros for each sum
func.func @main(%p: !v, %q: !v) -> (!v, !v) attributes {topology = #meshes} {
  %z = mpmd.fragment<mesh="a", origin=[]> () () {
    %c = stablehlo.constant dense<0.0> : !t
    mpmd.return %c : !t
  } : () -> !v
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %z) {call_counter = 1 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u1, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%q, %1#0, %1#1) {call_counter = 2 : ui32} (%u0: !t, %u1: !t, %u2: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u2, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1 : !v, !v
}
// =>
func.func @main(%arg0: !v, %arg1: !v) -> (!v, !v) attributes {topology = #meshes} {
  %0:2 = mpmd.fragment<mesh="a", origin=[]> () () {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    mpmd.return %cst, %cst_0 : tensor<4xf32>, tensor<4xf32>
  } : () -> (!v, !v)
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0, %0#0, %0#1) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %3 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    %4 = stablehlo.subtract %arg4, %arg2 : tensor<4xf32>
    mpmd.return %3, %4 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %1#0, %1#1) {call_counter = 2 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %3 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    %4 = stablehlo.subtract %arg4, %arg2 : tensor<4xf32>
    mpmd.return %3, %4 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1 : !v, !v
}
// bodies: 2

// ----- Other places of operands
// The value that is repeated comes first here, and last there.
func.func @main(%p: !v, %q: !v) -> (!v, !v) attributes {topology = #meshes} {
  %z = mpmd.fragment<mesh="a", origin=[]> () () {
    %c = stablehlo.constant dense<0.0> : !t
    mpmd.return %c : !t
  } : () -> !v
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%z, %p) {call_counter = 1 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u0, %u1 : !t
    %w = stablehlo.subtract %u0, %u1 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%q, %1#0, %1#1) {call_counter = 2 : ui32} (%u0: !t, %u1: !t, %u2: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u2, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1 : !v, !v
}
// =>
func.func @main(%arg0: !v, %arg1: !v) -> (!v, !v) attributes {topology = #meshes} {
  %0:2 = mpmd.fragment<mesh="a", origin=[]> () () {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    mpmd.return %cst, %cst_0 : tensor<4xf32>, tensor<4xf32>
  } : () -> (!v, !v)
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0, %0#0, %0#1) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %3 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    %4 = stablehlo.subtract %arg4, %arg2 : tensor<4xf32>
    mpmd.return %3, %4 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %1#0, %1#1) {call_counter = 2 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %3 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    %4 = stablehlo.subtract %arg4, %arg2 : tensor<4xf32>
    mpmd.return %3, %4 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1 : !v, !v
}
// bodies: 2

// ----- Another op keeps bodies apart
func.func @main(%p: !v, %q: !v) -> (!v, !v) attributes {topology = #meshes} {
  %z = mpmd.fragment<mesh="a", origin=[]> () () {
    %c = stablehlo.constant dense<0.0> : !t
    mpmd.return %c : !t
  } : () -> !v
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %z) {call_counter = 1 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u1, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%q, %1#0, %1#1) {call_counter = 2 : ui32} (%u0: !t, %u1: !t, %u2: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.multiply %u2, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1 : !v, !v
}

// ----- Another computation keeps bodies apart
func.func @main(%p: !v, %q: !v) -> (!v, !v) attributes {topology = #meshes} {
  %z = mpmd.fragment<mesh="a", origin=[]> () () {
    %c = stablehlo.constant dense<0.0> : !t
    mpmd.return %c : !t
  } : () -> !v
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %z) {call_counter = 1 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u1, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["g"]> (%q, %1#0, %1#1) {call_counter = 2 : ui32} (%u0: !t, %u1: !t, %u2: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u2, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1 : !v, !v
}

// ----- Another operand keeps bodies apart
func.func @main(%p: !v, %q: !v) -> (!v, !v) attributes {topology = #meshes} {
  %z = mpmd.fragment<mesh="a", origin=[]> () () {
    %c = stablehlo.constant dense<0.0> : !t
    mpmd.return %c : !t
  } : () -> !v
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %z) {call_counter = 1 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u1, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%q, %1#0, %1#1) {call_counter = 2 : ui32} (%u0: !t, %u1: !t, %u2: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u2, %u1 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1 : !v, !v
}

// ----- A zero that something else reads later
// The sum has one of its own: the other could not be given away.
func.func @main(%p: !v) -> (!v, !v) attributes {topology = #meshes} {
  %z = mpmd.fragment<mesh="a", origin=[]> () () {
    %c = stablehlo.constant dense<0.0> : !t
    mpmd.return %c : !t
  } : () -> !v
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %z) {call_counter = 1 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u1, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %1#0) {call_counter = 2 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u1, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %3 = mpmd.fragment<mesh="a", origin=["g"]> (%z) (%u: !t) {
    %v = stablehlo.sine %u : !t
    mpmd.return %v : !t
  } : (!v) -> !v
  return %2#0, %3 : !v, !v
}
// =>
func.func @main(%arg0: !v) -> (!v, !v) attributes {topology = #meshes} {
  %0:2 = mpmd.fragment<mesh="a", origin=[]> () () {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    mpmd.return %cst, %cst_0 : tensor<4xf32>, tensor<4xf32>
  } : () -> (!v, !v)
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0, %0#1) {call_counter = 1 : ui32} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    %4 = stablehlo.add %arg2, %arg1 : tensor<4xf32>
    %5 = stablehlo.subtract %arg2, %arg1 : tensor<4xf32>
    mpmd.return %4, %5 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0, %1#0) {call_counter = 2 : ui32} (%arg1: tensor<4xf32>, %arg2: tensor<4xf32>) {
    %4 = stablehlo.add %arg2, %arg1 : tensor<4xf32>
    %5 = stablehlo.subtract %arg2, %arg1 : tensor<4xf32>
    mpmd.return %4, %5 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v) -> (!v, !v)
  %3 = mpmd.fragment<mesh="a", origin=["g"]> (%0#0) (%arg1: tensor<4xf32>) {
    %4 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %4 : tensor<4xf32>
  } : (!v) -> !v
  return %2#0, %3 : !v, !v
}

// ----- Zeros of a second loop are made when it begins
func.func @main(%p: !v, %q: !v) -> (!v, !v, !v, !v) attributes {topology = #meshes} {
  %z = mpmd.fragment<mesh="a", origin=[]> () () {
    %c = stablehlo.constant dense<0.0> : !t
    mpmd.return %c : !t
  } : () -> !v
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %z) {call_counter = 1 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u1, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%q, %1#0, %1#1) {call_counter = 2 : ui32} (%u0: !t, %u1: !t, %u2: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u2, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v, !v) -> (!v, !v)
  %3:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %z) {call_counter = 3 : ui32} (%u0: !t, %u1: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u1, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v) -> (!v, !v)
  %4:2 = mpmd.fragment<mesh="a", origin=["f"]> (%q, %3#0, %3#1) {call_counter = 4 : ui32} (%u0: !t, %u1: !t, %u2: !t) {
    %v = stablehlo.add %u1, %u0 : !t
    %w = stablehlo.subtract %u2, %u0 : !t
    mpmd.return %v, %w : !t, !t
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1, %4#0, %4#1 : !v, !v, !v, !v
}
// =>
func.func @main(%arg0: !v, %arg1: !v) -> (!v, !v, !v, !v) attributes {topology = #meshes} {
  %0:2 = mpmd.fragment<mesh="a", origin=[]> () () {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    mpmd.return %cst, %cst_0 : tensor<4xf32>, tensor<4xf32>
  } : () -> (!v, !v)
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0, %0#0, %0#1) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %6 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    %7 = stablehlo.subtract %arg4, %arg2 : tensor<4xf32>
    mpmd.return %6, %7 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v, !v) -> (!v, !v)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %1#0, %1#1) {call_counter = 2 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %6 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    %7 = stablehlo.subtract %arg4, %arg2 : tensor<4xf32>
    mpmd.return %6, %7 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v, !v) -> (!v, !v)
  %3:2 = mpmd.fragment<mesh="a", origin=[]> () () {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    mpmd.return %cst, %cst_0 : tensor<4xf32>, tensor<4xf32>
  } : () -> (!v, !v)
  %4:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0, %3#0, %3#1) {call_counter = 3 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %6 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    %7 = stablehlo.subtract %arg4, %arg2 : tensor<4xf32>
    mpmd.return %6, %7 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v, !v) -> (!v, !v)
  %5:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %4#0, %4#1) {call_counter = 4 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %6 = stablehlo.add %arg3, %arg2 : tensor<4xf32>
    %7 = stablehlo.subtract %arg4, %arg2 : tensor<4xf32>
    mpmd.return %6, %7 : tensor<4xf32>, tensor<4xf32>
  } : (!v, !v, !v) -> (!v, !v)
  return %2#0, %2#1, %5#0, %5#1 : !v, !v, !v, !v
}
