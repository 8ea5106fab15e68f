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
