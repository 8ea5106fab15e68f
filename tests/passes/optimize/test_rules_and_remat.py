"""`mpmd-rule-based-schedule`, `mpmd-remat-fragment` and the optimize pipeline."""

from __future__ import annotations

import pytest
from tests.passes.optimize.pipeline_programs import orders, pipeline

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning

S = '!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>\n'
SIGNATURE = 'attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>}'


def fragment(name: str, label: str, operand: str, attributes: str = "", op: str = "sine") -> str:
    return (
        f'  %{name} = mpmd.fragment<mesh="s0", origin=[{label}]> ({operand}) {attributes} '
        f"(%x: tensor<4xf32>) {{ %y = stablehlo.{op} %x : tensor<4xf32> mpmd.return %y : tensor<4xf32> }} "
        ": (!s) -> !s\n"
    )


THREE = (
    f"func.func public @main(%p: !s) -> (!s, !s, !s) {SIGNATURE} {{\n"
    + fragment("k", '"k"', "%p")
    + fragment("j", '"j"', "%p", op="cosine")
    + fragment("i", '"i"', "%p", op="tanh")
    + "  return %k, %j, %i : !s, !s, !s\n}"
)


def info(name: str) -> str:
    return f'FragmentInfo(origins=["{name}"],mesh_name="s0")'


def rule(*names: str) -> str:
    return f"FragmentScheduleRule(ordered_fragments=[{'->'.join(map(info, names))}])"


def test_a_rule_against_the_data_flow_is_skipped_with_the_path(caplog: pytest.LogCaptureFixture) -> None:
    text = (
        f"func.func public @main(%p: !s) -> !s {SIGNATURE} {{\n"
        + fragment("a", '"a"', "%p")
        + fragment("b", '"b"', "%a")
        + "  return %b : !s\n}"
    )
    module = parse(S + text)
    before = module.to_generic()
    run_passes(module, f"mpmd-rule-based-schedule{{rules={rule('b', 'a')}}}")
    assert module.to_generic() == before
    assert "the data flow is the other way round" in caplog.text
    assert info("a") in caplog.text


def test_nothing_waits_for_a_fragment_without_results(caplog: pytest.LogCaptureFixture) -> None:
    effect = (
        '  mpmd.fragment<mesh="s0", origin=["e"]> (%p) (%x: tensor<4xf32>) {\n'
        "    %y = stablehlo.custom_call @tell(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>\n"
        "    mpmd.return\n  } : (!s) -> ()\n"
    )
    body = fragment("a", '"a"', "%p") + effect + "  return %a : !s"
    text = f"func.func public @main(%p: !s) -> !s {SIGNATURE} {{\n{body}\n}}"
    module = parse(S + text)
    before = module.to_generic()
    run_passes(module, f"mpmd-rule-based-schedule{{rules={rule('e', 'a')}}}")
    assert module.to_generic() == before
    assert f"{info('e')} has no result, so nothing can wait for it" in caplog.text


def test_two_fragments_of_one_name_are_an_error() -> None:
    text = THREE.replace('"j"', '"k"')
    with pytest.raises(MpmdError, match=r"two fragments are called .* \(-:\d+:\d+ and -:\d+:\d+\)") as caught:
        run_passes(parse(S + text), f"mpmd-rule-based-schedule{{rules={rule('i', 'k')}}}")
    assert not caught.value.diagnostics[0].notes  # -verify-diagnostics counts notes, and the reference has none


def test_every_fragment_that_repeats_a_name_is_an_error_in_every_function() -> None:
    one = THREE.replace('"j"', '"k"').replace('"i"', '"k"')
    with pytest.raises(MpmdError) as caught:
        run_passes(parse(S + one + one.replace("@main", "@other")), "mpmd-rule-based-schedule")
    named = [d.message.partition(" (")[0] for d in caught.value.diagnostics]
    assert named == [f"two fragments are called {info('k')}"] * 4
    lines = [d.location.file[1] for d in caught.value.diagnostics if d.location.file is not None]
    assert lines[0] == lines[1] < lines[2] == lines[3]


def test_rules_can_leave_control_operands() -> None:
    module = parse(S + THREE)
    run_passes(module, f"mpmd-rule-based-schedule{{rules={rule('i', 'k')} remove-control-dependencies=false}}")
    marked = [op.origin[0].name for op in module.main.body if "mpmd.control_operand_start_idx" in op.attrs]
    assert marked == ["k"]


ONE = "{call_counter = 1 : ui32}"
REMAT_BEFORE = (
    f"func.func public @main(%a: !s) -> (!s, !s) {SIGNATURE} {{\n"
    + fragment("f", '"enc"', "%a", ONE)
    + fragment("g", '"dec"', "%a", ONE, "cosine")
    + '  %b = mpmd.fragment<mesh="s0", origin=["enc"(1)]> (%g, %f) {call_counter = 1 : ui32} '
    "(%x: tensor<4xf32>, %z: tensor<4xf32>) { %y = stablehlo.multiply %x, %z : tensor<4xf32> "
    "mpmd.return %y : tensor<4xf32> } : (!s, !s) -> !s\n"
    "  return %b, %g : !s, !s\n}"
)


def test_remat_shares_the_body_it_copies() -> None:
    before = parse(S + REMAT_BEFORE)
    module = run_passes(before.clone(), "mpmd-remat-fragment")
    assert_same_meaning(before, module)
    bodies = [op.body for op in module.main.body if isinstance(op, FragmentOp) and op.origin[0].name == "dec"]
    assert len(bodies) == 2 and bodies[0] is bodies[1]


def test_the_textual_pipeline_knows_three_schedules() -> None:
    module = parse(pipeline(2, 3))
    run_passes(module, "mpmd-optimize-pipeline{pipeline-schedule=1F1B}")
    assert orders(module)["m0"] == "F0 F1 B0 F2 B1 B2"
    with pytest.raises(MpmdError, match="is one of none, 1F1B, Circular"):
        run_passes(parse(pipeline(1, 1)), "mpmd-optimize-pipeline{pipeline-schedule=GPipe}")
