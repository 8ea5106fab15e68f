"""mpmd-simplify-named-computations"""

from import_programs import run

from mpmd_trace.ir.ops import NamedComputationOp
from mpmd_trace.passes.manager import run_passes

PASS = "builtin.module(func.func(mpmd-simplify-named-computations))"


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
