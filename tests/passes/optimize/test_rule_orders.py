"""Rules on top of a schedule: consistent ones are followed, others are errors that name both sides."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.passes.optimize.pipeline_programs import orders, pipeline

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule, ScheduleRule
from mpmd_trace.passes.manager import PassManager, run_passes
from mpmd_trace.passes.microbatches.action_order import ActionOrder
from mpmd_trace.passes.microbatches.follow_schedule import FollowSchedule
from mpmd_trace.passes.microbatches.rule_orders import UserRules
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Comparator, Order
from mpmd_trace.passes.pipelines import pipeline as passes_of_jit
from mpmd_trace.passes.request import PartitionRequest, StepFacts
from mpmd_trace.schedules import Schedule, from_orders
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import max_examples


def scheduled(text: str, schedule: str, rules: Sequence[ScheduleRule] = (), *, by_pairs: bool = False) -> Module:
    """The program after scheduling: by name, or by asking the predicate."""
    module = parse(text)
    order: Order = SCHEDULES[schedule]
    if by_pairs:
        order = Comparator(schedule, order.before)
    run_passes(module, [FollowSchedule(schedule=order, rules=tuple(rules))])
    return module


def optimize(schedule: str, rules: UserRules) -> list[Pass]:
    """The passes of the optimize phase."""
    request = PartitionRequest("f", TopologyAttr.get({}), schedule=SCHEDULES[schedule], step=StepFacts())
    _, passes, *_ = passes_of_jit(request, lambda: rules)
    return passes


def rows(module: Module) -> dict[str, list[FragmentInfo]]:
    """The fragments of each mesh in order."""
    found: dict[str, list[FragmentInfo]] = {}
    for op in module.main.body:
        if isinstance(op, FragmentOp):
            found.setdefault(op.mesh, []).append(FragmentInfo.of(op))
    return found


def info(mesh: int, counter: int, transpose: int = 0) -> FragmentInfo:
    return FragmentInfo(((f"f{mesh}", transpose),), call_counter=counter, mesh_name=f"m{mesh}")


def rule(*infos: FragmentInfo) -> ScheduleRule:
    return ScheduleRule(infos)


@given(
    meshes=st.integers(1, 3),
    microbatches=st.integers(1, 4),
    schedule=st.sampled_from(["none", "1F1B", "GPipe", "GPipeBut1F1BForLastMesh"]),
    example=st.sampled_from(["none", "1F1B", "GPipe"]),
    way=st.sampled_from([{}, {"by_pairs": True}]),
    data=st.data(),
)
@max_examples(30)
def test_rules_that_fit_are_followed(
    meshes: int, microbatches: int, schedule: str, example: str, way: dict[str, bool], data: st.DataObject
) -> None:
    text = pipeline(meshes, microbatches)
    # Any order of the program fits the empty schedule; others allow what they give themselves.
    wanted = rows(scheduled(text, example if schedule == "none" else schedule))
    rules = []
    for row in wanted.values():
        for _ in range(data.draw(st.integers(0, 4))):
            chosen = data.draw(st.lists(st.sampled_from(range(len(row))), min_size=2, max_size=4, unique=True))
            rules.append(rule(*(row[i] for i in sorted(chosen))))
    module = scheduled(text, schedule, rules, **way)
    found = rows(module)
    assert {mesh: set(row) for mesh, row in found.items()} == {mesh: set(row) for mesh, row in wanted.items()}
    for one in rules:
        row = found[one.ordered_fragments[0].mesh_name]
        places = [row.index(fragment) for fragment in one.ordered_fragments]
        assert places == sorted(places)
    if schedule == "1F1B":  # nothing is left for rules to say
        assert found == wanted
    assert_same_meaning(parse(text), module)


@given(
    meshes=st.integers(1, 3),
    microbatches=st.integers(2, 4),
    schedule=st.sampled_from(["1F1B", "GPipe"]),
    way=st.sampled_from([{}, {"by_pairs": True}]),
    data=st.data(),
)
@max_examples(30)
def test_rules_that_do_not_fit_are_errors(
    meshes: int, microbatches: int, schedule: str, way: dict[str, bool], data: st.DataObject
) -> None:
    text = pipeline(meshes, microbatches)
    mesh = data.draw(st.integers(0, meshes - 1))
    counter = data.draw(st.integers(0, microbatches - 1))
    flow = rule(info(mesh, counter, 1), info(mesh, counter))
    row = rows(scheduled(text, schedule))[f"m{mesh}"]
    forwards = [one for one in row if one.origins[0][1] == 0]
    first = data.draw(st.sampled_from(forwards))
    last = row[-1] if schedule == "GPipe" else row[min(row.index(first) + 1, len(row) - 1)]
    against = rule(last, first) if last not in forwards else flow
    cycle = [rule(forwards[0], forwards[1]), rule(forwards[1], forwards[0])]
    for rules, sides in (([flow], ["the data flow"]), ([against], []), (cycle, ["other schedule rules"])):
        with pytest.raises(MpmdError) as caught:
            scheduled(text, "none" if rules is cycle else schedule, rules, **way)
        message = str(caught.value)
        assert 'a schedule rule wants "f' in message and "the other way round" in message
        assert all(side in message for side in sides), message
        if rules is not cycle:
            assert "the data flow" in message or f" '{schedule}'" in message


def test_both_sides_are_named() -> None:
    with pytest.raises(MpmdError) as caught:
        scheduled(pipeline(2, 4), "1F1B", [rule(info(0, 3), info(0, 0, 1))])
    assert str(caught.value) == (
        "error: a schedule rule wants \"f0\" of microbatch 3 on 'm0' before \"f0\"(1) of microbatch 0 on 'm0', "
        "but the schedule '1F1B' wants it the other way round:\n"
        "  \"f0\"(1) of microbatch 0 on 'm0', then \"f0\" of microbatch 2 on 'm0': the schedule '1F1B'\n"
        "  \"f0\" of microbatch 2 on 'm0', then \"f0\"(1) of microbatch 1 on 'm0': the schedule '1F1B'\n"
        "  \"f0\"(1) of microbatch 1 on 'm0', then \"f0\" of microbatch 3 on 'm0': the schedule '1F1B'\n"
        'Leave the rule out, or choose another schedule: pipeline_schedule="none" has the rules and the data flow alone'
    )


def test_a_conflict_through_another_mesh() -> None:
    """On each mesh by itself the rules could be followed."""
    rules = [rule(info(0, 0, 1), info(0, 1)), rule(info(1, 1), info(1, 0, 1))]
    assert orders(scheduled(pipeline(2, 2), "none", rules[:1])) == {"m0": "F0 B0 F1 B1", "m1": "F0 B0 F1 B1"}
    assert orders(scheduled(pipeline(2, 2), "none", rules[1:])) == {"m0": "F0 F1 B0 B1", "m1": "F0 F1 B0 B1"}
    with pytest.raises(MpmdError, match="the data flow") as caught:
        scheduled(pipeline(2, 2), "none", rules)
    assert "mpmd.transfer" in str(caught.value) and "other schedule rules" in str(caught.value)


def test_a_schedule_that_cannot_be_followed_gives_way() -> None:
    """Chains that contradict the data flow between meshes: the nearest order, and the rules in it."""

    def make(meshes: int, microbatches: int, chunks: int | None) -> Schedule:
        early = [f"0B{m}" for m in range(3)] + [f"0F{m}" for m in (2, 1, 0)]  # backwards first
        return from_orders([early, [f"1B{m}" for m in range(3)] + [f"1F{m}" for m in range(3)]])

    module = parse(pipeline(2, 3))
    one = rule(info(0, 2), info(0, 0, 1))
    manager = PassManager([FollowSchedule(schedule=ActionOrder("it", make), rules=(one,))])
    manager.run(module)
    (found,) = manager.diagnostics
    assert found.severity == "warning" and "cannot be followed exactly: it wants" in found.message
    assert "it the other way round:" in found.message
    row = orders(module)["m0"].split()
    assert row.index("F2") < row.index("B0")
    assert_same_meaning(parse(pipeline(2, 3)), module)


@pytest.mark.parametrize("schedule", ["none", "GPipe", "1F1B"])
def test_merges_keep_the_order(schedule: str) -> None:
    text = pipeline(2, 3)
    sources = info(1, 1), info(1, 1, 1)
    target = FragmentInfo((("f1", 0), ("f1", 1)), call_counter=1, mesh_name="m1")
    rules = UserRules(
        merge=(MergeRule(sources, target),) if schedule == "1F1B" else (),
        order=(rule(info(0, 1), info(0, 2)), rule(info(1, 0), info(1, 1))),
    )
    module = parse(text)
    run_passes(module, optimize(schedule, rules))
    assert all(len(op.operands) == 1 for op in module.main.body if isinstance(op, FragmentOp)), "no control operands"
    row = rows(module)["m1"]
    if schedule == "1F1B":
        assert target in row and not set(sources) & set(row)
        assert orders(module)["m0"] == "F0 F1 B0 F2 B1 B2"
    assert_same_meaning(parse(text), module)


def test_a_merge_that_the_schedule_does_not_allow() -> None:
    """In 1F1B the backward of microbatch 0 lies between the two forwards."""
    sources = info(1, 0), info(1, 1)
    target = FragmentInfo((("f1", 0),), mesh_name="m1")
    rules = UserRules(merge=(MergeRule(sources, target),))
    with pytest.raises(MpmdError, match="not all fragments could be properly merged"):
        run_passes(parse(pipeline(2, 3)), optimize("1F1B", rules))
    module = parse(pipeline(2, 3))
    run_passes(module, optimize("GPipe", rules))
    assert target in rows(module)["m1"]
