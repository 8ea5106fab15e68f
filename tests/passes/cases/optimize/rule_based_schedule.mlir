// passes: mpmd-rule-based-schedule
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>

// ----- One rule orders three fragments
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["i"],mesh_name="s0")->FragmentInfo(origins=["j"],mesh_name="s0")->FragmentInfo(origins=["k"],mesh_name="s0")])}
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["j"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["i"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["i"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.tanh %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["j"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=["k"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  return %2, %1, %0 : !s, !s, !s
}

// ----- Names that do not occur do not matter
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["i"],mesh_name="s0")->FragmentInfo(origins=["missing"],mesh_name="s0")->FragmentInfo(origins=["k"],mesh_name="s0")])}
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["j"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["i"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["j"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["i"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.tanh %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=["k"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  return %2, %0, %1 : !s, !s, !s
}

// ----- Names that do not occur do not matter in front
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["missing"],mesh_name="s0")->FragmentInfo(origins=["i"],mesh_name="s0")->FragmentInfo(origins=["k"],mesh_name="s0")])}
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["j"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["i"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["j"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["i"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.tanh %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=["k"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  return %2, %0, %1 : !s, !s, !s
}

// ----- Rules follow each other
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["i"],mesh_name="s0")->FragmentInfo(origins=["j"],mesh_name="s0")]),FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["j"],mesh_name="s0")->FragmentInfo(origins=["k"],mesh_name="s0")])}
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["j"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["i"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="s0", origin=["i"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.tanh %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["j"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.cosine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %2 = mpmd.fragment<mesh="s0", origin=["k"]> (%arg0) (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  return %2, %1, %0 : !s, !s, !s
}

// ----- A rule of one fragment says nothing
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["i"],mesh_name="s0")])}
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["j"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["i"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}

// ----- Of two rules that contradict each other only the first holds
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["i"],mesh_name="s0")->FragmentInfo(origins=["j"],mesh_name="s0")]),FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["j"],mesh_name="s0")->FragmentInfo(origins=["i"],mesh_name="s0")])}
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["j"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["i"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}

// ----- A rule against the data flow is left out
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["b"],mesh_name="s0")->FragmentInfo(origins=["a"],mesh_name="s0")])}
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %a = mpmd.fragment<mesh="s0", origin=["a"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %b = mpmd.fragment<mesh="s0", origin=["b"]> (%a) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %b : !s
}
// log: FragmentInfo(origins=["a"],mesh_name="s0") ... the data flow is the other way round

// ----- Nothing waits for a fragment without results
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["e"],mesh_name="s0")->FragmentInfo(origins=["a"],mesh_name="s0")])}
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %a = mpmd.fragment<mesh="s0", origin=["a"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  mpmd.fragment<mesh="s0", origin=["e"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.custom_call @tell(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return
  } : (!s) -> ()
  return %a : !s
}
// log: FragmentInfo(origins=["e"],mesh_name="s0") has no result, so nothing can wait for it

// ----- Two fragments of one name are an error
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["i"],mesh_name="s0")->FragmentInfo(origins=["k"],mesh_name="s0")])}
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["i"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}
// error: two fragments are called FragmentInfo(origins=["k"],mesh_name="s0") (-: ... and -: ... ), so a schedule rule cannot tell them apart; give one of the named computations another name

// ----- Every fragment that repeats a name is an error in every function
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}
func.func public @other(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["m"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["m"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["m"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}
// error: two fragments are called FragmentInfo(origins=["k"],mesh_name="s0")
// error: two fragments are called FragmentInfo(origins=["k"],mesh_name="s0")
// error: two fragments are called FragmentInfo(origins=["m"],mesh_name="s0")
// error: two fragments are called FragmentInfo(origins=["m"],mesh_name="s0")

// ----- Rules can leave control operands
// passes: mpmd-rule-based-schedule{rules=FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["i"],mesh_name="s0")->FragmentInfo(origins=["k"],mesh_name="s0")]) remove-control-dependencies=false}
func.func public @main(%p: !s) -> (!s, !s, !s) attributes {topology = #topo} {
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %j = mpmd.fragment<mesh="s0", origin=["j"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.cosine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %i = mpmd.fragment<mesh="s0", origin=["i"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.tanh %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %k, %j, %i : !s, !s, !s
}
// CHECK-COUNT-1: control_operand_start_idx
