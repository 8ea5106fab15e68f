"""Which functions stay out of line, and that a module with some is a module like others."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.import_.clean_up import read_clean
from mpmd_trace.passes.outlining import CallOutlinedFunctions
from mpmd_trace.passes.variants import CleanUpForXla
from mpmd_trace_devtools.interpreter import interpret

LINES = "\n".join(f"    %{i} = stablehlo.add %{i - 1}, %b : tensor<4xui32>" for i in range(1, 71))
#: 73 ops of a key.
BITS = f"""
  func.func private @NAME(%k: tensor<ui32>) -> tensor<4xui32> {{
    %b = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<ui32>) -> tensor<4xui32>
    %0 = stablehlo.iota dim = 0 : tensor<4xui32>
{LINES}
    return %70 : tensor<4xui32>
  }}"""
CALL = "%{0} = func.call @{1}(%k) : (tensor<ui32>) -> tensor<4xui32>"


def program(functions: str, *callees: str) -> str:
    """A sum of what each of the callees gives for the argument, the first in a named computation and in a loop."""
    first, *others = callees
    calls = "\n".join(CALL.format(f"c{i}", name) for i, name in enumerate(others))
    sums = "\n".join(f"%s{i + 1} = stablehlo.add %s{i}, %c{i} : tensor<4xui32>" for i in range(len(others)))
    return f"""module {{
  func.func public @main(%k: tensor<ui32>) -> tensor<4xui32> {{
    %s0 = mpmd.named_computation<"f"> (%k) (%u: tensor<ui32>) {{
      %n = stablehlo.constant dense<2> : tensor<ui32>
      %one = stablehlo.constant dense<1> : tensor<ui32>
      %w:2 = stablehlo.while(%i = %u, %x = %u) : tensor<ui32>, tensor<ui32>
        cond {{
          %p = stablehlo.compare LT, %i, %n, UNSIGNED : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        }} do {{
          %y = func.call @{first}(%i) : (tensor<ui32>) -> tensor<4xui32>
          %z = stablehlo.slice %y [1:2] : (tensor<4xui32>) -> tensor<1xui32>
          %r = stablehlo.reshape %z : (tensor<1xui32>) -> tensor<ui32>
          %j = stablehlo.add %i, %one : tensor<ui32>
          stablehlo.return %j, %r : tensor<ui32>, tensor<ui32>
        }}
      %v = stablehlo.broadcast_in_dim %w#1, dims = [] : (tensor<ui32>) -> tensor<4xui32>
      mpmd.return %v : tensor<4xui32>
    }} : (tensor<ui32>) -> tensor<4xui32>
    {calls}
    {sums}
    return %s{len(others)} : tensor<4xui32>
  }}
  {functions}
}}"""


def bits(name: str) -> str:
    return BITS.replace("NAME", name)


def cleaned(text: str, apart: bool) -> Module:
    """What clean-up makes of the module: MLIR while it has it, or the pass (`apart`)."""
    if not apart:
        found = read_clean(text, for_xla=True)
        assert found is not None
        return found[0]
    module = parse(text)
    CleanUpForXla().run(module, Diagnostics())
    return module


def names(module: Module) -> list[str]:
    return [f.sym_name for f in module.outlined]


@pytest.mark.parametrize("apart", [False, True])
def test_called_more_than_once(apart: bool) -> None:
    module = cleaned(program(bits("f"), "f", "f"), apart)
    assert names(module) == ["f"] and [f.sym_name for f in module.functions] == ["main"]
    assert str(module).count("custom_call @mpmd_trace.outlined") == 2
    assert str(module).count("mpmd_trace.work = 280") == 2
    assert names(cleaned(program(bits("f"), "f"), apart)) == []


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("function", "is_outlined"),
    [
        (bits("f"), True),
        (bits("f").replace(LINES, "").replace("%70", "%0"), False),
        (bits("f").replace("ui32", "f32"), True),
        (bits("f").replace("(%k: tensor<ui32>)", "(%k: tensor<ui32>, %w: tensor<4xf32>)"), False),
        (
            bits("f").replace("return", "stablehlo.custom_call @g() {has_side_effect = true} : () -> ()\n    return"),
            False,
        ),
        (bits("f").replace("return", "%r = stablehlo.custom_call @g() : () -> tensor<4xf32>\n    return"), False),
    ],
)
def test_large_pure_functions_of_keys(apart: bool, function: str, is_outlined: bool) -> None:
    inputs = re.findall(r"tensor<[^>]*>", re.findall(r"@f\((.*?)\) ->", function)[0])
    given = ", ".join(f"%a{i}" for i in range(len(inputs)))
    result = re.findall(r"-> (tensor<[^>]*>) {", function)[0]
    calls = "\n".join(f"%x{i} = func.call @f({given}) : ({', '.join(inputs)}) -> {result}" for i in range(2))
    text = f"""module {{
      func.func public @main({", ".join(f"%a{i}: {t}" for i, t in enumerate(inputs))}) -> ({result}, {result}) {{
        {calls}
        return %x0, %x1 : {result}, {result}
      }}
      {function}
    }}"""
    assert bool(names(cleaned(text, apart))) == is_outlined


@pytest.mark.parametrize("apart", [False, True])
def test_what_an_outlined_function_calls_comes_along_once(apart: bool) -> None:
    def caller(name: str, inner: str) -> str:
        return f"""
  func.func private @{name}(%k: tensor<ui32>) -> tensor<4xui32> {{
    {CALL.format(0, inner)}
    return %0 : tensor<4xui32>
  }}"""

    functions = caller("a", "x") + caller("b", "y") + bits("x") + bits("y")
    module = cleaned(program(functions, "a", "b", "a", "b"), apart)
    assert names(module) == ["x", "a"]
    assert str(module).count('backend_config = "a"') == 2  # in the loop, and once outside: equal calls are one


@pytest.mark.parametrize("apart", [False, True])
def test_the_module_computes_the_same_all_the_way(apart: bool) -> None:
    text = program(bits("f"), "f", "f", "f")
    args = [np.uint32(0)]
    (expected,) = interpret(parse(text), args)
    module = cleaned(text, apart)
    for other in (module, module.clone(), parse_generic(module.to_generic(debug_info=True)), parse(str(module))):
        assert str(other) == str(module)
        np.testing.assert_array_equal(interpret(other, args)[0], expected)
    assert CallOutlinedFunctions().run(module, Diagnostics()) and not module.outlined
    assert "mpmd_trace" not in str(module) and str(module).count("call @f") == 2
    np.testing.assert_array_equal(interpret(module, args)[0], expected)
    assert not CallOutlinedFunctions().run(module, Diagnostics())
