# ruff: noqa: E501
"""`mpmd-rule-based-merge`."""

from __future__ import annotations

import dataclasses

import pytest
from fragment_texts import frag, function

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.control_dependencies import CONTROL_START, add_control_dependency
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule
from mpmd_trace.passes.manager import run_passes
from util import PRELUDE, check, diagnostics, refusal, run


def info(name: str, counter: int | None = 0, mesh: str = "alpha", stage: int | None = None) -> FragmentInfo:
    return FragmentInfo(((name, 0),), stage, counter, None, mesh)


def pipeline(*rules: MergeRule, options: str = "") -> str:
    return f"mpmd-rule-based-merge{{rules={','.join(map(str, rules))}{options}}}"


RULE = MergeRule((info("f"), info("g")), FragmentInfo((("f", 0), ("g", 0)), 1, 0, None, "alpha"))
ZERO = "{call_counter = 0 : ui32}"


def test_label_and_order_of_a_pair_with_a_bystander() -> None:
    """The target overwrites the label; what does not wait for the group comes before it."""
    rule = MergeRule((info("f", mesh="s0"), info("h", mesh="s0")), info("fh", 7, mesh="s0", stage=3))
    check(
        """
func.func public @main(%a: !s, %b: !s) -> (!s, !s, !s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%a) {call_counter = 0 : ui32} (%x: tensor<4xf32>) { %y = stablehlo.add %x, %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  %g = mpmd.fragment<mesh="s0", origin=["g"]> (%b) {call_counter = 0 : ui32} (%x: tensor<4xf32>) { %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  %h = mpmd.fragment<mesh="s0", origin=["h"]> (%f, %g) {call_counter = 0 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) { %y = stablehlo.multiply %x, %z : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s, !s) -> !s
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%a) {call_counter = 0 : ui32} (%x: tensor<4xf32>) { %y = stablehlo.cosine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  return %f, %h, %k : !s, !s, !s
}
""",
        pipeline(rule),
        """
func.func public @main(%a: !s, %b: !s) -> (!s, !s, !s) attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
  %g = mpmd.fragment<mesh="s0", origin=["g"]> (%b) {call_counter = 0 : ui32} (%x: tensor<4xf32>) { %y = stablehlo.sine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  %k = mpmd.fragment<mesh="s0", origin=["k"]> (%a) {call_counter = 0 : ui32} (%x: tensor<4xf32>) { %y = stablehlo.cosine %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> } : (!s) -> !s
  %m:2 = mpmd.fragment<mesh="s0", origin=["fh"], stage=3> (%a, %g) {call_counter = 7 : ui32} (%x: tensor<4xf32>, %z: tensor<4xf32>) {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    %w = stablehlo.multiply %y, %z : tensor<4xf32>
    mpmd.return %y, %w : tensor<4xf32>, tensor<4xf32>
  } : (!s, !s) -> (!s, !s)
  return %m#0, %m#1, %k : !s, !s, !s
}
""",
        '!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>\n',
    )


def test_three_members_and_a_rule_that_takes_the_result() -> None:
    """A target can be a source of another rule; a missing member does not matter."""
    first = MergeRule((info("f"), info("g"), info("missing")), info("fg"))
    second = MergeRule((info("fg"), info("h")), info("all", None))
    body = "\n".join(
        f"  %{i} = " + frag("alpha", f'"{name}"', "%p", attrs="{call_counter = 0 : ui32, remat}")
        for i, name in enumerate("fgh")
    )
    module = run(function(body, "%0, %1, %2", "!A, !A, !A"), pipeline(first, second))
    (fragment,) = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert FragmentInfo.of(fragment) == info("all", None)
    assert not fragment.attrs


def test_unsorted_sources_and_sources_without_mesh_match_nothing() -> None:
    """The info of a fragment has sorted origins and a mesh."""
    body = (
        "  %0 = " + frag("alpha", '"g", "f"', "%p", attrs=ZERO) + "\n  %1 = " + frag("alpha", '"h"', "%p", attrs=ZERO)
    )
    text = function(body, "%0, %1", "!A, !A")
    unsorted = FragmentInfo((("g", 0), ("f", 0)), None, 0, None, "alpha")
    check(text, pipeline(MergeRule((unsorted, info("h")), info("x"))), text)
    check(text, pipeline(MergeRule((info("f", mesh=""), info("h")), info("x"))), text)
    in_order = FragmentInfo((("f", 0), ("g", 0)), None, 0, None, "alpha")
    module = run(text, pipeline(MergeRule((in_order, info("h")), info("x"))))
    assert str(module).count("mpmd.fragment") == 1


