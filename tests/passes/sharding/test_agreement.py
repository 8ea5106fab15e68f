"""Whether something was in the way of propagation, told from Shardy's own rules."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.attributes import TensorShardingAttr, parse_attribute
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.sharding.agreement import agrees
from mpmd_trace.passes.sharding.axes import axes_of
from mpmd_trace.passes.sharding.edges import user_sharding
from mpmd_trace.passes.sharding.shardy import run_shardy

T = "tensor<8x8xf32>"
#: Ops on %x, whose rows are sharded over "d", and %w, whose columns may be; and what they return.
BODIES = {
    "a product of rows": (f"%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({T}, {T}) -> {T}", T),
    "their gradient": (f"%0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : ({T}, {T}) -> {T}", T),
    "rows with each other": (f"%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : ({T}, {T}) -> {T}", T),
    "transposed and added": (
        f"%t = stablehlo.transpose %x, dims = [1, 0] : ({T}) -> {T}\n%0 = stablehlo.add %x, %t : {T}",
        T,
    ),
    "rows and columns as one": (
        f"%f = stablehlo.reshape %x : ({T}) -> tensor<64xf32>\n%0 = stablehlo.tanh %f : tensor<64xf32>",
        "tensor<64xf32>",
    ),
    "parts of rows": (f"%0 = stablehlo.reshape %x : ({T}) -> tensor<2x4x8xf32>", "tensor<2x4x8xf32>"),
    "parts that are too small": (f"%0 = stablehlo.reshape %x : ({T}) -> tensor<1x8x8xf32>", "tensor<1x8x8xf32>"),
    "rows of parts": (
        f"%r = stablehlo.reshape %x : ({T}) -> tensor<2x4x8xf32>\n"
        '%0 = sdy.sharding_constraint %r <@mesh, [{}, {"d"}, {}]> : tensor<2x4x8xf32>',
        "tensor<2x4x8xf32>",
    ),
    "rows of parts, if nothing is in the way": (
        f"%r = stablehlo.reshape %x : ({T}) -> tensor<2x4x8xf32>\n"
        '%0 = sdy.sharding_constraint %r <@mesh, [{?}, {"d"}, {?}]> : tensor<2x4x8xf32>',
        "tensor<2x4x8xf32>",
    ),
    "rows of parts, and all rows": (
        f"%r = stablehlo.reshape %x : ({T}) -> tensor<2x4x8xf32>\n"
        '%c = sdy.sharding_constraint %r <@mesh, [{}, {"d"}, {}]> : tensor<2x4x8xf32>\n'
        f"%y = stablehlo.tanh %x : {T}\n%z = stablehlo.reshape %y : ({T}) -> tensor<2x4x8xf32>\n"
        "%0 = stablehlo.add %c, %z : tensor<2x4x8xf32>",
        "tensor<2x4x8xf32>",
    ),
    "a group": (f"sdy.sharding_group %x group_id=3 : {T}\n%0 = stablehlo.tanh %x : {T}", T),
    "a loop": (
        f"""%i = stablehlo.constant dense<3> : tensor<i32>
        %r:2 = stablehlo.while(%a = %i, %b = %x) : tensor<i32>, {T}
        cond {{
          %z = stablehlo.constant dense<0> : tensor<i32>
          %more = stablehlo.compare GT, %a, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %more : tensor<i1>
        }} do {{
          %one = stablehlo.constant dense<1> : tensor<i32>
          %n = stablehlo.subtract %a, %one : tensor<i32>
          %s = stablehlo.tanh %b : {T}
          stablehlo.return %n, %s : tensor<i32>, {T}
        }}
        %0 = stablehlo.tanh %r#1 : {T}""",
        T,
    ),
}


@pytest.mark.parametrize(
    ("body", "columns", "wanted"),
    [
        ("a product of rows", "{}", True),
        ("a product of rows", '{"e"}', True),
        ("a product of rows", '{"d"}', False),  # the result cannot have "d" twice
        ("their gradient", "{}", True),
        ("rows with each other", "{}", False),
        ("transposed and added", "{}", False),
        ("rows and columns as one", "{}", True),
        ("parts of rows", "{}", True),
        ("parts that are too small", "{}", True),  # "d" stays with the 8
        ("rows of parts", "{}", True),  # the user fixed what is before the reshape and behind it
        ("rows of parts, if nothing is in the way", "{}", False),
        ("rows of parts, and all rows", "{}", False),
        ("a group", "{}", False),  # what is in it may be anywhere
        ("a loop", "{}", False),  # nobody says how it depends on its operands
    ],
)
def test_ops_agree(body: str, columns: str, wanted: bool) -> None:
    ops, result = BODIES[body]
    text = f"""
!a = !mpmd.mesh_tensor<"m", {T}>
!r = !mpmd.mesh_tensor<"m", {result}>
module {{
  sdy.mesh @mesh = <["d"=2, "e"=2]>
  func.func public @main(%p: !a {{sdy.sharding = #sdy.sharding<@mesh, [{{"d"}}, {{}}]>}},
      %q: !a {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {columns}]>}}) -> !r
      attributes {{topology = #mpmd.topology<<"m" : <["d"=2, "e"=2]>>>}} {{
    %f = mpmd.fragment<mesh="m", origin=["f"]> (%p, %q) (%x: {T}, %w: {T}) {{
      {ops}
      mpmd.return %0 : {result}
    }} : (!a, !a) -> !r
    return %f : !r
  }}
}}
"""
    module = parse(text)
    found = run_shardy(module, Diagnostics(), keep_rules=True)
    assert found is not None
    after, rules = found
    fragments = [op for op in after.main.body if isinstance(op, FragmentOp)]
    assert after.main.topology is not None
    assert '{"d"}' in str(after.main)
    given = [user_sharding(attributes) for attributes in module.main.arg_attrs]
    assert agrees(fragments, rules, after.main.topology, given) == wanted


def test_a_sharding_is_taken_apart_once() -> None:
    """Programs have some dozen shardings, and ask for the axes of each for thousands of values."""
    sharding = parse_attribute('#sdy.sharding<@taken_apart, [{"d"}, {}]>')
    assert isinstance(sharding, TensorShardingAttr)
    before = axes_of.cache_info().misses
    assert [axes_of(sharding, 2) for _ in range(5)] == [(("d",), ())] * 5
    assert axes_of.cache_info().misses == before + 1
