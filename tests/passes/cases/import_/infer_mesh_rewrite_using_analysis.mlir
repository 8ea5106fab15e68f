// passes: mpmd-infer-mesh-rewrite-using-analysis{max-clones=1}
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>

// ----- One fragment takes everything
// Operands of absorbed ops come last; nothing is deduplicated.
func.func @main(%a: !T, %b: !T) -> !P0 attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : !T
  %1 = stablehlo.multiply %0, %a : !T
  %2 = mpmd.assign %1 : (!T) -> !P0
  %3 = mpmd.assign %0 : (!T) -> !P0
  %4 = mpmd.assign %b : (!T) -> !P0
  %5 = mpmd.fragment<mesh="p0", origin=["s"(1)], stage=3> (%2, %4, %3, %2)
      {call_counter = 2 : ui32} (%x: !T, %y: !T, %z: !T, %w: !T) {
    %9 = stablehlo.add %x, %z : !T
    %10 = stablehlo.add %9, %y : !T
    mpmd.return %w : !T
  } : (!P0, !P0, !P0, !P0) -> !P0
  return %5 : !P0
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> !P0 attributes {topology = #topo} {
  %0 = mpmd.assign %arg1 : (!T) -> !P0
  %1 = mpmd.assign %arg0 : (!T) -> !P0
  %2 = mpmd.assign %arg0 : (!T) -> !P0
  %3 = mpmd.assign %arg1 : (!T) -> !P0
  %4 = mpmd.fragment<mesh="p0", origin=["s"(1)], stage=3> (%0, %1, %2, %3)
      {call_counter = 2 : ui32} (%arg2: !T, %arg3: !T, %arg4: !T, %arg5: !T) {
    %5 = stablehlo.add %arg4, %arg5 : !T
    %6 = stablehlo.multiply %5, %arg3 : !T
    %7 = stablehlo.add %6, %5 : !T
    %8 = stablehlo.add %7, %arg2 : !T
    mpmd.return %6 : !T
  } : (!P0, !P0, !P0, !P0) -> !P0
  return %4 : !P0
}

// ----- Free variables
func.func @main(%a: !T, %b: !T, %i: tensor<i32>) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = "stablehlo.case"(%i) ({
    stablehlo.return %a : !T
  }, {
    %5 = stablehlo.add %b, %a : !T
    stablehlo.return %5 : !T
  }) : (tensor<i32>) -> !T
  %1 = mpmd.assign %0 : (!T) -> !P0
  %2 = mpmd.fragment<mesh="p0", origin=["s"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %3 = "stablehlo.case"(%i) ({
    stablehlo.return %b : !T
  }) : (tensor<i32>) -> !T
  %4 = mpmd.assign %3 : (!T) -> !P1
  return %2, %4 : !P0, !P1
}
// =>
func.func @main(%arg0: !T,
    %arg1: !T,
    %arg2: tensor<i32>) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P0
  %1 = mpmd.assign %arg1 : (!T) -> !P0
  %2 = mpmd.assign %arg2 : (tensor<i32>) -> !mpmd.mesh_tensor<"p0", tensor<i32>>
  %3 = mpmd.fragment<mesh="p0", origin=["s"]> (%0, %1, %2) (%arg3: !T, %arg4: !T,
      %arg5: tensor<i32>) {
    %9 = "stablehlo.case"(%arg5) ({
      stablehlo.return %arg3 : !T
    }, {
      %10 = stablehlo.add %arg4, %arg3 : !T
      stablehlo.return %10 : !T
    }) : (tensor<i32>) -> !T
    mpmd.return %9 : !T
  } : (!P0, !P0, !mpmd.mesh_tensor<"p0", tensor<i32>>) -> !P0
  %4 = mpmd.assign %arg2 : (tensor<i32>) -> !mpmd.mesh_tensor<"p1", tensor<i32>>
  %5 = mpmd.assign %arg1 : (!T) -> !P1
  %6 = mpmd.fragment<mesh="p1", origin=[]> (%4, %5)
      {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg3: tensor<i32>, %arg4: !T) {
    %9 = "stablehlo.case"(%arg3) ({
      stablehlo.return %arg4 : !T
    }) : (tensor<i32>) -> !T
    mpmd.return %9 : !T
  } : (!mpmd.mesh_tensor<"p1", tensor<i32>>, !P1) -> !P1
  %7 = mpmd.unassign %6 : (!P1) -> !T
  %8 = mpmd.assign %7 : (!T) -> !P1
  return %3, %8 : !P0, !P1
}

