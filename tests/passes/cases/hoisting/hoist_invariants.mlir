// passes: mpmd-hoist-invariants{launch=0}
!W = tensor<64x16xf32>
!X = tensor<4x16xf32>
!H = tensor<64x16xbf16>
!B = tensor<4x16xbf16>
!Y = tensor<4x64xf32>
!p = !mpmd.mesh_tensor<"a", tensor<64x16xf32>>
!h = !mpmd.mesh_tensor<"a", tensor<64x16xbf16>>
!x = !mpmd.mesh_tensor<"a", tensor<4x16xf32>>
!y = !mpmd.mesh_tensor<"a", tensor<4x64xf32>>
#meshes = #mpmd.topology<<"a" : <["data"=2]>>>
!A = tensor<12x16xf32>
!a = !mpmd.mesh_tensor<"a", tensor<12x16xf32>>

// ----- A cast of weights is made once
// passes: mpmd-hoist-invariants{launch=0}
// passes: mpmd-hoist-invariants{launch=8000}
// passes: mpmd-hoist-invariants{launch=0 limit=9984}
// Also where it saves just the bytes of a launch, 2 x 64 x 16 x 4.125 here, or just fits into memory.
func.func public @main(%p: !p, %in0: !x, %in1: !x, %in2: !x) -> (!y, !y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in2) {call_counter = 2 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0, %1, %2 : !y, !y, !y
}
// =>
func.func public @main(%arg0: !p, %arg1: !x, %arg2: !x, %arg3: !x) -> (!y, !y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["hoisted"]> (%arg0) (%arg4: tensor<64x16xf32>) {
    %4 = stablehlo.convert %arg4 : (tensor<64x16xf32>) -> tensor<64x16xbf16>
    mpmd.return %4 : tensor<64x16xbf16>
  } : (!p) -> !h
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {call_counter = 0 : ui32} (%arg4: tensor<4x16xf32>, %arg5: tensor<64x16xbf16>) {
    %4 = stablehlo.convert %arg4 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %5 = stablehlo.dot_general %4, %arg5, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %5 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg2, %0) {call_counter = 1 : ui32} (%arg4: tensor<4x16xf32>, %arg5: tensor<64x16xbf16>) {
    %4 = stablehlo.convert %arg4 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %5 = stablehlo.dot_general %4, %arg5, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %5 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  %3 = mpmd.fragment<mesh="a", origin=["f"]> (%arg3, %0) {call_counter = 2 : ui32} (%arg4: tensor<4x16xf32>, %arg5: tensor<64x16xbf16>) {
    %4 = stablehlo.convert %arg4 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %5 = stablehlo.dot_general %4, %arg5, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %5 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  return %1, %2, %3 : !y, !y, !y
}

// ----- What saves less than a launch or does not fit into memory stays
// passes: mpmd-hoist-invariants{launch=100000}
// passes: mpmd-hoist-invariants{launch=0 limit=9983}
func.func public @main(%p: !p, %in0: !x, %in1: !x, %in2: !x) -> (!y, !y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in2) {call_counter = 2 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0, %1, %2 : !y, !y, !y
}

// ----- One microbatch has nothing to share
func.func public @main(%p: !p, %in0: !x) -> !y attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0 : !y
}

// ----- The branch of a conditional returns it
func.func public @main(%p: !p, %in0: !x, %in1: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %k = stablehlo.constant dense<true> : tensor<i1>
    %s:2 = "stablehlo.if"(%k) ({
    stablehlo.return %x, %h : !X, !H
    }, {
    %n = stablehlo.negate %h : !H
    stablehlo.return %x, %n : !X, !H
    }) : (tensor<i1>) -> (!X, !H)
    %b = stablehlo.convert %s#0 : (!X) -> !B
    %r = stablehlo.dot_general %b, %s#1, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %k = stablehlo.constant dense<true> : tensor<i1>
    %s:2 = "stablehlo.if"(%k) ({
    stablehlo.return %x, %h : !X, !H
    }, {
    %n = stablehlo.negate %h : !H
    stablehlo.return %x, %n : !X, !H
    }) : (tensor<i1>) -> (!X, !H)
    %b = stablehlo.convert %s#0 : (!X) -> !B
    %r = stablehlo.dot_general %b, %s#1, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0, %1 : !y, !y
}
// =>
func.func public @main(%arg0: !p, %arg1: !x, %arg2: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["hoisted"]> (%arg0) (%arg3: tensor<64x16xf32>) {
    %3 = stablehlo.convert %arg3 : (tensor<64x16xf32>) -> tensor<64x16xbf16>
    mpmd.return %3 : tensor<64x16xbf16>
  } : (!p) -> !h
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {call_counter = 0 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xbf16>) {
    %c = stablehlo.constant dense<true> : tensor<i1>
    %3:2 = "stablehlo.if"(%c) ({
      stablehlo.return %arg3, %arg4 : tensor<4x16xf32>, tensor<64x16xbf16>
    }, {
      %6 = stablehlo.negate %arg4 : tensor<64x16xbf16>
      stablehlo.return %arg3, %6 : tensor<4x16xf32>, tensor<64x16xbf16>
    }) : (tensor<i1>) -> (tensor<4x16xf32>, tensor<64x16xbf16>)
    %4 = stablehlo.convert %3#0 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %5 = stablehlo.dot_general %4, %3#1, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %5 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg2, %0) {call_counter = 1 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xbf16>) {
    %c = stablehlo.constant dense<true> : tensor<i1>
    %3:2 = "stablehlo.if"(%c) ({
      stablehlo.return %arg3, %arg4 : tensor<4x16xf32>, tensor<64x16xbf16>
    }, {
      %6 = stablehlo.negate %arg4 : tensor<64x16xbf16>
      stablehlo.return %arg3, %6 : tensor<4x16xf32>, tensor<64x16xbf16>
    }) : (tensor<i1>) -> (tensor<4x16xf32>, tensor<64x16xbf16>)
    %4 = stablehlo.convert %3#0 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %5 = stablehlo.dot_general %4, %3#1, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %5 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  return %1, %2 : !y, !y
}

// ----- What XLA fuses stays
// Broadcasts, transposes and what is cheap for its size.
func.func public @main(%p: !p, %in0: !x, %in1: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %t = stablehlo.transpose %w, dims = [1, 0] : (!W) -> tensor<16x64xf32>
    %i = stablehlo.iota dim = 1 : !Y
    %m = stablehlo.multiply %i, %i : !Y
    %d = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] : (!X, tensor<16x64xf32>) -> !Y
    %r = stablehlo.add %d, %m : !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %t = stablehlo.transpose %w, dims = [1, 0] : (!W) -> tensor<16x64xf32>
    %i = stablehlo.iota dim = 1 : !Y
    %m = stablehlo.multiply %i, %i : !Y
    %d = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] : (!X, tensor<16x64xf32>) -> !Y
    %r = stablehlo.add %d, %m : !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0, %1 : !y, !y
}

