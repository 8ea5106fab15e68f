"""symbol-dce as a pass over our IR."""

from mpmd_trace.passes.mlir_pass import MlirPass
from mpmd_trace.passes.symbol_dce import SymbolDce
from util import check, run

TEXT = """
        sdy.mesh @mesh = <["x"=2]>
        func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<4xf32>) {
            %1 = func.call @in_body(%x) : (tensor<4xf32>) -> tensor<4xf32>
            mpmd.return %1 : tensor<4xf32>
          } : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        func.func private @in_body(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @indirect(%a) : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        func.func private @indirect(%a: tensor<4xf32>) -> tensor<4xf32> {
          return %a : tensor<4xf32>
        }
        """
DEAD = """
        func.func private @left(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @right(%a) : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        func.func private @right(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @left(%a) : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        """
PUBLIC = """
        func.func @uncalled(%a: tensor<4xf32>) -> tensor<4xf32> {
          return %a : tensor<4xf32>
        }
        """


def test_private_functions_that_nobody_reaches_go() -> None:
    check(TEXT + DEAD + PUBLIC, [SymbolDce()], TEXT + PUBLIC)


def test_the_same_as_mlir() -> None:
    text = TEXT + DEAD + PUBLIC
    assert str(run(text, [MlirPass("symbol-dce")])) == str(run(text, [SymbolDce()]))


def test_attributes_refer_to_functions_too() -> None:
    """Those of the op's own and others."""
    text = """
        func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.custom_call @foo(%a) {called_computations = [@reducer]}
              : (tensor<4xf32>) -> tensor<4xf32>
          %1 = stablehlo.negate %0 {note = @noted} : tensor<4xf32>
          return %1 : tensor<4xf32>
        }
        func.func private @reducer(%a: tensor<f32>) -> tensor<f32> {
          return %a : tensor<f32>
        }
        func.func private @noted(%a: tensor<f32>) -> tensor<f32> {
          return %a : tensor<f32>
        }
        """
    check(text, [SymbolDce()], text)
