"""Execution plans: order, lifetimes, donation, text."""

# ruff: noqa: E501  (MLIR text)

from __future__ import annotations

import pickle
from typing import Any

import pytest
from exported import PIPELINE

from mpmd_trace.backend import plan as plans
from mpmd_trace.backend.plan import Free, Run, Transfer
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse

TEXT = """\
plan jit_step: 2 meshes, 3 programs, 3 runs, 1 transfers
mesh a <["x"=2]>
mesh b <["x"=2]>
program p0 on a = p0_f.step
program p1 on a = p2_inferred.step donates 0
program p2 on b = p1_g.step donates 0
%0 = argument on a : f32[4,8]{{"x"}, {}} x
%1 = argument on a : f32[8,8] params['w'] donated
%2 = argument on b : f32[8,8] params['v']
%3 = run p0 on a (%0, %1) : f32[4,8]{{"x"}, {}}  # f
free %0
%4 = transfer a -> b (%3) : f32[4,8]{{"x"}, {}}
free %3
%5 = run p1 on a (%1 donated) : f32[8,8]  # inferred
free %1
%6 = run p2 on b (%4 donated, %2) : f32[4,8]{{"x"}, {}}  # g
free %2, %4
return %6 on b : f32[4,8]{{"x"}, {}} y
return %5 on a : f32[8,8] w
"""
HEAD = """
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
#t = #mpmd.topology<<"a" : <["x"=1]>>, <"b" : <["x"=1]>>>
"""
FUNCTIONS = """
func.func @neg(%x: tensor<4xf32> {jax.buffer_donor = true}) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
  %0 = stablehlo.negate %x : tensor<4xf32> return %0 : tensor<4xf32> }
func.func @add(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32> {jax.buffer_donor = true}) -> tensor<4xf32>
  attributes {mesh_shape = #sdy.mesh<["x"=1]>} { %0 = stablehlo.add %x, %y : tensor<4xf32> return %0 : tensor<4xf32> }
"""


def neg(result: str, value: str, mesh: str = "a") -> str:
    return (
        f'{result} = mpmd.fragment_call<mesh="{mesh}", origin=["{result[1:]}"]> @neg({value}) : (!{mesh}) -> !{mesh}\n'
    )


def plan_of(signature: str, body: str):  # type: ignore[no-untyped-def]
    return make_plan(parse(f"{HEAD} func.func @main{signature} attributes {{topology = #t}} {{ {body} }} {FUNCTIONS}"))


def test_text() -> None:
    assert str(make_plan(parse(PIPELINE))) == TEXT


def test_peak_counts_arguments_results_and_scratch() -> None:
    plan = make_plan(parse(PIPELINE))
    # a: x is 2 x 8 floats per device, w 8 x 8; p0 adds 2 x 8, p2 replaces w.
    assert plan.live_bytes() == {"a": 64 + 256 + 64, "b": 256 + 64}
    assert plan.live_bytes({0: 1000}) == {"a": 64 + 256 + 64 + 1000, "b": 256 + 64}
    assert plan.transferred_bytes == 128


def test_meshes_are_read_once_and_a_plan_is_stored_as_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(parse(PIPELINE))
    stored = pickle.dumps(plan)
    read: list[str] = []
    monkeypatch.setattr(
        plans, "parse_mesh", lambda body, parse_mesh=plans.parse_mesh: read.append(body) or parse_mesh(body)
    )
    sizes: list[Any] = [plan.bytes_of([slot.number]) for slot in plan.slots]
    assert sizes == [slot.bytes * 2 for slot in plan.slots]
    assert len(read) == len(plan.meshes)
    assert pickle.dumps(plan) == stored and pickle.loads(stored) == plan


def test_donation_needs_a_last_use_and_an_owner() -> None:
    # Not the caller's, used later, and returned: never donated.
    body = neg("%0", "%x") + neg("%1", "%0") + neg("%2", "%0") + neg("%3", "%2") + "return %3, %1, %2 : !a, !a, !a"
    plan = plan_of("(%x: !a) -> (!a, !a, !a)", body)
    assert [r.donated for r in plan.runs] == [(), (), (0,), ()]
    assert [p.donated for p in plan.programs] == [(), (0,)]
    # The caller's gift is used.
    plan = plan_of("(%x: !a {tf.aliasing_output = 0 : i32}) -> !a", neg("%0", "%x") + "return %0 : !a")
    assert plan.runs[0].donated == (0,) and plan.donated == {0}


def test_one_value_twice_is_not_donated() -> None:
    add = 'mpmd.fragment_call<mesh="a", origin=[]> @add'
    body = neg("%0", "%x") + f"%1 = {add}(%0, %0) : (!a, !a) -> !a %2 = {add}(%1, %x) : (!a, !a) -> !a return %2 : !a"
    plan = plan_of("(%x: !a) -> !a", body)
    assert [r.donated for r in plan.runs] == [(), (), (0,)]


