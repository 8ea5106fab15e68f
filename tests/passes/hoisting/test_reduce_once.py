"""Sums over devices are finished once; what is computed changes by rounding alone."""

from __future__ import annotations

import re

import pytest

from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import PassManager
from mpmd_trace_devtools.comparison import assert_same_meaning

PRELUDE = """
#meshes = #mpmd.topology<<"a" : <["data"=2, "model"=2]>>>
sdy.mesh @mesh = <["data"=2, "model"=2]>
"""
X, Y, G = "tensor<8x4xf32>", "tensor<8x6xf32>", "tensor<4x6xf32>"
ROWS = '<@mesh, [{"data"}, {}]>'


def on_mesh(type: str) -> str:
    return f'!mpmd.mesh_tensor<"a", {type}>'


def gradient(name: str = "%g", axes: str = "{}, {}") -> str:
    return f"""
    {name} = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
        {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{axes}]>]>}} : ({X}, {Y}) -> {G}"""


def step(
    body: str,
    update: str = "%r = stablehlo.negate %s : {G}",
    total: str = "<@mesh, [{}, {}]>",
    x: str = ROWS,
    y: str = "",
    types: tuple[str, str, str] = (X, Y, G),
) -> Module:
    """Three microbatches that add `%g` to `%s`, and an update of the sum.

    `total`: the sharding of the sum; `x` and `y`: those of the operands, which are alike by default.  `types`: of the
    operands and the sum.
    """
    X, Y, G = types
    fragments = []
    for m in range(3):
        carried = "%zeros" if m == 0 else f"%{m - 1}"
        fragments.append(f"""
      %{m} = mpmd.fragment<mesh="a", origin=["f"(1)], in_shardings=[{x}, {y or x}, {total}], out_shardings=[{total}]>
          (%in{m}, %on{m}, {carried}) {{call_counter = {m} : ui32}} (%x: {X}, %y: {Y}, %s: {G}) {{
        {body}
        %sum = stablehlo.add %s, %g : {G}
        mpmd.return %sum : {G}
      }} : ({on_mesh(X)}, {on_mesh(Y)}, {on_mesh(G)}) -> {on_mesh(G)}""")
    arguments = ", ".join(f"%in{m}: {on_mesh(X)}, %on{m}: {on_mesh(Y)}" for m in range(3))
    return parse(f"""{PRELUDE}
    func.func public @main({arguments}) -> {on_mesh(G)} attributes {{topology = #meshes}} {{
      %zeros = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[], out_shardings=[{total}]> () () {{
        %z = stablehlo.constant dense<0.000000e+00> : {G}
        mpmd.return %z : {G}
      }} : () -> {on_mesh(G)}
      {"".join(fragments)}
      %3 = mpmd.fragment<mesh="a", origin=["u"], in_shardings=[{total}], out_shardings=[{total}]> (%2) (%s: {G}) {{
        {update.replace("{G}", G)}
        mpmd.return %r : {G}
      }} : ({on_mesh(G)}) -> {on_mesh(G)}
      return %3 : {on_mesh(G)}
    }}""")


def reduced(before: Module, options: str = "") -> tuple[str, int]:
    """The program with the pass, which means the same, and how many sums are finished."""
    after = before.clone()
    PassManager(f"mpmd-reduce-once{options}", verify=True).run(after)
    assert_same_meaning(before, after, rtol=1e-4)
    text = str(after)
    finished = re.findall(r"stablehlo\.reduce\(.*across dimensions = \[0\] : \(tensor<[24]x4x6xf32>", text)
    return text, len(finished)


def test_a_gradient_is_summed_over_devices_in_the_update() -> None:
    text, finished = reduced(step(gradient()))
    assert finished == 1
    assert text.count("tensor<2x4x4xf32>, tensor<2x4x6xf32>) -> tensor<2x4x6xf32>") == 3
    assert text.index("across dimensions = [0]") > text.index('origin=["u"]')


@pytest.mark.parametrize(
    ("groups", "columns", "once"), [(1, "{}", True), (1, '{"model"}', True), (2, "{}", True), (2, '{"model"}', False)]
)
def test_the_gradient_of_a_kernel_is_summed_in_the_update(groups: int, columns: str, once: bool) -> None:
    """A convolution that sums over examples; in groups, and with its columns sharded over another axis."""
    types = "tensor<8x6x3x2xf32>", "tensor<8x4x3x4xf32>", f"tensor<3x1x{2 // groups}x4xf32>"
    sharding = f"<@mesh, [{{}}, {{}}, {{}}, {columns}]>"
    kernel = f"""
      %g = stablehlo.convolution(%x, %y) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {{}}
          {{batch_group_count = {groups} : i64, feature_group_count = 1 : i64,
           sdy.sharding = #sdy.sharding_per_value<[{sharding}]>}} : ({types[0]}, {types[1]}) -> {types[2]}"""
    rows = '<@mesh, [{"data"}, {}, {}, {}]>'
    before = step(kernel, total=sharding, x=rows, y=rows.replace(", {}]", f", {columns}]"), types=types)
    text, _ = reduced(before)
    assert ("sdy.manual_computation" in text) == once
    assert once or text == str(before)


