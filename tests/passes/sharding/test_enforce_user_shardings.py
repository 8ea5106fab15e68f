"""`mpmd-enforce-user-shardings`."""

from __future__ import annotations

from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from util import run

PASS = "mpmd-enforce-user-shardings"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>
sdy.mesh @mesh = <["d"=2]>
"""


def around(signature: str, results: str, body: str) -> str:
    return f"""
module {{
  sdy.mesh @mesh = <["d"=4, "e"=2]>
  func.func public @main({signature}) -> ({results})
      attributes {{topology = #mpmd.topology<<"s0" : <["d"=4, "e"=2]>>, <"s1" : <["d"=4, "e"=2]>>>}} {{
    {body}
  }}
}}
"""


MORE = PRELUDE.splitlines()[1] + '\n!t = !mpmd.mesh_tensor<"s1", tensor<8x6xf32>>\n'


def sharding(dims: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {dims}>}}"


def test_a_new_list_says_nothing_about_the_other_operands() -> None:
    """They keep types without sharding, while a list that exists types them."""
    body = (
        '%f = mpmd.fragment<mesh="s0", origin=["f"]> (%a, %b) (%x: tensor<8x6xf32>, %y: tensor<8x6xf32>) '
        "{ mpmd.return %x : tensor<8x6xf32> } : (!s, !s) -> !s\nreturn %f : !s"
    )
    text = around(f"%a: !s {sharding('[{}, {}]')}, %b: !s", "!s", body)
    module = run(text, [PASS], MORE)
    assert "in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{?}, {?}]>]" in str(module)
    assert "mpmd.unset_in_shardings = array<i64: 1>" in str(module)
    for again in (module, parse(str(module))):
        run_passes(again, "mpmd-convert-sdy-shardings-to-mpmd-types")
        first, second = again.main.type.inputs
        assert "sharding=<@mesh, [{}, {}]>" in first.text
        assert "sharding" not in second.text
        assert "unset" not in str(again)