// ----- Tables of transcendental functions move
// passes: mpmd-hoist-invariants{launch=0 least=0}
func.func public @main(%p: !p, %in0: !x, %in1: !x) -> (!x, !x) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %i = stablehlo.iota dim = 1 : !X
    %s = stablehlo.sine %i : !X
    %r = stablehlo.add %x, %s : !X
    mpmd.return %r : !X
  } : (!p, !x) -> !x
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %i = stablehlo.iota dim = 1 : !X
    %s = stablehlo.sine %i : !X
    %r = stablehlo.add %x, %s : !X
    mpmd.return %r : !X
  } : (!p, !x) -> !x
  return %0, %1 : !x, !x
}
// =>
func.func public @main(%arg0: !p, %arg1: !x, %arg2: !x) -> (!x, !x) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["hoisted"]> () () {
    %3 = stablehlo.iota dim = 1 : tensor<4x16xf32>
    %4 = stablehlo.sine %3 : tensor<4x16xf32>
    mpmd.return %4 : tensor<4x16xf32>
  } : () -> !x
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {call_counter = 0 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<4x16xf32>) {
    %3 = stablehlo.add %arg3, %arg4 : tensor<4x16xf32>
    mpmd.return %3 : tensor<4x16xf32>
  } : (!x, !x) -> !x
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg2, %0) {call_counter = 1 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<4x16xf32>) {
    %3 = stablehlo.add %arg3, %arg4 : tensor<4x16xf32>
    mpmd.return %3 : tensor<4x16xf32>
  } : (!x, !x) -> !x
  return %1, %2 : !x, !x
}