// ----- Several results of which one is used
func.func @main(%a: !T, %b: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0:2 = stablehlo.optimization_barrier %a, %b : !T, !T
  %1 = mpmd.assign %0#1 : (!T) -> !P0
  %2 = mpmd.fragment<mesh="p0", origin=["s"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %3:2 = stablehlo.optimization_barrier %a, %b : !T, !T
  %4 = mpmd.assign %3#0 : (!T) -> !P1
  return %2, %4 : !P0, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P0
  %1 = mpmd.assign %arg1 : (!T) -> !P0
  %2 = mpmd.fragment<mesh="p0", origin=["s"]> (%0, %1) (%arg2: !T, %arg3: !T) {
    %9:2 = stablehlo.optimization_barrier %arg2, %arg3 : !T, !T
    mpmd.return %9#1 : !T
  } : (!P0, !P0) -> !P0
  %3 = mpmd.assign %arg0 : (!T) -> !P1
  %4 = mpmd.assign %arg1 : (!T) -> !P1
  %5:2 = mpmd.fragment<mesh="p1", origin=[]> (%3, %4)
      {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg2: !T, %arg3: !T) {
    %9:2 = stablehlo.optimization_barrier %arg2, %arg3 : !T, !T
    mpmd.return %9#0, %9#1 : !T, !T
  } : (!P1, !P1) -> (!P1, !P1)
  %6 = mpmd.unassign %5#0 : (!P1) -> !T
  %7 = mpmd.unassign %5#1 : (!P1) -> !T
  %8 = mpmd.assign %6 : (!T) -> !P1
  return %2, %8 : !P0, !P1
}

// ----- Unused ops vanish
func.func @main(%a: !T) attributes {topology = #topo} {
  %0 = stablehlo.abs %a : !T
  return
}
// =>
func.func @main(%arg0: !T) attributes {topology = #topo} {
  return
}

// ----- What two fragments read is copied into them or a fragment on each mesh (1)
func.func @main(%a: !T, %b: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = stablehlo.abs %a : !T
  %1 = mpmd.assign %0 : (!T) -> !P1
  %2 = mpmd.assign %0 : (!T) -> !P0
  %f0 = mpmd.fragment<mesh="p0", origin=["s"]> (%2) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %f1 = mpmd.fragment<mesh="p1", origin=["t"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  return %f0, %f1 : !P0, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P0
  %1 = mpmd.fragment<mesh="p0", origin=["s"]> (%0) (%arg2: !T) {
    %4 = stablehlo.abs %arg2 : !T
    mpmd.return %4 : !T
  } : (!P0) -> !P0
  %2 = mpmd.assign %arg0 : (!T) -> !P1
  %3 = mpmd.fragment<mesh="p1", origin=["t"]> (%2) (%arg2: !T) {
    %4 = stablehlo.abs %arg2 : !T
    mpmd.return %4 : !T
  } : (!P1) -> !P1
  return %1, %3 : !P0, !P1
}

// ----- What two fragments read is copied into them or a fragment on each mesh (2)
func.func @main(%a: !T, %b: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = stablehlo.constant dense<1.0> : !T
  %1 = mpmd.assign %0 : (!T) -> !P1
  %2 = mpmd.assign %0 : (!T) -> !P0
  %f0 = mpmd.fragment<mesh="p0", origin=["s"]> (%2) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %f1 = mpmd.fragment<mesh="p1", origin=["t"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  return %f0, %f1 : !P0, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="p0", origin=["s"]> () () {
    %cst = stablehlo.constant dense<1.000000e+00> : !T
    mpmd.return %cst : !T
  } : () -> !P0
  %1 = mpmd.fragment<mesh="p1", origin=["t"]> () () {
    %cst = stablehlo.constant dense<1.000000e+00> : !T
    mpmd.return %cst : !T
  } : () -> !P1
  return %0, %1 : !P0, !P1
}

// ----- What two fragments read is copied into them or a fragment on each mesh (3)
func.func @main(%a: !T, %b: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : !T
  %1 = mpmd.assign %0 : (!T) -> !P1
  %2 = mpmd.assign %0 : (!T) -> !P0
  %f0 = mpmd.fragment<mesh="p0", origin=["s"]> (%2) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %f1 = mpmd.fragment<mesh="p1", origin=["t"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  return %f0, %f1 : !P0, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P0
  %1 = mpmd.assign %arg1 : (!T) -> !P0
  %2 = mpmd.fragment<mesh="p0", origin=[]> (%0, %1) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg2: !T, %arg3: !T) {
    %12 = stablehlo.add %arg2, %arg3 : !T
    mpmd.return %12 : !T
  } : (!P0, !P0) -> !P0
  %3 = mpmd.unassign %2 : (!P0) -> !T
  %4 = mpmd.assign %arg0 : (!T) -> !P1
  %5 = mpmd.assign %arg1 : (!T) -> !P1
  %6 = mpmd.fragment<mesh="p1", origin=[]> (%4, %5) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg2: !T, %arg3: !T) {
    %12 = stablehlo.add %arg2, %arg3 : !T
    mpmd.return %12 : !T
  } : (!P1, !P1) -> !P1
  %7 = mpmd.unassign %6 : (!P1) -> !T
  %8 = mpmd.assign %7 : (!T) -> !P1
  %9 = mpmd.assign %3 : (!T) -> !P0
  %10 = mpmd.fragment<mesh="p0", origin=["s"]> (%9) (%arg2: !T) {
    mpmd.return %arg2 : !T
  } : (!P0) -> !P0
  %11 = mpmd.fragment<mesh="p1", origin=["t"]> (%8) (%arg2: !T) {
    mpmd.return %arg2 : !T
  } : (!P1) -> !P1
  return %10, %11 : !P0, !P1
}

// ----- What two fragments read is copied into them or a fragment on each mesh (4)
// passes: mpmd-infer-mesh-rewrite-using-analysis{max-clones=2}
func.func @main(%a: !T, %b: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : !T
  %1 = mpmd.assign %0 : (!T) -> !P1
  %2 = mpmd.assign %0 : (!T) -> !P0
  %f0 = mpmd.fragment<mesh="p0", origin=["s"]> (%2) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %f1 = mpmd.fragment<mesh="p1", origin=["t"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  return %f0, %f1 : !P0, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P0
  %1 = mpmd.assign %arg1 : (!T) -> !P0
  %2 = mpmd.fragment<mesh="p0", origin=["s"]> (%0, %1) (%arg2: !T, %arg3: !T) {
    %6 = stablehlo.add %arg2, %arg3 : !T
    mpmd.return %6 : !T
  } : (!P0, !P0) -> !P0
  %3 = mpmd.assign %arg0 : (!T) -> !P1
  %4 = mpmd.assign %arg1 : (!T) -> !P1
  %5 = mpmd.fragment<mesh="p1", origin=["t"]> (%3, %4) (%arg2: !T, %arg3: !T) {
    %6 = stablehlo.add %arg2, %arg3 : !T
    mpmd.return %6 : !T
  } : (!P1, !P1) -> !P1
  return %2, %5 : !P0, !P1
}

// ----- What two fragments read is copied into them or a fragment on each mesh (5)
func.func @main(%a: !T, %b: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = stablehlo.custom_call @f(%a) : (!T) -> !T
  %1 = mpmd.assign %0 : (!T) -> !P1
  %2 = mpmd.assign %0 : (!T) -> !P0
  %f0 = mpmd.fragment<mesh="p0", origin=["s"]> (%2) (%x: !T) {
    mpmd.return %x : !T
  } : (!P0) -> !P0
  %f1 = mpmd.fragment<mesh="p1", origin=["t"]> (%1) (%x: !T) {
    mpmd.return %x : !T
  } : (!P1) -> !P1
  return %f0, %f1 : !P0, !P1
}
// =>
func.func @main(%arg0: !T, %arg1: !T) -> (!P0, !P1) attributes {topology = #topo} {
  %0 = mpmd.assign %arg0 : (!T) -> !P0
  %1 = mpmd.fragment<mesh="p0", origin=[]> (%0) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg2: !T) {
    %10 = stablehlo.custom_call @f(%arg2) : (!T) -> !T
    mpmd.return %10 : !T
  } : (!P0) -> !P0
  %2 = mpmd.unassign %1 : (!P0) -> !T
  %3 = mpmd.assign %arg0 : (!T) -> !P1
  %4 = mpmd.fragment<mesh="p1", origin=[]> (%3) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%arg2: !T) {
    %10 = stablehlo.custom_call @f(%arg2) : (!T) -> !T
    mpmd.return %10 : !T
  } : (!P1) -> !P1
  %5 = mpmd.unassign %4 : (!P1) -> !T
  %6 = mpmd.assign %5 : (!T) -> !P1
  %7 = mpmd.assign %2 : (!T) -> !P0
  %8 = mpmd.fragment<mesh="p0", origin=["s"]> (%7) (%arg2: !T) {
    mpmd.return %arg2 : !T
  } : (!P0) -> !P0
  %9 = mpmd.fragment<mesh="p1", origin=["t"]> (%6) (%arg2: !T) {
    mpmd.return %arg2 : !T
  } : (!P1) -> !P1
  return %8, %9 : !P0, !P1
}
