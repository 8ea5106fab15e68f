"""The bytes of a mesh over the time of a step."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.shardings import mesh_symbols
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.memory.liveness import Change, Liveness

FRAGMENT = """%{0} = mpmd.fragment<mesh="a", origin=["{0}"]> ({1}) ({2}) {{
  %r = stablehlo.negate %x : tensor<4xf32>
  mpmd.return %r : tensor<4xf32>
}} : ({3}) -> !a
"""


def test_a_value_that_is_read_less_often_ends_earlier() -> None:
    one, two = ("%x: tensor<4xf32>", "!a"), ("%x: tensor<4xf32>, %y: tensor<4xf32>", "!a, !a")
    body = FRAGMENT.format("f", "%p", *one) + FRAGMENT.format("g", "%f", *one) + FRAGMENT.format("h", "%g, %f", *two)
    module = parse(
        '!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>\nfunc.func public @main(%p: !a) -> !a attributes '
        f'{{topology = #mpmd.topology<<"a" : <["x"=1]>>>}} {{\n{body}return %h : !a\n}}'
    )
    held = Liveness(module.main, "a", mesh_symbols(module))
    f, _, h = (op for op in module.main.body if isinstance(op, FragmentOp))
    before, after = held.profile(), held.profile([Change(unread=((f.results[0], held.time[h]),))])
    freed = {time for time, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert {a - b for a, b in zip(before, after, strict=True)} == {0.0, 16.0}
    assert freed and min(freed) > held.time[f] and max(freed) <= held.time[h]
    assert held.profile() == before