// ----- What stays is computed of what moves
// The transpose is not worth its memory, the cast below it is.
func.func public @main(%p: !p, %in0: !x, %in1: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %t = stablehlo.transpose %h, dims = [1, 0] : (!H) -> tensor<16x64xbf16>
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %t, contracting_dims = [1] x [0] : (!B, tensor<16x64xbf16>) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %t = stablehlo.transpose %h, dims = [1, 0] : (!H) -> tensor<16x64xbf16>
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %t, contracting_dims = [1] x [0] : (!B, tensor<16x64xbf16>) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0, %1 : !y, !y
}
// =>
func.func public @main(%arg0: !p, %arg1: !x, %arg2: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["hoisted"]> (%arg0) (%arg3: tensor<64x16xf32>) {
    %3 = stablehlo.convert %arg3 : (tensor<64x16xf32>) -> tensor<64x16xbf16>
    mpmd.return %3 : tensor<64x16xbf16>
  } : (!p) -> !h
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {call_counter = 0 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xbf16>) {
    %3 = stablehlo.transpose %arg4, dims = [1, 0] : (tensor<64x16xbf16>) -> tensor<16x64xbf16>
    %4 = stablehlo.convert %arg3 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %5 = stablehlo.dot_general %4, %3, contracting_dims = [1] x [0] : (tensor<4x16xbf16>, tensor<16x64xbf16>) -> tensor<4x64xf32>
    mpmd.return %5 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg2, %0) {call_counter = 1 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xbf16>) {
    %3 = stablehlo.transpose %arg4, dims = [1, 0] : (tensor<64x16xbf16>) -> tensor<16x64xbf16>
    %4 = stablehlo.convert %arg3 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %5 = stablehlo.dot_general %4, %3, contracting_dims = [1] x [0] : (tensor<4x16xbf16>, tensor<16x64xbf16>) -> tensor<4x64xf32>
    mpmd.return %5 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  return %1, %2 : !y, !y
}

// ----- Residuals that are the same are not handed on
// A forward fragment that returns a cast of the weight for the backward one.
func.func public @main(%p: !p, %in0: !x, %in1: !x) -> (!y, !y) attributes {topology = #meshes} {
  %f0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %s = stablehlo.sine %x : !X
    mpmd.return %s, %h : !X, !H
  } : (!p, !x) -> (!x, !h)
  %b0 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%f0#0, %f0#1) {call_counter = 0 : ui32} (%x: !X, %h: !H) {
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!x, !h) -> !y
  %f1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %h = stablehlo.convert %w : (!W) -> !H
    %s = stablehlo.sine %x : !X
    mpmd.return %s, %h : !X, !H
  } : (!p, !x) -> (!x, !h)
  %b1 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%f1#0, %f1#1) {call_counter = 1 : ui32} (%x: !X, %h: !H) {
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r : !Y
  } : (!x, !h) -> !y
  return %b0, %b1 : !y, !y
}
// =>
func.func public @main(%arg0: !p, %arg1: !x, %arg2: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1) {call_counter = 0 : ui32} (%arg3: tensor<4x16xf32>) {
    %5 = stablehlo.sine %arg3 : tensor<4x16xf32>
    mpmd.return %5 : tensor<4x16xf32>
  } : (!x) -> !x
  %1 = mpmd.fragment<mesh="a", origin=["hoisted"]> (%arg0) (%arg3: tensor<64x16xf32>) {
    %5 = stablehlo.convert %arg3 : (tensor<64x16xf32>) -> tensor<64x16xbf16>
    mpmd.return %5 : tensor<64x16xbf16>
  } : (!p) -> !h
  %2 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%0, %1) {call_counter = 0 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xbf16>) {
    %5 = stablehlo.convert %arg3 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %6 = stablehlo.dot_general %5, %arg4, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %6 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  %3 = mpmd.fragment<mesh="a", origin=["f"]> (%arg2) {call_counter = 1 : ui32} (%arg3: tensor<4x16xf32>) {
    %5 = stablehlo.sine %arg3 : tensor<4x16xf32>
    mpmd.return %5 : tensor<4x16xf32>
  } : (!x) -> !x
  %4 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%3, %1) {call_counter = 1 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xbf16>) {
    %5 = stablehlo.convert %arg3 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %6 = stablehlo.dot_general %5, %arg4, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %6 : tensor<4x64xf32>
  } : (!x, !h) -> !y
  return %2, %4 : !y, !y
}

