"""`mpmd-lower-to-fragment-calls`."""

from __future__ import annotations

import logging

import pytest

from mpmd_trace.ir.attributes import UNIT
from mpmd_trace.ir.ops import FragmentCallOp
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace.passes.dedup_bodies import share_equal_bodies
from mpmd_trace.passes.export.lower_to_fragment_calls import LowerToFragmentCalls
from mpmd_trace.passes.manager import run_passes
from util import refusal, run

PASS = "mpmd-lower-to-fragment-calls"


def fragment(name: str, origin: str, *, attrs: str = "", stage: str = "", op: str = "sine", mesh: str = "s0") -> str:
    kind = "!t" if mesh == "s0" else "!u"
    operand = "%p" if mesh == "s0" else "%q"
    return (
        f'{name} = mpmd.fragment<mesh="{mesh}", origin=[{origin}]{stage}> ({operand}) {{{attrs}}} '
        f"(%x: tensor<4xf32>) {{ %y = stablehlo.{op} %x : tensor<4xf32> "
        f"mpmd.return %y : tensor<4xf32> }} : ({kind}) -> {kind}\n"
    )


def program(fragments: str, module: str = "") -> str:
    return f"""
!t = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!u = !mpmd.mesh_tensor<"s1", tensor<4xf32>>
module {module} {{
  func.func public @main(%p: !t, %q: !u) -> ()
      attributes {{topology = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>}} {{
    {fragments}
    return
  }}
}}
"""


def names(fragments: str, module: str = "") -> list[str]:
    """The function that each fragment calls."""
    lowered = run(program(fragments, module), PASS, "")
    return [op.callee for op in lowered.main.body if isinstance(op, FragmentCallOp)]


OPS = ["sine", "cosine", "tanh", "negate", "abs", "exponential"]


@pytest.mark.parametrize(
    ("module", "members", "expected"),
    [
        (
            "",
            [
                ('"f_007"', "", ""),
                ('"f_-3"', "call_counter = 1 : ui32", ""),
                ('"f_"', "call_counter = 0 : ui32", ""),
                ('"a_b_1", "a_b_3"', "", ""),
                ('"z", "y", "y"', "", ""),
                ('"k"', "call_counter = 2 : ui32", ", stage=5"),
            ],
            [
                "p0_f_7.main",
                "p1_f_-3_call1.main",
                "p2_f__call0.main",
                "p3_a_b_1:3.main",
                "p4_y....main",
                "p5_stage5_call2.main",
            ],
        ),
        (
            "@jit_jit_x",
            [
                ('"f_1"(1), "f_2"(1)', "", ""),
                ('"q"', "", ""),
                ('"g"(3)', "call_counter = 0 : ui32", ", stage=4"),
                ('"a"(1), "b"', "call_counter = 7 : ui32", ""),
            ],
            ["p0_f_2:1_bwd.jit_x", "p1_q_fwd.jit_x", "p2_stage4_transpose3_call0.jit_x", "p3_a..._fwd_bwd_call7.jit_x"],
        ),
        ("", [("", 'mpmd.inferred_by = ["uniquify"]', "")], ["p0_inferred.main"]),
        # What 64 bits cannot hold is no number, but part of the name; nor is one with a plus.
        (
            "",
            [
                ('"f_2", "f_9223372036854775807"', "", ""),
                ('"f_2", "f_9223372036854775808"', "", ""),
                ('"f_2", "f_+3"', "", ""),
            ],
            ["p0_f_2:9223372036854775807.main", "p1_f_2....main", "p2_f_2....main"],
        ),
    ],
)
def test_names(module: str, members: list[tuple[str, str, str]], expected: list[str]) -> None:
    text = "".join(
        fragment(f"%f{i}", origin, attrs=attrs, stage=stage, op=OPS[i])
        for i, (origin, attrs, stage) in enumerate(members)
    )
    assert names(text, module) == expected


@pytest.mark.parametrize(
    ("counters", "suffix"),
    [([0, 1, 2], "_calls0to2"), ([2, 1, 0], "_calls2from0"), ([0, 2], ""), ([1, 1], ""), ([0, None], "")],
)
def test_counters_of_a_shared_function(counters: list[int | None], suffix: str) -> None:
    text = "".join(
        fragment(f"%f{i}", '"f"', attrs="" if c is None else f"call_counter = {c} : ui32")
        for i, c in enumerate(counters)
    )
    assert names(text) == [f"p0_f{suffix}.main"] * len(counters)


