module {}
// -----
module @named attributes {foo.bar = "a\22b\\c\0A", "fo.we ird" = 3 : i8, x.y = unit} {
  func.func private @decl(tensor<2xf32> {foo.a = 1 : i32}, !foo.bar<"x)">) -> (tensor<2xf32> {foo.b}) attributes {foo.q}
  module @inner { func.func @g() { return } 
    module {} }
  func.func @"odd name"(%a: tensor<2xf32>) -> tensor<2xf32> {
    %0 = func.call @decl2(%a) : (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func private @decl2(tensor<2xf32>) -> tensor<2xf32>
}
// -----
func.func @cf(%c: i1, %x: tensor<2xf32>) -> tensor<2xf32> {
  cf.cond_br %c, ^bb1(%x : tensor<2xf32>), ^bb2
^bb1(%y: tensor<2xf32>):
  cf.br ^bb3(%y, %c : tensor<2xf32>, i1)
^bb2:
  cf.br ^bb1(%x : tensor<2xf32>)
^bb3(%z: tensor<2xf32>, %d: i1):
  return %z : tensor<2xf32>
}
// -----
// forward references
func.func @fwd() {
  cf.br ^a
^b:
  "foo.use"(%v#1, %v#0) : (i32, f32) -> ()
  return
^a:
  %v:2 = "foo.def"() : () -> (f32, i32)
  cf.br ^b
}
// -----
"foo.op"() ({
  %0 = "foo.b"(%1) {a = #foo.bar<"(">, b = #foo<x[">"]>} : (i32) -> i32
  %1 = "foo.c"(%0, %0) : (i32, i32) -> i32
}, {}, {
^bb0:
}, {
^bb0(%a: i32, %b: memref<2x?xf32, strided<[?, 1], offset: ?>>):
  "foo.t"()[^bb1] <{p = 3 : i32}> {d = 4 : i32} : () -> ()
^bb1:
  "foo.t"()[^bb1, ^bb1] ({ "foo.n"(%a) : (i32) -> () }) : () -> ()
}) {attr = dense<[1, 2]> : tensor<2xi32>} : () -> ()
// -----
func.func @regions(%a: tensor<4xf32>, %i: tensor<f32>, %p: tensor<i1>) -> (tensor<f32>, tensor<4xf32>) {
  %0 = "stablehlo.reduce"(%a, %i) <{dimensions = array<i64: 0>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %m = stablehlo.maximum %x, %i : tensor<f32>
    %1 = stablehlo.add %m, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %2 = "stablehlo.if"(%p) ({
    stablehlo.return %a : tensor<4xf32>
  }, {
    %n = stablehlo.negate %a : tensor<4xf32>
    stablehlo.return %n : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  %3:2 = stablehlo.while(%it = %i, %acc = %2) : tensor<f32>, tensor<4xf32> cond {
    %c = stablehlo.compare LT, %it, %i : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    stablehlo.return %it, %a : tensor<f32>, tensor<4xf32>
  }
  return %0, %3#1 : tensor<f32>, tensor<4xf32>
}
// -----
#map = affine_map<(d0, d1) -> (d1, d0)>
!alias = tensor<2x2xf32>
#loc9 = loc("foo \"quoted\" (x).py":7:8)
func.func @attrs(%a: !alias loc("arg name)")) -> !alias attributes {a = #map, b = [1, 2.5, "x", @sym, @a::@b, unit, i32, (i32) -> (f32, i1), #map, {k = 3 : i8, "q q"}], 
   c = dense<"0x000000000000803F"> : tensor<2xf32>, d = array<i32: 1, 2>, e = array<f32: 1.5>, f = array<i1: true, false>, g = array<i64>, h = affine_set<(d0) : (d0 >= 0)>,
   i = dense<[[true, false]]> : tensor<1x2xi1>, j = sparse<[[0]], [1.0]> : tensor<3xf32>, l = -3 : si8, m = 0x7F800000 : f32, m2 = 0xFFC00000 : f32, n = 1.0e+100 : f64,
   o = dense<(1.0, 2.0)> : tensor<complex<f32>>, p = dense<> : tensor<0xf32>, q = loc("x":1:2), r = 12345678901234567890123 : i128, s = true, t = false, u = 3 : index, v = "s" : i32, w = [] , x = {}, aa = dense<["a(", "b\""]> : tensor<2x!foo.s>, bb = #foo.opaque<"loc(" {->}>, cc = @"odd name"::@b::@"c d", dd = "é\FF\00", ee = #foo<"a" -> b>} {
  %0 = stablehlo.add %a, %a {foo = "loc(unknown)", bar = "-> (", mhlo.frontend_attributes = {_x = "({"}} : !alias loc(#loc9)
  %1 = stablehlo.add %0, %a : !alias loc(fused<"m)">["a":1:2, callsite("f"("b":2:3) at "c":3:4)])
  %2 = stablehlo.custom_call @foo(%1) {api_version = 4 : i32, backend_config = {a = "x"}, operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>]} : (!alias) -> !alias
  return %2 : !alias loc(unknown)
} loc("fn")
// -----
func.func @res() {
  "foo.x"() {a = dense_resource<blob1> : tensor<3xi64>, b = dense_resource<blob1> : tensor<3xi64>} : () -> ()
  return
}
{-#
  dialect_resources: {
    builtin: {
      blob1: "0x08000000010000000000000002000000000000000300000000000000"
    }
  },
  external_resources: { other: { key: "value", n: true } }
#-}
// -----
func.func @types(%a: tensor<?x3xf32, #stablehlo.bounds<4, ?>>, %b: tuple<tensor<f32>, tuple<>>, %c: !stablehlo.token, %d: tensor<*xf32>, %e: vector<[4]x2xf32>, %f: (i32) -> ((i32) -> i32), %g: tensor<2x!quant.uniform<i8:f32, 0.5:3>>, %h: tensor<2xcomplex<f64>>, %i: none, %j: !foo.x<->, ">>">, %k: memref<2xf32, affine_map<(d0) -> (d0 + 1)>, 3>) { return }
// -----
sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @"we ird" = <["a b"=2], device_ids=[1, 0]>
sdy.mesh @max = <[], device_ids=[0]>
func.func @sh(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y":(1)2, ?}p1, {}], replicated={"y":(2)2}>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{}, {?}]>}) {
  %0 = sdy.sharding_constraint %a <@mesh, [{?}, {?}]> : tensor<8x8xf32>
  %1 = stablehlo.add %0, %0 {sdy.sharding = #sdy.sharding_per_value<[<@"we ird", [{"a b"}, {}]>]>} : tensor<8x8xf32>
  %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%x: tensor<4x8xf32>) {
     sdy.return %x : tensor<4x8xf32>
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
// -----
!m = !mpmd.mesh_tensor<"a,b>[{(", tensor<8x8xf32>, sharding = <@mesh, [{"x"}, {}], unreduced={"y"}>, memory_kind="device">
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @mp(%a: !m) -> !m attributes {topology = #mpmd.topology<<"a,b>[{(":<["x"=2,"y"=4]>>,<"b":<["x"=2]>>>} {
  %0 = mpmd.fragment<mesh="a,b>[{(", origin=["f<"(2), "g"(0)], stage=3, in_shardings=[<@mesh, [{"x"}, {?}]>], out_shardings=[<@mesh, [{"x"}, {?}]>]> (%a) {call_counter = 3 : ui32, mpmd.use_set = #mpmd.meshes_with_origins<"m1"["o1", "o2"], "m2">, r = #mpmd.reduction<add>, o = #mpmd.user_origin<"f"(3)>, n = #mpmd.named_mesh<"a" : <["x"=2]>>} (%x: tensor<8x8xf32>) {
    %c = stablehlo.constant dense<1.0> : tensor<8x8xf32>
    %1 = stablehlo.add %x, %c : tensor<8x8xf32>
    %r = "stablehlo.map"(%1) <{dimensions = array<i64: 0, 1>}> ({ ^bb0(%q: tensor<f32>): 
        %s = stablehlo.add %q, %q : tensor<f32>
        stablehlo.return %s : tensor<f32> }) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    mpmd.return %r : tensor<8x8xf32>
  } : (!m) -> !m
  mpmd.fragment<mesh="b", origin=[]> () () { mpmd.return } : () -> ()
  %5 = mpmd.transfer {a} %0 : (!m) -> !m
  %6 = mpmd.fragment_call<mesh="a,b>[{(", origin=["z"]> @callee(%5) : (!m) -> !m
  return %6 : !m
}
func.func private @callee(%a: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {mesh_shape = #sdy.mesh<["x"=2,"y"=4]>} { return %a : tensor<8x8xf32> }
// -----
func.func @f(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {topology = #mpmd.topology<<"b":<["x"=2]>>>} {
  %0:2 = mpmd.for (%a, %a) {iterations = 4 : ui32, unroll_factor = 2 : ui32} (%x: tensor<4xf32>, %y: tensor<4xf32>, %i: tensor<ui32>) {
    %n = mpmd.named_computation<"nm"(1)> (%x) {foo.x} (%z: tensor<4xf32>) {
      %t = mpmd.named_tensor %z name="loc(\"x\")" : tensor<4xf32>
      mpmd.return %t : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    %q = mpmd.reduce<max> %n, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %q, %y : tensor<4xf32>, tensor<4xf32>
  } : tensor<4xf32>, tensor<4xf32>
  %b = mpmd.broadcast %0#0 : tensor<4xf32>
  %m = mpmd.assign {origin = "o"} %b : (tensor<4xf32>) -> !mpmd.mesh_tensor<"b", tensor<4xf32>>
  %u = mpmd.unassign %m : (!mpmd.mesh_tensor<"b", tensor<4xf32>>) -> tensor<4xf32>
  %g = mpmd.call @h(%u) {call_counter = 0 : ui32} : (tensor<4xf32>) -> tensor<4xf32>
  return %0#1, %g : tensor<4xf32>, tensor<4xf32>
}
func.func private @h(%a: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"b":<["x"=2]>>>} { return %a : tensor<4xf32> }
// -----
func.func @generic(%arg0: f32, %m: memref<4xf32>) -> i32 {
  %c = arith.constant 5 : i32
  %t = arith.constant true
  %s = scf.if %t -> i32 { scf.yield %c : i32 } else { %k = arith.addi %c, %c overflow<nsw> : i32
   scf.yield %k : i32 }
  affine.for %i = 0 to 4 { affine.store %arg0, %m[%i] : memref<4xf32> }
  %v = vector.broadcast %arg0 : f32 to vector<4xf32>
  return %s : i32
}
