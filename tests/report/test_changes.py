"""What a pass did, in things; modules that differ in the order of operands alone."""

from __future__ import annotations

import pytest

from mpmd_trace.ir.text import parse
from mpmd_trace.report.ir_diff import changes, outline
from mpmd_trace_devtools.operand_order import with_sorted_operands

HEAD = """!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
func.func @main(%x: !a, %y: !a) -> !a attributes {topology = #mpmd.topology<<"a" : <["x"=1]>>, <"b" : <["x"=1]>>>} {
"""
F = """%f = mpmd.fragment<mesh="a", origin=["f"]> (%x, %y) {call_counter = 0 : ui32}
  (%p: tensor<4xf32>, %q: tensor<4xf32>) {
    %0 = stablehlo.subtract %p, %q : tensor<4xf32>
    mpmd.return %0 : tensor<4xf32> } : (!a, !a) -> !a
"""
G = """%g = mpmd.fragment<mesh="a", origin=["g"]> (%f) {call_counter = 0 : ui32} (%p: tensor<4xf32>) {
    mpmd.return %p : tensor<4xf32> } : (!a) -> !a
"""
END = "return %g : !a }"
BOTH = F.replace("%f =", "%g =").replace('["f"]', '["f", "g"]')
G_ON_B = (
    "%t = mpmd.transfer %f : (!a) -> !b\n"
    + G.replace("%g =", "%u =").replace('"a"', '"b"').replace("(%f)", "(%t)").replace("(!a) -> !a", "(!b) -> !b")
    + "%g = mpmd.transfer %u : (!b) -> !a\n"
)
G_TWICE = G.replace("%g =", "%h =") + G.replace("(%f)", "(%h)")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (F + G, F + G, ["no difference in fragments or transfers: see the text"]),
        (F + G, BOTH, ["merged: 1", "  f, g #0 on a"]),
        (F + G, F + G_ON_B, ["+1 transfers a -> b", "+1 transfers b -> a", "moved: 1", "  g #0 on b"]),
        (F + G, F + G_TWICE, ["split: 2", "  g #0 on a", "  g #0 on a"]),
        (F + G, F.replace("%f =", "%g ="), ["gone: 1", "  g #0 on a"]),
        (F.replace("%f =", "%g ="), F + G, ["new: 1", "  g #0 on a"]),
        (F + G, F.replace("subtract", "add") + G, ["bodies changed on 1 fragments"]),
        (F + G, F + G.replace("{call", "{mine = 1, call"), ["mine set on 1 fragments"]),
        (F + G.replace("(%f)", "(%x)"), G.replace("(%f)", "(%x)") + F, ["the same fragments in another order"]),
        (
            F + G,
            F + G.replace(" {call_counter = 0 : ui32}", ""),
            ["no difference in fragments or transfers: see the text"],
        ),
    ],
)
def test_what_is_told(before: str, after: str, told: list[str]) -> None:
    a, b = (outline(parse(HEAD + text + END)) for text in (before, after))
    assert changes(a, b).text().splitlines() == told


def test_the_order_of_operands() -> None:
    other = F.replace("(%x, %y)", "(%y, %x)").replace("(%p: tensor<4xf32>, %q:", "(%q: tensor<4xf32>, %p:")
    a, b, c = (parse(HEAD + text + G + END) for text in (F, other, F.replace("%p, %q :", "%q, %p :")))
    assert str(a) != str(b) and str(with_sorted_operands(a)) == str(with_sorted_operands(b)) == str(a)
    assert str(with_sorted_operands(c)) == str(c) != str(a)