// ----- A weight is gathered once
// passes: mpmd-hoist-invariants{launch=1000000000}
// Rows of activations and of the weight are sharded over the same axis.
sdy.mesh @mesh = <["data"=2]>
func.func public @main(%p: !p {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %in0: !x, %in1: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : (!X, !W) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %1 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : (!X, !W) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0, %1 : !y, !y
}
// =>
sdy.mesh @mesh = <["data"=2]>
func.func public @main(%arg0: !p {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %arg1: !x, %arg2: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["hoisted"], in_shardings=[<@mesh, [{"data"}, {}]>], out_shardings=[<@mesh, [{}, {}]>]> (%arg0) (%arg3: tensor<64x16xf32>) {
    %3 = sdy.sharding_constraint %arg3 <@mesh, [{}, {}]> : tensor<64x16xf32>
    mpmd.return %3 : tensor<64x16xf32>
  } : (!p) -> !p
  %1 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {}]>]> (%arg1, %0) {call_counter = 0 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xf32>) {
    %3 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : (tensor<4x16xf32>, tensor<64x16xf32>) -> tensor<4x64xf32>
    mpmd.return %3 : tensor<4x64xf32>
  } : (!x, !p) -> !y
  %2 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {}]>]> (%arg2, %0) {call_counter = 1 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xf32>) {
    %3 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : (tensor<4x16xf32>, tensor<64x16xf32>) -> tensor<4x64xf32>
    mpmd.return %3 : tensor<4x64xf32>
  } : (!x, !p) -> !y
  return %1, %2 : !y, !y
}

// ----- A weight that is used as it is sharded stays
// The axis of the weight is an axis of the result, as in tensor parallelism.
sdy.mesh @mesh = <["data"=2]>
func.func public @main(%p: !p {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %in0: !x, %in1: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {}]>]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (!X, !W) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %1 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {}]>]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (!X, !W) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0, %1 : !y, !y
}

// ----- A weight whose columns are sharded over the axis of the rows is gathered once
// Shardy gives the result the axis of either; XLA gathers the weight.
sdy.mesh @mesh = <["data"=2]>
func.func public @main(%p: !p {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %in0: !x, %in1: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (!X, !W) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  %1 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (!X, !W) -> !Y
    mpmd.return %r : !Y
  } : (!p, !x) -> !y
  return %0, %1 : !y, !y
}
// =>
sdy.mesh @mesh = <["data"=2]>
func.func public @main(%arg0: !p {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %arg1: !x, %arg2: !x) -> (!y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["hoisted"], in_shardings=[<@mesh, [{"data"}, {}]>], out_shardings=[<@mesh, [{}, {}]>]> (%arg0) (%arg3: tensor<64x16xf32>) {
    %3 = sdy.sharding_constraint %arg3 <@mesh, [{}, {}]> : tensor<64x16xf32>
    mpmd.return %3 : tensor<64x16xf32>
  } : (!p) -> !p
  %1 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {}]>]> (%arg1, %0) {call_counter = 0 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xf32>) {
    %3 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (tensor<4x16xf32>, tensor<64x16xf32>) -> tensor<4x64xf32>
    mpmd.return %3 : tensor<4x64xf32>
  } : (!x, !p) -> !y
  %2 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {}]>]> (%arg2, %0) {call_counter = 1 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<64x16xf32>) {
    %3 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (tensor<4x16xf32>, tensor<64x16xf32>) -> tensor<4x64xf32>
    mpmd.return %3 : tensor<4x64xf32>
  } : (!x, !p) -> !y
  return %1, %2 : !y, !y
}