def test_a_transfer_that_changes_nothing_is_an_alias() -> None:
    body = (
        neg("%0", "%x")
        + '%1 = mpmd.transfer %0 : (!a) -> !mpmd.mesh_tensor<"a", tensor<4xf32>, memory_kind="device">\n'
        + '%2 = mpmd.transfer %1 : (!mpmd.mesh_tensor<"a", tensor<4xf32>, memory_kind="device">) -> !a\n'
        + neg("%3", "%2")
        + neg("%4", "%0")
        + "return %3, %4 : !a, !a"
    )
    plan = plan_of("(%x: !a) -> (!a, !a)", body)
    assert plan.transfers == []
    assert [r.inputs for r in plan.runs] == [(0,), (1,), (1,)]
    assert [r.donated for r in plan.runs] == [(), (), (0,)]  # the alias keeps the value alive


def test_adjacent_transfers_are_one_batch() -> None:
    body = (
        "%1 = mpmd.transfer %y : (!a) -> !b %2 = mpmd.transfer %x : (!a) -> !b\n"
        "%3 = mpmd.transfer %1 : (!b) -> !a %4 = mpmd.transfer %3 : (!a) -> !b\n"
        "return %2, %4 : !b, !b"
    )
    plan = plan_of("(%x: !a, %y: !a) -> (!b, !b)", body)
    assert [(t.source, t.target, t.inputs) for t in plan.transfers] == [
        ("a", "b", (1, 0)),
        ("b", "a", (2,)),
        ("a", "b", (4,)),
    ]


def test_transfers_with_a_run_between_them_are_not_one_batch() -> None:
    body = (
        f"%1 = mpmd.transfer %x : (!a) -> !b\n{neg('%2', '%z', 'b')}"
        "%3 = mpmd.transfer %y : (!a) -> !b return %1, %2, %3 : !b, !b, !b"
    )
    plan = plan_of("(%x: !a, %y: !a, %z: !b) -> (!b, !b, !b)", body)
    assert [t.inputs for t in plan.transfers] == [(0,), (1,)] and [r.inputs for r in plan.runs] == [(2,)]


def test_a_transfer_of_what_another_one_brings_is_not_of_its_batch() -> None:
    rows = '!mpmd.mesh_tensor<"a", tensor<4xf32>, sharding=<@m, [{"x"}]>>'
    body = f"%1 = mpmd.transfer %x : (!a) -> {rows} %2 = mpmd.transfer %1 : ({rows}) -> !a return %2 : !a"
    plan = plan_of("(%x: !a) -> !a", body)
    assert [t.inputs for t in plan.transfers] == [(0,), (1,)]


def test_issue_order_keeps_both_meshes_busy_and_each_in_its_order() -> None:
    first = "".join(neg(f"%a{i}", "%x") for i in range(3))
    second = "".join(neg(f"%b{i}", "%y", "b") for i in range(3))
    names = ", ".join([f"%a{i}" for i in range(3)] + [f"%b{i}" for i in range(3)])
    plan = plan_of(
        "(%x: !a, %y: !b) -> (!a, !a, !a, !b, !b, !b)", f"{first}{second} return {names} : !a, !a, !a, !b, !b, !b"
    )
    assert [r.label for r in plan.runs] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert [plan.slots[s].mesh for s in plan.results] == ["a", "a", "a", "b", "b", "b"]


def test_unused_values_are_freed_at_once() -> None:
    plan = plan_of("(%x: !a, %unused: !b, %y: !a) -> !a", neg("%0", "%x") + "return %y : !a")
    assert plan.instructions == (Free((1,)), Run(0, "a", (0,), (3,), (), "0", (("0", 0),)), Free((0, 3)))
    assert plan.results == (2,)


def test_values_stay_until_their_last_use() -> None:
    plan = make_plan(parse(PIPELINE))
    gone: set[int] = set()
    for instruction in plan.instructions:
        if isinstance(instruction, Free):
            assert gone.isdisjoint(instruction.slots)
            gone.update(instruction.slots)
        else:
            assert gone.isdisjoint(instruction.inputs)
            assert isinstance(instruction, (Run, Transfer))
    assert gone.isdisjoint(plan.results)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @f() { return }", r"no function @main to run; its functions: @f"),
        ("func.func @main() { return }", "has no topology"),
        (
            HEAD + "func.func @main(%x: tensor<4xf32>, %y: !a) -> (tensor<4xf32>, !a) attributes {topology = #t} {"
            "%0 = stablehlo.add %x, %x : tensor<4xf32>"
            '%1 = mpmd.fragment<mesh="a", origin=[]> (%y) (%p: tensor<4xf32>) { mpmd.return %p : tensor<4xf32> } : (!a) -> !a '
            "return %0, %1 : tensor<4xf32>, !a }",
            r"(?s)on no mesh.*on no mesh.*'stablehlo.add' is not executable.*'mpmd.fragment' is not executable",
        ),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(MpmdError, match=message):
        make_plan(parse(text))
