"""mpmd-simplify-named-computations"""

from import_programs import check, run

from mpmd_trace.ir.ops import NamedComputationOp
from mpmd_trace.passes.manager import run_passes

PASS = "builtin.module(func.func(mpmd-simplify-named-computations))"


def test_repeated_and_passed_through_values() -> None:
    check(
        """
        func.func @main(%a: !T, %b: !T) -> (!T, !T, !T) attributes {topology = #topo} {
          %0:4 = mpmd.named_computation<"k"(1)> (%a, %b, %a) (%x: !T, %y: !T, %z: !T) {
            %p:2 = stablehlo.optimization_barrier %x, %y : !T, !T
            %q = stablehlo.multiply %p#0, %z : !T
            %w = stablehlo.abs %q : !T
            mpmd.return %q, %p#1, %q, %w : !T, !T, !T, !T
          } : (!T, !T, !T) -> (!T, !T, !T, !T)
          return %0#0, %0#1, %0#2 : !T, !T, !T
        }
        """,
        PASS,
        """
        func.func @main(%a: !T, %b: !T) -> (!T, !T, !T) attributes {topology = #topo} {
          %0 = mpmd.named_computation<"k"(1)> (%a) (%x: !T) {
            %p = stablehlo.optimization_barrier %x : !T
            %q = stablehlo.multiply %p, %x : !T
            mpmd.return %q : !T
          } : (!T) -> !T
          return %0, %b, %0 : !T, !T, !T
        }
        """,
    )


def test_nothing_to_do() -> None:
    text = """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"k"> (%a) {foo = 1 : i32} (%x: !T) {
            %1 = stablehlo.abs %x : !T
            mpmd.return %1 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """
    check(text, PASS, text)


def test_other_attributes_go_when_the_computation_changes() -> None:
    check(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"k"> (%a, %a) {foo = 1 : i32} (%x: !T, %y: !T) {
            %1 = stablehlo.add %x, %y : !T
            mpmd.return %1 : !T
          } : (!T, !T) -> !T
          return %0 : !T
        }
        """,
        PASS,
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"k"> (%a) (%x: !T) {
            %1 = stablehlo.add %x, %x : !T
            mpmd.return %1 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """,
    )


def test_nested_computations_are_simplified_too() -> None:
    check(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"out"> (%a) (%x: !T) {
            %1:2 = mpmd.named_computation<"in"> (%x, %x) (%y: !T, %z: !T) {
              %2 = stablehlo.add %y, %z : !T
              mpmd.return %2, %z : !T, !T
            } : (!T, !T) -> (!T, !T)
            %3 = stablehlo.multiply %1#0, %1#1 : !T
            mpmd.return %3 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """,
        PASS,
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"out"> (%a) (%x: !T) {
            %1 = mpmd.named_computation<"in"> (%x) (%y: !T) {
              %2 = stablehlo.add %y, %y : !T
              mpmd.return %2 : !T
            } : (!T) -> !T
            %3 = stablehlo.multiply %1, %x : !T
            mpmd.return %3 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """,
    )


def test_equal_computations_share_what_is_made_of_their_bodies() -> None:
    computation = """
          %R:2 = mpmd.named_computation<"f"> (%A, %A) (%x: !T, %y: !T) {
            %1 = stablehlo.add %x, %y : !T
            mpmd.return %1, %x : !T, !T
          } : (!T, !T) -> (!T, !T)
    """
    module = run(
        "func.func @main(%a: !T) -> (!T, !T) attributes {topology = #topo} {\n"
        + computation.replace("%R", "%p").replace("%A", "%a")
        + "return %p#0, %p#1 : !T, !T\n}",
        "mpmd-copy-topology-from-main",
    )
    first = next(op for op in module.main.body if isinstance(op, NamedComputationOp))
    second = first.clone()
    module.main.body.insert_after(first, second)
    module.main.body.terminator.set_operand(1, second.results[0])
    run_passes(module, PASS)
    bodies = {op.body for op in module.main.body if isinstance(op, NamedComputationOp)}
    assert len(bodies) == 1