// ----- A slice that all microbatches read is cast once
// As of a layer's part of stacked weights.
func.func public @main(%p: !p, %in0: !x, %in1: !x) -> (!mpmd.mesh_tensor<"a", tensor<4x32xf32>>, !mpmd.mesh_tensor<"a", tensor<4x32xf32>>) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in0) {call_counter = 0 : ui32} (%w: !W, %x: !X) {
    %s = stablehlo.slice %w [0:32, 0:16] : (!W) -> tensor<32x16xf32>
    %h = stablehlo.convert %s : (tensor<32x16xf32>) -> tensor<32x16xbf16>
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, tensor<32x16xbf16>) -> tensor<4x32xf32>
    mpmd.return %r : tensor<4x32xf32>
  } : (!p, !x) -> !mpmd.mesh_tensor<"a", tensor<4x32xf32>>
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in1) {call_counter = 1 : ui32} (%w: !W, %x: !X) {
    %s = stablehlo.slice %w [0:32, 0:16] : (!W) -> tensor<32x16xf32>
    %h = stablehlo.convert %s : (tensor<32x16xf32>) -> tensor<32x16xbf16>
    %b = stablehlo.convert %x : (!X) -> !B
    %r = stablehlo.dot_general %b, %h, contracting_dims = [1] x [1] : (!B, tensor<32x16xbf16>) -> tensor<4x32xf32>
    mpmd.return %r : tensor<4x32xf32>
  } : (!p, !x) -> !mpmd.mesh_tensor<"a", tensor<4x32xf32>>
  return %0, %1 : !mpmd.mesh_tensor<"a", tensor<4x32xf32>>, !mpmd.mesh_tensor<"a", tensor<4x32xf32>>
}
// =>
func.func public @main(%arg0: !p, %arg1: !x, %arg2: !x) -> (!mpmd.mesh_tensor<"a", tensor<4x32xf32>>, !mpmd.mesh_tensor<"a", tensor<4x32xf32>>) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["hoisted"]> (%arg0) (%arg3: tensor<64x16xf32>) {
    %3 = stablehlo.slice %arg3 [0:32, 0:16] : (tensor<64x16xf32>) -> tensor<32x16xf32>
    %4 = stablehlo.convert %3 : (tensor<32x16xf32>) -> tensor<32x16xbf16>
    mpmd.return %4 : tensor<32x16xbf16>
  } : (!p) -> !mpmd.mesh_tensor<"a", tensor<32x16xbf16>>
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {call_counter = 0 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<32x16xbf16>) {
    %3 = stablehlo.convert %arg3 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %4 = stablehlo.dot_general %3, %arg4, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<32x16xbf16>) -> tensor<4x32xf32>
    mpmd.return %4 : tensor<4x32xf32>
  } : (!x, !mpmd.mesh_tensor<"a", tensor<32x16xbf16>>) -> !mpmd.mesh_tensor<"a", tensor<4x32xf32>>
  %2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg2, %0) {call_counter = 1 : ui32} (%arg3: tensor<4x16xf32>, %arg4: tensor<32x16xbf16>) {
    %3 = stablehlo.convert %arg3 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %4 = stablehlo.dot_general %3, %arg4, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<32x16xbf16>) -> tensor<4x32xf32>
    mpmd.return %4 : tensor<4x32xf32>
  } : (!x, !mpmd.mesh_tensor<"a", tensor<32x16xbf16>>) -> !mpmd.mesh_tensor<"a", tensor<4x32xf32>>
  return %1, %2 : !mpmd.mesh_tensor<"a", tensor<4x32xf32>>, !mpmd.mesh_tensor<"a", tensor<4x32xf32>>
}

