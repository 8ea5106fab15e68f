"""The passes of the infer-mesh pipeline one after the other."""

from infer_mesh_programs import check, run, sequence


def test_small_program() -> None:
    check(
        """
        func.func @main(%a: !T, %b: !T, %c: !T) -> (!T, !T) attributes {topology = #topo} {
          %0 = stablehlo.add %a, %b : !T
          %1 = mpmd.assign {origin = "s"} %0 : (!T) -> !P1
          %2 = mpmd.fragment<mesh="p1", origin=["s"]> (%1) (%x: !T) {
            %9 = stablehlo.sine %x : !T
            mpmd.return %9 : !T
          } : (!P1) -> !P1
          %3 = mpmd.unassign {origin = "s"} %2 : (!P1) -> !T
          %4 = stablehlo.multiply %3, %a : !T
          return %4, %b : !T, !T
        }
        """,
        sequence(infer_transfers=False, infer_reductions=False),
        """
        func.func @main(%a: !P1, %b: !P1, %c: !P0) -> (!P1, !P1) attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="p1", origin=["s"]> (%a, %b) (%x: !T, %y: !T) {
            %8 = stablehlo.add %x, %y : !T
            %9 = stablehlo.sine %8 : !T
            mpmd.return %9 : !T
          } : (!P1, !P1) -> !P1
          %1 = mpmd.fragment<mesh="p1", origin=[]> (%0, %a)
              {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%x: !T, %y: !T) {
            %9 = stablehlo.multiply %x, %y : !T
            mpmd.return %9 : !T
          } : (!P1, !P1) -> !P1
          return %1, %b : !P1, !P1
        }
        """,
    )


def test_callee_used_on_two_meshes_and_broadcast() -> None:
    check(
        """
        func.func public @main(%a: !T, %b: !T) -> (!P0, !P1, !T) attributes {topology = #topo} {
          %0 = mpmd.call @g(%a) {call_counter = 0 : ui32} : (!T) -> !T
          %1 = mpmd.assign %0 : (!T) -> !P0
          %2 = mpmd.call @g(%b) {call_counter = 1 : ui32} : (!T) -> !T
          %3 = mpmd.assign %2 : (!T) -> !P1
          %4 = mpmd.broadcast %2 : !T
          return %1, %3, %4 : !P0, !P1, !T
        }
        func.func private @g(%x: !T) -> !T attributes {topology = #topo} {
          %0 = stablehlo.tanh %x : !T
          return %0 : !T
        }
        """,
        sequence(infer_transfers=False, infer_reductions=False),
        """
        func.func public @main(%a: !P0, %b: !P0) -> (!P0, !P1, !P0) attributes {topology = #topo} {
          %0 = mpmd.transfer %a : (!P0) -> !P1
          %1:2 = mpmd.call @g(%a, %0) {call_counter = 0 : ui32} : (!P0, !P1) -> (!P1, !P0)
          %2 = mpmd.transfer %b : (!P0) -> !P1
          %3:2 = mpmd.call @g(%b, %2) {call_counter = 1 : ui32} : (!P0, !P1) -> (!P1, !P0)
          return %1#1, %3#0, %3#1 : !P0, !P1, !P0
        }
        func.func private @g(%x: !P0 {mpmd.copies = array<i64: 1>},
            %y: !P1) -> (!P1 {mpmd.copies = array<i64: 1>}, !P0) attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="p0", origin=[]> (%x)
              {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%z: !T) {
            %9 = stablehlo.tanh %z : !T
            mpmd.return %9 : !T
          } : (!P0) -> !P0
          %1 = mpmd.fragment<mesh="p1", origin=[]> (%y)
              {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%z: !T) {
            %9 = stablehlo.tanh %z : !T
            mpmd.return %9 : !T
          } : (!P1) -> !P1
          return %1, %0 : !P1, !P0
        }
        """,
    )


