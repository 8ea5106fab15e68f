// passes: mpmd-mark-input-output-with-layouts
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#both = #mpmd.topology<<"s0" : <["d"=2]>>, <"s0/cpu" : <["d"=2]>>>
!h = !mpmd.mesh_tensor<"s0", tensor<4xf32>, memory_kind="pinned_host">
!c = !mpmd.mesh_tensor<"s0/cpu", tensor<4xf32>>

// ----- Incompatible results are an error
func.func public @main(%p: !s) -> (!s {mhlo.layout_mode = "{1}"}, !s {mhlo.layout_mode = "{0}"}) attributes {topology = #both} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) { %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  return %f, %f : !s, !s
}
// error: result 0 ... result 1

// ----- An argument returned with another layout is an error
func.func public @main(%p: !s) -> (!s {mhlo.layout_mode = "{0}"}) attributes {topology = #both} {
  return %p : !s
}
// error: argument 0

// ----- Auto of an argument with two users becomes default
func.func public @main(%p: !s {mhlo.layout_mode = "auto"}) -> (!s, !s) attributes {topology = #both} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f, %g : !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s, !s) attributes {topology = #both} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{}], res_attrs = [{}]} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{}], res_attrs = [{}]} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  return %0, %1 : !s, !s
}

// ----- A custom layout goes to all users and through transfers
func.func public @main(%p: !s {mhlo.layout_mode = "{0}"}) -> (!s, !h {mhlo.layout_mode = "auto"}) attributes {topology = #both} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %t = mpmd.transfer %p : (!s) -> !h
  %u = mpmd.transfer %t : (!h) -> !h
  return %f, %u : !s, !h
}
// =>
func.func public @main(%arg0: !s {mhlo.layout_mode = "{0}"}) -> (!s, !h {mhlo.layout_mode = "{0}"}) attributes {topology = #both} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{mhlo.layout_mode = "{0}"}], res_attrs = [{}]} (%arg1: tensor<4xf32>) {
    %3 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.transfer %arg0 : (!s) -> !h
  %2 = mpmd.transfer %1 : (!h) -> !h
  return %0, %2 : !s, !h
}

// ----- Another result decides for auto
func.func public @main(%p: !s) -> (!s {mhlo.layout_mode = "auto"}, !s {mhlo.layout_mode = "{0}"}) attributes {topology = #both} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %f, %f : !s, !s
}
// =>
func.func public @main(%arg0: !s) -> (!s {mhlo.layout_mode = "{0}"}, !s {mhlo.layout_mode = "{0}"}) attributes {topology = #both} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{}], res_attrs = [{mhlo.layout_mode = "{0}"}]} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s) -> !s
  return %0, %0 : !s, !s
}

// ----- An unused result may have any layout
func.func public @main(%p: !s) -> !s attributes {topology = #both} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  return %p : !s
}
// =>
func.func public @main(%arg0: !s) -> !s attributes {topology = #both} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{}], res_attrs = [{mhlo.layout_mode = "auto"}]} (%arg1: tensor<4xf32>) {
    %1 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %1 : tensor<4xf32>
  } : (!s) -> !s
  return %arg0 : !s
}

// ----- A transfer to a host mesh forces the default and warns (1)
func.func public @main(%p: !s {mhlo.layout_mode = "{0}"}) -> (!s, !c {mhlo.layout_mode = "auto"}) attributes {topology = #both} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %t = mpmd.transfer %p : (!s) -> !c
  return %f, %t : !s, !c
}
// =>
func.func public @main(%arg0: !s) -> (!s, !c) attributes {topology = #both} {
  %0 = mpmd.fragment<mesh="s0", origin=["f"]> (%arg0) {arg_attrs = [{}], res_attrs = [{}]} (%arg1: tensor<4xf32>) {
    %2 = stablehlo.sine %arg1 : tensor<4xf32>
    mpmd.return %2 : tensor<4xf32>
  } : (!s) -> !s
  %1 = mpmd.transfer %arg0 : (!s) -> !c
  return %0, %1 : !s, !c
}

// ----- A transfer to a host mesh forces the default and warns (2)
func.func public @main(%p: !s {mhlo.layout_mode = "{0}"}) -> (!s, !c {mhlo.layout_mode = "auto"}) attributes {topology = #both} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %y = stablehlo.sine %x : tensor<4xf32>
    mpmd.return %y : tensor<4xf32>
  } : (!s) -> !s
  %t = mpmd.transfer %p : (!s) -> !c
  return %f, %t : !s, !c
}
// warning: argument 0 of @main has layout "{0}", but it goes to a host mesh, where only the default