def test_one_fragment_in_two_rules() -> None:
    """A source may occur once."""
    assert "already part of another merge rule" in refusal(
        function("", "%p", "!A"), pipeline(RULE, MergeRule((info("f"),), info("x")))
    )


@pytest.mark.parametrize("keep", [False, True])
def test_control_operands(keep: bool) -> None:
    """They order the groups and are taken out at the end, also when the pair could take the short way."""
    body = (
        "  %0 = "
        + frag("alpha", '"f"', "%p", attrs=ZERO)
        + "\n  %1 = "
        + frag("alpha", '"h"', "%p", attrs=ZERO)
        + "\n  %2 = "
        + frag("alpha", '"g"', "%0", attrs=ZERO)
    )
    module = parse(PRELUDE + function(body, "%1, %2", "!A, !A"))
    _, second, third = [op for op in module.main.body if isinstance(op, FragmentOp)]
    add_control_dependency(second, third)
    run_passes(module, pipeline(RULE, options=f" remove-control-dependencies={str(not keep).lower()}"))
    merged = module.main.body.ops[1]
    assert isinstance(merged, FragmentOp) and len(merged.origin) == 2
    assert (CONTROL_START in merged.attrs) == keep
    assert merged.num_operands == len(merged.body.block.args) + keep


def test_members_that_wait_for_each_other_stay(caplog: pytest.LogCaptureFixture) -> None:
    first = f"  %0 = {frag('alpha', chr(34) + 'f' + chr(34), '%p', attrs=ZERO)}"
    second = f"  %1 = {frag('alpha', chr(34) + 'g' + chr(34), '%0', attrs=ZERO)}"
    module = parse(PRELUDE + function(f"{first}\n{second}", "%1", "!A"))
    f, g = (op for op in module.main.body if isinstance(op, FragmentOp))
    add_control_dependency(g, f)
    with pytest.raises(MpmdError, match="Cycle detected"):
        run_passes(module, pipeline(RULE))
    assert "depend on each other in a cycle" in caplog.text


def test_fragments_in_loops_take_no_part() -> None:
    """A fragment in a loop runs several times, so it is not merged with one that runs once."""
    outer = f"  %0 = {frag('alpha', chr(34) + 'f' + chr(34), '%p', attrs=ZERO)}"
    loop = f"""  %l = mpmd.for (%0) {{iterations = 2 : ui32, unroll_factor = 2 : ui32}} (%a: !A, %i: tensor<ui32>) {{
    %1 = {frag("alpha", '"g"', "%a", attrs=ZERO)}
    mpmd.return %1 : !A
  }} : !A"""
    text = function(f"{outer}\n{loop}", "%l", "!A")
    check(text, pipeline(RULE), text)


@pytest.mark.parametrize("mesh", ["", "beta"])
def test_target_on_another_mesh(mesh: str) -> None:
    """A fragment cannot be relabeled to another mesh, nor to none."""
    first = f"  %0 = {frag('alpha', chr(34) + 'f' + chr(34), '%p', attrs=ZERO)}"
    second = f"  %1 = {frag('alpha', chr(34) + 'g' + chr(34), '%0', attrs=ZERO)}"
    target = FragmentInfo((("t", 0),), mesh_name=mesh)
    rule = MergeRule(RULE.sources, target)
    ok, found = diagnostics(function(f"{first}\n{second}", "%1", "!A"), pipeline(rule))
    assert not ok
    (error,) = found
    assert 'write mesh_name="alpha" in the target' in error.message
    assert ("names no mesh" in error.message) == (not mesh)
    named = MergeRule(RULE.sources, dataclasses.replace(target, mesh_name="alpha"))
    assert diagnostics(function(f"{first}\n{second}", "%1", "!A"), pipeline(named)) == (True, [])