def test_reduction_across_meshes() -> None:
    check(
        """
        func.func @main(%a: !P0, %b: !P1) -> !T attributes {topology = #topo} {
          %f = mpmd.fragment<mesh="p0", origin=["s0"]> (%a) (%x: !T) {
            %9 = stablehlo.abs %x : !T
            mpmd.return %9 : !T
          } : (!P0) -> !P0
          %g = mpmd.fragment<mesh="p1", origin=["s1"]> (%b) (%x: !T) {
            %9 = stablehlo.abs %x : !T
            mpmd.return %9 : !T
          } : (!P1) -> !P1
          %u = mpmd.unassign {origin = "s0"} %f : (!P0) -> !T
          %v = mpmd.unassign {origin = "s1"} %g : (!P1) -> !T
          %0 = stablehlo.maximum %u, %v : !T
          %1 = stablehlo.maximum %v, %0 : !T
          %2 = mpmd.assign {origin = "s2"} %1 : (!T) -> !P2
          %3 = mpmd.fragment<mesh="p2", origin=["s2"]> (%2) (%x: !T) {
            %9 = stablehlo.sine %x : !T
            mpmd.return %9 : !T
          } : (!P2) -> !P2
          %4 = mpmd.unassign {origin = "s2"} %3 : (!P2) -> !T
          return %4 : !T
        }
        """,
        sequence(),
        """
        func.func @main(%a: !P0, %b: !P1) -> !P2 attributes {topology = #topo} {
          %f = mpmd.fragment<mesh="p0", origin=["s0"]> (%a) (%x: !T) {
            %9 = stablehlo.abs %x : !T
            mpmd.return %9 : !T
          } : (!P0) -> !P0
          %g = mpmd.fragment<mesh="p1", origin=["s1"]> (%b) (%x: !T) {
            %9 = stablehlo.abs %x : !T
            mpmd.return %9 : !T
          } : (!P1) -> !P1
          %0 = mpmd.fragment<mesh="p1", origin=[]> (%g, %g)
              {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%x: !T, %y: !T) {
            %9 = stablehlo.maximum %x, %y : !T
            mpmd.return %9 : !T
          } : (!P1, !P1) -> !P1
          %1 = mpmd.transfer %f : (!P0) -> !P2
          %2 = mpmd.transfer %0 : (!P1) -> !P2
          %3 = mpmd.fragment<mesh="p2", origin=[]> (%1, %2)
              {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%x: !T, %y: !T) {
            %9 = stablehlo.maximum %x, %y : !T
            mpmd.return %9 : !T
          } : (!P2, !P2) -> !P2
          %4 = mpmd.fragment<mesh="p2", origin=["s2"]> (%3) (%x: !T) {
            %9 = stablehlo.sine %x : !T
            mpmd.return %9 : !T
          } : (!P2) -> !P2
          return %4 : !P2
        }
        """,
    )


def test_sets_after_the_analysis() -> None:
    check(
        """
        func.func @main(%a: !T, %b: !T, %c: !T) -> (!T, !T) attributes {topology = #topo} {
          %0 = stablehlo.add %a, %b : !T
          %1 = mpmd.assign {origin = "s"} %0 : (!T) -> !P1
          %2 = mpmd.fragment<mesh="p1", origin=["s"]> (%1) (%x: !T) {
            mpmd.return %x : !T
          } : (!P1) -> !P1
          %3 = mpmd.unassign {origin = "s"} %2 : (!P1) -> !T
          %4 = stablehlo.multiply %3, %a : !T
          return %4, %b : !T, !T
        }
        """,
        sequence(until="populate-src-set"),
        """
        func.func @main(%a: !T {use=<"p1"["s"]>, src=<"p1"["inferred_in"]>},
            %b: !T {use=<"p1"["s"]>, src=<"p1"["inferred_in"]>}, %c: !T) -> (!T, !T)
            attributes {topology = #topo} {
          %0 = stablehlo.add %a, %b {use=<"p1"["s"]>, src=<"p1"["inferred_in"]>} : !T
          %1 = mpmd.assign {origin = "s", use=<"p1"["s"]>, src=<"p1"["inferred_in"]>} %0 : (!T) -> !P1
          %2 = mpmd.fragment<mesh="p1", origin=["s"]> (%1) (%x: !T) {
            mpmd.return %x : !T
          } : (!P1) -> !P1
          %3 = mpmd.unassign {origin = "s", src=<"p1"["s"]>} %2 : (!P1) -> !T
          %4 = stablehlo.multiply %3, %a {src=<"p1"["s", "inferred_in"]>} : !T
          return %4, %b : !T, !T
        }
        """,
    )


def test_loop_with_a_value_on_one_mesh() -> None:
    """The reference cannot analyze a loop twice and aborts."""
    module = run(
        """
        func.func @main(%a: !T) -> !P1 attributes {topology = #topo} {
          %0 = mpmd.for (%a) {iterations = 4 : ui32} (%x: !T, %i: tensor<ui32>) {
            %2 = stablehlo.add %x, %x : !T
            mpmd.return %2 : !T
          } : !T
          %1 = mpmd.assign {origin = "s"} %0 : (!T) -> !P1
          return %1 : !P1
        }
        """,
        sequence(),
    )
    assert str(module.main.type) == '(!mpmd.mesh_tensor<"p1", tensor<6x2xf32>>) -> ' + (
        '!mpmd.mesh_tensor<"p1", tensor<6x2xf32>>'
    )
    loop = module.main.body.first
    assert loop is not None
    assert loop.name == "mpmd.for"
    assert [r.type for r in loop.results] == [module.main.body.args[0].type]