def test_different_names_in_a_group_keep_the_first_without_counters() -> None:
    text = fragment("%f", '"f"', attrs="call_counter = 0 : ui32") + fragment(
        "%g", '"g"', attrs="call_counter = 1 : ui32"
    )
    assert names(text) == ["p0_f.main", "p0_f.main"]


def test_long_names_are_cut() -> None:
    (name,) = names(fragment("%f", f'"{"n" * 300}"'))
    assert name == "p0_" + "n" * 192 + "<...>.main"


@pytest.mark.parametrize(
    "second",
    [
        fragment("%g", '"f"', mesh="s1"),
        fragment("%g", '"f"', op="cosine"),
        fragment("%g", '"f"', attrs="arg_attrs = [{}]"),
        fragment("%g", '"f"', attrs="res_attrs = [{a = 1 : i32}]"),
    ],
)
def test_what_keeps_fragments_apart(second: str) -> None:
    assert len(set(names(fragment("%f", '"f"') + second))) == 2


def test_reserved_bytes_are_the_largest_and_absent_ones_do_not_count() -> None:
    text = fragment("%f", '"f"', attrs="reserved_hbm_bytes = 16 : i64") + fragment("%g", '"f"')
    function = run(program(text), PASS, "").functions[-1]
    assert function.attrs["reserved_hbm_bytes"].text == "16 : i64"
    assert "reserved_hbm_bytes" not in run(program(fragment("%f", '"f"')), PASS, "").functions[-1].attrs


def test_order_of_operands_and_results_matters() -> None:
    def two(name: str, operands: str, returned: str) -> str:
        return (
            f'%{name}:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p, %p) '
            f"(%x: tensor<4xf32>, %z: tensor<4xf32>) {{ %y = stablehlo.add {operands} : tensor<4xf32> "
            f"mpmd.return {returned} : tensor<4xf32>, tensor<4xf32> }} : (!t, !t) -> (!t, !t)\n"
        )

    text = two("a", "%x, %z", "%y, %x") + two("b", "%x, %z", "%y, %z") + two("c", "%z, %x", "%y, %x")
    assert len(set(names(text))) == 3


def test_different_shardings_get_different_functions() -> None:
    """The reference shares the function of the first; we do not, because its shardings would be wrong."""
    text = """
!a = !mpmd.mesh_tensor<"s0", tensor<4xf32>, sharding=<@mesh, [{"d"}]>>
!b = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!c = !mpmd.mesh_tensor<"s0", tensor<4xf32>, sharding=<@mesh, [{}]>>
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !a, %q: !b, %r: !c) -> (!a, !b, !c)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
      mpmd.return %x : tensor<4xf32> } : (!a) -> !a
    %g = mpmd.fragment<mesh="s0", origin=["f"]> (%q) (%x: tensor<4xf32>) {
      mpmd.return %x : tensor<4xf32> } : (!b) -> !b
    %h = mpmd.fragment<mesh="s0", origin=["f"]> (%r) (%x: tensor<4xf32>) {
      mpmd.return %x : tensor<4xf32> } : (!c) -> !c
    return %f, %g, %h : !a, !b, !c
  }
}
"""
    calls = [op.callee for op in run(text, PASS, "").main.body if isinstance(op, FragmentCallOp)]
    assert calls == ["p0_f.main", "p1_f.main", "p1_f.main"]


MANUAL = """
!a = !mpmd.mesh_tensor<"s0", tensor<8xf32>>
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !a) -> !a attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<8xf32>) {
      %c = sdy.sharding_constraint %x <@mesh, [{}]> : tensor<8xf32>
      %m = sdy.manual_computation(%c) in_shardings=[<@mesh, [{"d"}]>] out_shardings=[<@mesh, [{"d"}]>]
          manual_axes={"d"} (%y: tensor<4xf32>) {
        %z = stablehlo.sine %y {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : tensor<4xf32>
        sdy.return %z : tensor<4xf32>
      } : (tensor<8xf32>) -> tensor<8xf32>
      mpmd.return %m : tensor<8xf32>
    } : (!a) -> !a
    return %f : !a
  }
}
"""


def test_manual_computations_name_the_mesh_of_the_fragment() -> None:
    lowered = str(run(MANUAL, PASS, ""))
    assert lowered.index('sdy.mesh @s0 = <["d"=2]>') < lowered.index("sdy.mesh @mesh")
    assert 'in_shardings=[<@s0, [{"d"}]>] out_shardings=[<@s0, [{"d"}]>]' in lowered
    assert "sdy.sharding_per_value<[<@s0, [{}]>]>" in lowered
    assert "sdy.sharding_constraint %arg0 <@mesh, [{}]>" in lowered


