"""mpmd-infer-mesh-convert-reduce-ops"""

import pytest

from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.core import Op, make_op
from mpmd_trace.ir.ops import TransferOp
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import MeshTensorType, parse_type
from mpmd_trace.passes.import_.reductions import is_neutral
from mpmd_trace.passes.partition import partition
from mpmd_trace_devtools.comparison import assert_same_meaning


def constant(text: str, element: str) -> Op:
    type = parse_type(f"tensor<{element}>")
    value = parse_attribute(f"dense<{text}> : tensor<{element}>")
    return make_op("stablehlo.constant", [], [type], props={"value": value})


@pytest.mark.parametrize(
    ("text", "element", "kinds"),
    [
        ("0.000000e+00", "f32", {"add"}),
        ("-0.000000e+00", "f32", {"add"}),
        ("1.000000e+00", "bf16", {"mul"}),
        ("0xFF800000", "f32", {"max"}),
        ("0x7F800000", "f32", {"min"}),
        ("0xFFF0000000000000", "f64", {"max"}),
        ("0x7FC00000", "f32", set()),
        ("0", "i32", {"add", "or"}),
        ("1", "i32", {"mul"}),
        ("-1", "i8", {"and"}),
        ("-2147483648", "i32", {"max"}),
        ("2147483647", "i32", {"min"}),
        ("0", "ui8", {"add", "or", "max"}),
        ("255", "ui8", {"and", "min"}),
        ("true", "i1", {"mul", "and", "min"}),
        ("false", "i1", {"add", "or", "max"}),
        ("3.000000e+00", "f32", set()),
    ],
)
def test_neutral_values(text: str, element: str, kinds: set[str]) -> None:
    value = constant(text, element).results[0]
    assert {k for k in ("add", "max", "min", "mul", "or", "and") if is_neutral(value, k)} == kinds


@pytest.mark.parametrize("value", ["0.0", "3.0"])
def test_an_initial_value_does_not_move_the_reduction(value: str) -> None:
    program = f"""
!t = tensor<4xf32>
func.func @main(%p: !t, %q: !t) -> !t {{
  %0 = mpmd.named_computation<"f"> (%p) (%x: !t) {{
    %a = stablehlo.negate %x : !t
    mpmd.return %a : !t
  }} : (!t) -> !t
  %1 = mpmd.named_computation<"g"> (%q) (%x: !t) {{
    %a = stablehlo.cosine %x : !t
    mpmd.return %a : !t
  }} : (!t) -> !t
  %i = stablehlo.constant dense<{value}> : tensor<f32>
  %r0 = stablehlo.reshape %0 : (!t) -> tensor<1x4xf32>
  %r1 = stablehlo.reshape %1 : (!t) -> tensor<1x4xf32>
  %c = stablehlo.concatenate %r0, %r1, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
  %r = stablehlo.reduce(%c init: %i) applies stablehlo.add across dimensions = [0]
      : (tensor<2x4xf32>, tensor<f32>) -> !t
  return %r : !t
}}"""
    meshes = [(f"m{number}", [("x", 1)]) for number in range(3)]
    result = partition(
        program,
        "step",
        meshes,
        {"f": "m1", "g": "m2"},
        [None, None],
        [None],
        partitioning_options={"mpmd_infer_transfers": True},
        phases="import",
    )
    main = result.module.main
    assert sum(isinstance(op, TransferOp) for op in main.body) == 1
    assert [type.mesh for type in main.type.results if isinstance(type, MeshTensorType)] == ["m1"]
    assert_same_meaning(parse(program), result.module)