def test_zeros_are_made_with_a_part_for_each_device() -> None:
    text, _ = reduced(step(gradient()))
    assert "dense<0.000000e+00> : tensor<2x4x6xf32>" in text


@pytest.mark.parametrize(
    "line",
    [
        f"%c = stablehlo.constant dense<0.125> : {G}\n %g = stablehlo.multiply %p, %c : {G}",
        f"%c = stablehlo.constant dense<8.0> : {G}\n %g = stablehlo.divide %p, %c : {G}",
        f"%g = stablehlo.negate %p : {G}",
        f"%h = stablehlo.add %p, %p : {G}\n %g = stablehlo.subtract %h, %p : {G}",
        f"%g = sdy.sharding_constraint %p <@mesh, [{{}}, {{}}]> : {G}",
        f"%t = stablehlo.transpose %p, dims = [1, 0] : ({G}) -> tensor<6x4xf32>\n"
        f"%q = stablehlo.transpose %t, dims = [1, 0] : (tensor<6x4xf32>) -> {G}\n"
        f"%u = stablehlo.reshape %q : ({G}) -> tensor<24xf32>\n %g = stablehlo.reshape %u : (tensor<24xf32>) -> {G}",
        f"%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
        f"%t = stablehlo.reduce(%p init: %z) applies stablehlo.add across dimensions = [0] "
        f": ({G}, tensor<f32>) -> tensor<6xf32>\n"
        f"%g = stablehlo.broadcast_in_dim %t, dims = [1] : (tensor<6xf32>) -> {G}",
    ],
)
def test_what_is_linear_is_applied_to_parts(line: str) -> None:
    assert reduced(step(gradient("%p") + "\n" + line))[1] == 1


@pytest.mark.parametrize(
    "line",
    [
        f"%g = stablehlo.multiply %p, %p : {G}",
        f"%g = stablehlo.tanh %p : {G}",
        f"%g = stablehlo.maximum %p, %p : {G}",
        f"%h = stablehlo.convert %p : ({G}) -> tensor<4x6xbf16>\n%g = stablehlo.convert %h : (tensor<4x6xbf16>) -> {G}",
        # The sum of each microbatch is read.
        f"%h = stablehlo.tanh %p : {G}\n %i = stablehlo.multiply %h, %p : {G}\n %g = stablehlo.add %i, %p : {G}",
    ],
)
def test_what_is_not_linear_is_applied_to_sums(line: str) -> None:
    before = step(gradient("%p") + "\n" + line)
    assert reduced(before) == (str(before), 0)


def test_products_that_no_device_has_alone_stay() -> None:
    before = step(gradient(), x="<@mesh, [{}, {}]>")
    assert reduced(before) == (str(before), 0)


@pytest.mark.parametrize("first", ["%t", "%z"])
def test_the_last_gradient_is_added_to_zeros_of_its_own(first: str) -> None:
    """Where the total is finished, another sum of parts starts from zeros, as they are or in another shape."""
    last = f"""
        %t = stablehlo.transpose %z, dims = [1, 0] : (tensor<6x4xf32>) -> {G}
        %own = stablehlo.add %t, %h : {G}
        %sum = stablehlo.add %s, %own : {G}
        %r = stablehlo.tanh %sum : {G}"""
    if first == "%z":
        last = re.sub(r".*transpose.*\n", "", last).replace("%t,", "%z,")
    zeros = "tensor<6x4xf32>" if first == "%t" else G
    before = parse(f"""{PRELUDE}
    func.func public @main(%in: {on_mesh(X)}, %on: {on_mesh(Y)}) -> {on_mesh(G)} attributes {{topology = #meshes}} {{
      %a:2 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[{ROWS}, {ROWS}],
            out_shardings=[<@mesh, [{{}}, {{}}]>, <@mesh, [{{}}, {{}}]>]> (%in, %on) (%x: {X}, %y: {Y}) {{
        {gradient()}
        %z = stablehlo.constant dense<0.000000e+00> : {zeros}
        mpmd.return %g, %z : {G}, {zeros}
      }} : ({on_mesh(X)}, {on_mesh(Y)}) -> ({on_mesh(G)}, {on_mesh(zeros)})
      %c = mpmd.fragment<mesh="a", origin=["f"],
            in_shardings=[{ROWS}, {ROWS}, <@mesh, [{{}}, {{}}]>, <@mesh, [{{}}, {{}}]>],
            out_shardings=[<@mesh, [{{}}, {{}}]>]> (%in, %on, %a#0, %a#1) (%x: {X}, %y: {Y}, %s: {G}, %z: {zeros}) {{
        {gradient("%h")}
        {last}
        mpmd.return %r : {G}
      }} : ({on_mesh(X)}, {on_mesh(Y)}, {on_mesh(G)}, {on_mesh(zeros)}) -> {on_mesh(G)}
      return %c : {on_mesh(G)}
    }}""")
    assert reduced(before)[1] == 1


