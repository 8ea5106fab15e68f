"""`mpmd-extract-reshards-from-inter-mesh-transfers`."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from util import check, diagnostics, run

PASS = "mpmd-extract-reshards-from-inter-mesh-transfers"
PRELUDE = """
!a = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>
!b = !mpmd.mesh_tensor<"s1", tensor<8x6xf32>>
sdy.mesh @mesh = <["d"=2]>
"""


def around(body: str, signature: str = "%p: !a", results: str = "!b", second: str = '["d"=2, "e"=2]') -> str:
    return f"""
!h = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>, memory_kind="pinned_host">
!k = !mpmd.mesh_tensor<"s1", tensor<8x6xf32>, memory_kind="pinned_host">
module {{
  sdy.mesh @mesh2 = <["d"=2, "e"=2]>
  func.func public @main({signature}) -> ({results})
      attributes {{topology = #mpmd.topology<<"s0" : <["d"=2, "e"=2]>>, <"s1" : <{second}>>>}} {{
    {body}
  }}
}}
"""


TYPES = "\n".join(PRELUDE.splitlines()[:3])
D = '<@mesh2, [{"d"}, {}]>'
E = '<@mesh2, [{}, {"e"}]>'
DE = '<@mesh2, [{"d", "e"}, {}]>'
UNREDUCED = '<@mesh2, [{}, {}], unreduced={"d"}>'


def given(sharding: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding_per_value<[{sharding}]>}}"


def arg(sharding: str) -> str:
    return f"%p: !a {{sdy.sharding = #sdy.sharding{sharding}}}"


def identity(result: str, operand: str, mesh: str, sharding: str) -> str:
    kind = "!a" if mesh == "s0" else "!b"
    return (
        f'{result} = mpmd.fragment<mesh="{mesh}", origin=[], out_shardings=[{sharding}]> ({operand}) '
        f'{{mpmd.inferred_by = ["extract_reshards"]}} (%x: tensor<8x6xf32>) '
        f"{{ mpmd.return %x : tensor<8x6xf32> }} : ({kind}) -> {kind}\n"
    )


def test_a_larger_argument_is_resharded_at_the_producer() -> None:
    end = "return %t : !b"
    check(
        around(f"%t = mpmd.transfer {given(DE)} %p : (!a) -> !b\n{end}", arg(D)),
        PASS,
        around(identity("%r", "%p", "s0", DE) + f"%t = mpmd.transfer {given(DE)} %r : (!a) -> !b\n{end}", arg(D)),
        TYPES,
    )


def test_a_fragment_that_makes_the_value_reshards_itself() -> None:
    def program(out: str, before_transfer: str = "", returned: str = "%f") -> str:
        return around(
            f'%f = mpmd.fragment<mesh="s0", origin=["f"], out_shardings=[{out}]> (%p) (%x: tensor<8x6xf32>) '
            "{ mpmd.return %x : tensor<8x6xf32> } : (!a) -> !a\n"
            f"{before_transfer}%t = mpmd.transfer {given(DE)} %f : (!a) -> !b\nreturn %t, {returned} : !b, "
            f"!a",
            results="!b, !a",
        )

    check(program(D), PASS, program(DE, identity("%r", "%f", "s0", D), "%r"), TYPES)


def test_different_meshes_are_left_alone() -> None:
    text = around(f"%t = mpmd.transfer {given(E)} %p : (!a) -> !b\nreturn %t : !b", arg(D), second='["d"=4]')
    check(text, PASS, text, TYPES)


def test_replicated_and_absent_are_the_same() -> None:
    text = around(f"%t = mpmd.transfer {given('<@mesh2, [{}, {?}]>')} %p : (!a) -> !b\nreturn %t : !b")
    check(text, PASS, text, TYPES)


def test_host_to_host_is_an_error_but_no_failure() -> None:
    text = around(f"%t = mpmd.transfer {given(E)} %p : (!h) -> !k\nreturn %t : !k", "%p: !h", "!k")
    succeeded, found = diagnostics(text, PASS, TYPES)
    assert succeeded
    assert [d.severity for d in found] == ["error"]


def test_resharding_warns_once() -> None:
    body = (
        f"%t = mpmd.transfer {given(E)} %p : (!a) -> !b\n%u = mpmd.transfer {given(E)} %p : (!a) -> !b\n"
        "return %t, %u : !b, !b"
    )
    succeeded, found = diagnostics(around(body, arg(D), "!b, !b"), PASS, TYPES)
    assert succeeded
    assert [d.severity for d in found] == ["warning"]
    one = around(body, arg(D), "!b, !b")
    end = one.rindex("}")
    both = one[:end] + one[one.index("func.func") : end].replace("@main", "@other") + "}"
    _, found = diagnostics(both, PASS, TYPES)
    assert [d.severity for d in found] == ["warning"], "once for all functions"


def test_what_becomes_unreduced_is_resharded() -> None:
    """An absent sharding is the same as no axes and no unreduced axes; the reference overlooks the latter."""
    for source, target in (("", UNREDUCED), (UNREDUCED, "")):
        argument = arg(source) if source else "%p: !a"
        attributes = given(target) if target else ""
        text = around(f"%t = mpmd.transfer {attributes} %p : (!a) -> !b\nreturn %t : !b", argument)
        module = run(text, PASS, TYPES)
        assert [op.origin for op in module.walk() if isinstance(op, FragmentOp)] == [()]