// ----- Merged fragments share weights, but no rows of a batch
// A forward is merged with the backward before it: each slice of the batch is read in two fragments.
func.func public @main(%p: !p, %in: !a) -> (!y, !y, !y, !y, !y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in) {call_counter = 0 : ui32} (%w: !W, %b: !A) {
    %h = stablehlo.convert %w : (!W) -> !H
    %x0 = stablehlo.slice %b [0:4, 0:16] : (!A) -> !X
    %c0 = stablehlo.convert %x0 : (!X) -> !B
    %r0 = stablehlo.dot_general %c0, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r0 : !Y
  } : (!p, !a) -> !y
  %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%w: !W, %b: !A) {
    %h = stablehlo.convert %w : (!W) -> !H
    %x1 = stablehlo.slice %b [4:8, 0:16] : (!A) -> !X
    %c1 = stablehlo.convert %x1 : (!X) -> !B
    %r1 = stablehlo.dot_general %c1, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    %x0 = stablehlo.slice %b [0:4, 0:16] : (!A) -> !X
    %c0 = stablehlo.convert %x0 : (!X) -> !B
    %r0 = stablehlo.dot_general %c0, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r1, %r0 : !Y, !Y
  } : (!p, !a) -> (!y, !y)
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in) {mpmd.merged_call_counters = [1 : ui32, 2 : ui32]} (%w: !W, %b: !A) {
    %h = stablehlo.convert %w : (!W) -> !H
    %x2 = stablehlo.slice %b [8:12, 0:16] : (!A) -> !X
    %c2 = stablehlo.convert %x2 : (!X) -> !B
    %r2 = stablehlo.dot_general %c2, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    %x1 = stablehlo.slice %b [4:8, 0:16] : (!A) -> !X
    %c1 = stablehlo.convert %x1 : (!X) -> !B
    %r1 = stablehlo.dot_general %c1, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r2, %r1 : !Y, !Y
  } : (!p, !a) -> (!y, !y)
  %3 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %in) {call_counter = 2 : ui32} (%w: !W, %b: !A) {
    %h = stablehlo.convert %w : (!W) -> !H
    %x2 = stablehlo.slice %b [8:12, 0:16] : (!A) -> !X
    %c2 = stablehlo.convert %x2 : (!X) -> !B
    %r2 = stablehlo.dot_general %c2, %h, contracting_dims = [1] x [1] : (!B, !H) -> !Y
    mpmd.return %r2 : !Y
  } : (!p, !a) -> !y
  return %0, %1#0, %1#1, %2#0, %2#1, %3 : !y, !y, !y, !y, !y, !y
}
// =>
func.func public @main(%arg0: !p, %arg1: !a) -> (!y, !y, !y, !y, !y, !y) attributes {topology = #meshes} {
  %0 = mpmd.fragment<mesh="a", origin=["hoisted"]> (%arg0) (%arg2: tensor<64x16xf32>) {
    %5 = stablehlo.convert %arg2 : (tensor<64x16xf32>) -> tensor<64x16xbf16>
    mpmd.return %5 : tensor<64x16xbf16>
  } : (!p) -> !h
  %1 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {call_counter = 0 : ui32} (%arg2: tensor<12x16xf32>, %arg3: tensor<64x16xbf16>) {
    %5 = stablehlo.slice %arg2 [0:4, 0:16] : (tensor<12x16xf32>) -> tensor<4x16xf32>
    %6 = stablehlo.convert %5 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %7 = stablehlo.dot_general %6, %arg3, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %7 : tensor<4x64xf32>
  } : (!a, !h) -> !y
  %2:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {mpmd.merged_call_counters = [0 : ui32, 1 : ui32]} (%arg2: tensor<12x16xf32>, %arg3: tensor<64x16xbf16>) {
    %5 = stablehlo.slice %arg2 [4:8, 0:16] : (tensor<12x16xf32>) -> tensor<4x16xf32>
    %6 = stablehlo.convert %5 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %7 = stablehlo.dot_general %6, %arg3, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    %8 = stablehlo.slice %arg2 [0:4, 0:16] : (tensor<12x16xf32>) -> tensor<4x16xf32>
    %9 = stablehlo.convert %8 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %10 = stablehlo.dot_general %9, %arg3, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %7, %10 : tensor<4x64xf32>, tensor<4x64xf32>
  } : (!a, !h) -> (!y, !y)
  %3:2 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {mpmd.merged_call_counters = [1 : ui32, 2 : ui32]} (%arg2: tensor<12x16xf32>, %arg3: tensor<64x16xbf16>) {
    %5 = stablehlo.slice %arg2 [8:12, 0:16] : (tensor<12x16xf32>) -> tensor<4x16xf32>
    %6 = stablehlo.convert %5 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %7 = stablehlo.dot_general %6, %arg3, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    %8 = stablehlo.slice %arg2 [4:8, 0:16] : (tensor<12x16xf32>) -> tensor<4x16xf32>
    %9 = stablehlo.convert %8 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %10 = stablehlo.dot_general %9, %arg3, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %7, %10 : tensor<4x64xf32>, tensor<4x64xf32>
  } : (!a, !h) -> (!y, !y)
  %4 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1, %0) {call_counter = 2 : ui32} (%arg2: tensor<12x16xf32>, %arg3: tensor<64x16xbf16>) {
    %5 = stablehlo.slice %arg2 [8:12, 0:16] : (tensor<12x16xf32>) -> tensor<4x16xf32>
    %6 = stablehlo.convert %5 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %7 = stablehlo.dot_general %6, %arg3, contracting_dims = [1] x [1] : (tensor<4x16xbf16>, tensor<64x16xbf16>) -> tensor<4x64xf32>
    mpmd.return %7 : tensor<4x64xf32>
  } : (!a, !h) -> !y
  return %1, %2#0, %2#1, %3#0, %3#1, %4 : !y, !y, !y, !y, !y, !y
}