def test_a_sharded_gradient_has_whole_parts_on_each_device() -> None:
    """As of a weight that is sharded over the same axis; its other axis stays."""
    text, finished = reduced(step(gradient(axes='{"data"}, {"model"}'), total='<@mesh, [{"data"}, {"model"}]>'))
    assert finished == 1
    assert '<@mesh, [{"data"}, {}, {"model"}]>' in text


def test_parts_that_do_not_fit_stay_in_the_layout_of_the_weight() -> None:
    before = step(gradient(axes='{"data"}, {}'), total='<@mesh, [{"data"}, {}]>')
    assert reduced(before, "{limit=100000}")[1] == 1
    assert reduced(before, "{limit=100}") == (str(before), 0)


def test_one_sum_is_not_put_off() -> None:
    """Only one microbatch adds something."""
    before = parse(f"""{PRELUDE}
    func.func public @main(%in: {on_mesh(X)}, %on: {on_mesh(Y)}) -> {on_mesh(G)} attributes {{topology = #meshes}} {{
      %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[{ROWS}, {ROWS}], out_shardings=[<@mesh, [{{}}, {{}}]>]>
          (%in, %on) {{call_counter = 0 : ui32}} (%x: {X}, %y: {Y}) {{
        {gradient()}
        mpmd.return %g : {G}
      }} : ({on_mesh(X)}, {on_mesh(Y)}) -> {on_mesh(G)}
      %1 = mpmd.fragment<mesh="a", origin=["u"], in_shardings=[<@mesh, [{{}}, {{}}]>],
          out_shardings=[<@mesh, [{{}}, {{}}]>]> (%0) (%s: {G}) {{
        %r = stablehlo.negate %s : {G}
        mpmd.return %r : {G}
      }} : ({on_mesh(G)}) -> {on_mesh(G)}
      return %1 : {on_mesh(G)}
    }}""")
    assert reduced(before) == (str(before), 0)


def test_sums_of_microbatches_that_one_fragment_reads_are_one_reduction_there() -> None:
    """Such as losses that are stacked, and added up at the end."""
    bodies, names = [], [f"%g{m}" for m in range(3)]
    for m in range(3):
        bodies.append(f"""
      %g{m} = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[{ROWS}, {ROWS}],
          out_shardings=[<@mesh, [{{}}, {{}}]>]> (%in, %on) {{call_counter = {m} : ui32}} (%x: {X}, %y: {Y}) {{
        {gradient()}
        mpmd.return %g : {G}
      }} : ({on_mesh(X)}, {on_mesh(Y)}) -> {on_mesh(G)}""")
    replicated = ", ".join(["<@mesh, [{}, {}]>"] * 3)
    text = f"""{PRELUDE}
    func.func public @main(%in: {on_mesh(X)}, %on: {on_mesh(Y)}) -> {on_mesh(G)} attributes {{topology = #meshes}} {{
      {"".join(bodies)}
      %u = mpmd.fragment<mesh="a", origin=["u"], in_shardings=[{replicated}], out_shardings=[<@mesh, [{{}}, {{}}]>]>
          ({", ".join(names)}) (%a: {G}, %b: {G}, %c: {G}) {{
        %d = stablehlo.multiply %a, %b : {G}
        %r = stablehlo.multiply %d, %c : {G}
        mpmd.return %r : {G}
      }} : ({", ".join([on_mesh(G)] * 3)}) -> {on_mesh(G)}
      return %u : {on_mesh(G)}
    }}"""
    after, finished = reduced(parse(text))
    assert finished == 3 and after.index("across dimensions = [0]") > after.index('origin=["u"]')
