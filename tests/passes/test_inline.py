"""`inline` without simplification."""

from mpmd_trace.passes.inline import Inline
from mpmd_trace.passes.manager import run_passes
from util import distinct_bodies, run


def test_a_shared_body_stays_shared() -> None:
    module = run(
        """
        func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
          %1 = mpmd.named_computation<"f"> (%a) (%x: tensor<4xf32>) {
            %2 = func.call @inner(%x) : (tensor<4xf32>) -> tensor<4xf32>
            mpmd.return %2 : tensor<4xf32>
          } : (tensor<4xf32>) -> tensor<4xf32>
          return %1 : tensor<4xf32>
        }
        func.func private @inner(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.negate %a : tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        """,
        "mpmd-validate-named-ops-in-mpmd-func",
    )
    first = module.main.body.first
    assert first is not None
    module.main.body.insert_after(first, first.clone())
    run_passes(module, [Inline(default_pipeline="")])
    assert distinct_bodies(module) == 1
    assert len(module.functions) == 1