def test_functions_with_manual_computations_share_no_body() -> None:
    """They speak of their mesh."""
    module = parse(MANUAL)
    run_passes(module, [LowerToFragmentCalls(alias_bodies=True)])
    assert str(module) == str(run(MANUAL, PASS, ""))
    assert not module.functions[1].regions[0].frozen


def test_functions_of_one_body_may_share_it() -> None:
    text = program(fragment("%f", '"f"') + fragment("%g", '"g"', mesh="s1"))
    apart, shared = parse(text), parse(text)
    for module, shares in ((apart, False), (shared, True)):
        share_equal_bodies(module.functions)
        run_passes(module, [LowerToFragmentCalls(alias_bodies=shares)])
        assert not verify(module)
    assert apart.to_generic(debug_info=True) == shared.to_generic(debug_info=True)
    assert [f.regions[0].frozen for f in apart.functions] == [False] * len(apart.functions)
    _, one, other = (f.regions[0] for f in shared.functions)
    assert one is other and one.frozen
    own = [f.regions[0] for f in shared.clone().functions]
    assert len({id(region) for region in own}) == 3 and not any(region.frozen for region in own)
    run_passes(shared, "mpmd-cse")  # a pass that follows finds functions that it may change
    assert not any(f.regions[0].frozen for f in shared.functions)


def test_a_taken_name_is_an_error() -> None:
    text = program(fragment("%f", '"f"')).replace("module  {", "module {\n func.func private @p0_f.main() { return }\n")
    assert "@p0_f.main" in refusal(text, PASS, "")


def test_equal_bodies_of_many_microbatches_are_compared_by_identity() -> None:
    """Fragments that share one body object and those with equal ones end in one group."""
    text = "".join(fragment(f"%f{i}", '"f"') for i in range(4))
    assert set(names(text)) == {"p0_f.main"}


def test_the_mark_of_a_recomputation_is_a_unit_whatever_it_was() -> None:
    lowered = run(program(fragment("%a", '"f"', attrs='remat = "x", split_keep_transferred')), PASS, "")
    (call,) = [op for op in lowered.main.body if isinstance(op, FragmentCallOp)]
    assert call.attrs == {"remat": UNIT}


def test_sharing_across_shardings_on_request() -> None:
    text = """
!a = !mpmd.mesh_tensor<"s0", tensor<4xf32>, sharding=<@mesh, [{"d"}]>>
!b = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
module {
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%p: !a) -> (!a, !b) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
      mpmd.return %x : tensor<4xf32> } : (!a) -> !a
    %g = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
      mpmd.return %x : tensor<4xf32> } : (!a) -> !b
    return %f, %g : !a, !b
  }
}
"""
    assert len(run(text, PASS, "").functions) == 3
    assert len(run(text, PASS + "{share-across-shardings=true}", "").functions) == 2


def test_verbose_logging_says_what_each_mesh_runs(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    text = """
module @jit_step {
  func.func public @main(%p: !a, %q: !b) -> (!a, !a, !b) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>, <"s1" : <["d"=2]>>>} {
    %a = mpmd.fragment<mesh="s0", origin=["f", "g"(1)], stage=2> (%p) {call_counter = 3 : ui32} (%x: tensor<4xf32>) {
      %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!a) -> !a
    %b = mpmd.fragment<mesh="s1", origin=[]> (%q) (%x: tensor<4xf32>) {
      %y = stablehlo.cosine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!b) -> !b
    %c = mpmd.fragment<mesh="s0", origin=["h"(1)]> (%a) (%x: tensor<4xf32>) {
      %y = stablehlo.tanh %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!a) -> !a
    return %a, %c, %b : !a, !a, !b
  }
}
"""  # noqa: E501 (MLIR text)
    types = '!a = !mpmd.mesh_tensor<"s0", tensor<4xf32>>\n!b = !mpmd.mesh_tensor<"s1", tensor<4xf32>>\n'
    said = """\
Module jit_step on mesh s0 will execute the following XLA programs:
  p0_stage2_fwd_bwd_call3.step origins=["f", "g"(1)] stage=2 call_counter=3
  p2_h_bwd.step origins=["h"(1)] stage=none call_counter=none
Module jit_step on mesh s1 will execute the following XLA programs:
  p1_inferred.step origins=[] stage=none call_counter=none
"""
    run(text, PASS, types)
    assert capsys.readouterr().err == ""
    run(text, f"{PASS}{{verbose-logging=true}}", types)
    assert capsys.readouterr().err == said
    with caplog.at_level(logging.INFO, "mpmd_trace"):
        run(text, f"{PASS}{{verbose-logging=true}}", types)
    assert caplog.messages == said.splitlines()
    assert capsys.readouterr().err == ""
