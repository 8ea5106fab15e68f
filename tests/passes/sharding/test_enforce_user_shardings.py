"""`mpmd-enforce-user-shardings`."""

from __future__ import annotations

from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from util import check, diagnostics, run

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


LAST = '[{"e"}, {}]'


def sharding(dims: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {dims}>}}"


def test_sub_axes_are_cut_with_a_warning() -> None:
    def program(arg: str, given: str, header: str) -> str:
        return around(
            f"%a: !s {sharding(arg)}",
            f"!s {sharding(given)}",
            f'%f = mpmd.fragment<mesh="s0", origin=["f"]{header}> (%a) (%x: tensor<8x6xf32>) '
            "{ mpmd.return %x : tensor<8x6xf32> } : (!s) -> !s\nreturn %f : !s",
        )

    given = '[{"e", "d":(1)2, ?}, {?}]'
    before = program(given, given, "")
    header = ', in_shardings=[<@mesh, [{"e"}, {?}]>], out_shardings=[<@mesh, [{"e"}, {?}]>]'
    check(before, PASS, program('[{"e"}, {?}]', given, header), MORE)
    succeeded, found = diagnostics(before, PASS, MORE)
    assert succeeded
    assert [d.severity for d in found] == ["warning", "warning"]
    again = before[before.index("func.func") : before.rindex("}")].replace("@main", "@other")
    _, found = diagnostics(before[: before.rindex("}")] + again + "}", PASS, MORE)
    assert [d.severity for d in found] == ["warning", "warning"], "once for all functions"


def test_only_the_last_transfer_of_a_chain_changes() -> None:
    def program(first: str, second: str) -> str:
        return around(
            f"%a: !s {sharding('[{}, {}]')}",
            f"!s {sharding(LAST)}",
            f"%t = mpmd.transfer {first} %a : (!s) -> !t\n%u = mpmd.transfer {second} %t : (!t) -> !s\nreturn %u : !s",
        )

    def given(dims: str) -> str:
        return f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {dims}>]>}}"

    old = given('[{"d"}, {}]')
    check(program(old, old), PASS, program(old, given('[{"e"}, {}]')), MORE)


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
