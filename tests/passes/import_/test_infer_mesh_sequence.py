"""The passes of the infer-mesh pipeline one after the other."""

from infer_mesh_programs import check, run, sequence


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
