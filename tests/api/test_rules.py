"""Rules by users: made of a program's fragments, followed on top of a schedule, warned of when they match nothing."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpmd_trace
from mpmd_trace import MpmdError, MpmdWarning, rules
from mpmd_trace.passes import cpp_engine
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.rules import Fragment, FragmentInfo, Fragments, MergeRule, ScheduleRule
from pipelines import accumulate, assert_same, batch, config, loss, weights
from util import max_examples

COUNT = 3


def lowered(**settings: Any) -> tuple[mpmd_trace.stages.Lowered, dict[str, str]]:
    """The lowered step and what each mesh does, a forward and a backward apart."""
    actions = FragmentActions()
    given = settings.pop("partitioning_options", {})
    settings["partitioning_options"] = {"mpmd_merge_forward_with_backward": False, **given}
    found = mpmd_trace.jit(accumulate, config(**settings)).lower(weights(), batch(COUNT), hooks=[actions])
    named = {mesh: [a for a in row if getattr(a, "kind", "") != "O"] for mesh, row in actions.of_mesh.items()}
    rows = {mesh: " ".join(_spelled(a) for a in row) for mesh, row in named.items()}
    return found, rows


def _spelled(action: Any) -> str:
    parts = getattr(action, "parts", (action,))  # a forward and a backward in one
    return "".join(f"{a.kind}{a.microbatch}" for a in parts)


def check(**settings: Any) -> dict[str, str]:
    """What each mesh does; the values are those of plain `jax.jit`."""
    found, rows = lowered(**settings)
    assert_same(found.compile()(weights(), batch(COUNT)), jax.jit(accumulate)(weights(), batch(COUNT)))
    return rows


def late_backward(fragments: Fragments) -> Any:
    """The first mesh makes all forwards but the last before its first backward."""
    own = fragments.where(mesh="m0")
    return rules.order(own.forward[:-1], own.backward)


# What is there to make rules of.


def test_fragments() -> None:
    found = lowered(pipeline_schedule="1F1B")[0].fragments()
    assert len(found) == 4 * COUNT
    assert [str(f) for f in found[:4]] == ["F #0 f0 @m0", "F #0 f1 @m1", "B #0 f1(1) @m1", "B #0 f0(1) @m0"]
    one = found.one(name="f0", kind="F", microbatch=2)
    assert (one.names, one.mesh, one.stage, one.microbatch, one.transposes) == (("f0",), "m0", None, 2, (0,))
    assert (one.m, one.counter, one.transpose, one.drops_transferred) == (0, 2, 0, False)
    assert one.info == FragmentInfo((("f0", 0),), call_counter=2, mesh_name="m0")
    # tanh(x @ w) of (4, 4): a multiply-add of each pair and the tanh; x and w in; what the backward needs, too, out.
    assert one.flops >= 2 * 4**3 + 16 and one.bytes >= 4 * (3 * 16)
    assert found.backward.by("mesh").keys() == {"m0", "m1"}
    assert [len(g) for g in found.by("mesh", "kind").values()] == [COUNT] * 4
    assert len(found.where(microbatch=range(1, 3), mesh="m1")) == 4
    assert len(found.forward + found.backward) == len(found)
    assert "12 fragments" in repr(found) and "flops" in repr(found)
    with pytest.raises(MpmdError, match=r"several fragments are where\(kind='F'\); there are\n  F #0 f0 @m0"):
        found.one(kind="F")
    with pytest.raises(MpmdError, match=r"no fragment is where\(name='f9'\)"):
        found.one(name="f9")


def test_fragments_are_those_that_will_be_scheduled() -> None:
    found = lowered(pipeline_schedule="ZeroBubbleH1")[0].fragments()
    assert {f.kind for f in found.where(mesh="m1")} == {"F", "I", "W"}
    weight = found.where(mesh="m1", kind="W")
    assert len(weight) == COUNT and all(f.drops_transferred and f.transposes == (1,) for f in weight)


def test_rules_round_trip() -> None:
    found = lowered()[0].fragments()
    made = [
        *rules.order(*found.where(mesh="m0", kind="F")),
        *rules.merge(*found.where(mesh="m1", microbatch=1), into="both", stage=3),
    ]
    assert [rules.parse(str(rule)) for rule in made] == made
    assert str(made[0]).startswith('FragmentScheduleRule(ordered_fragments=[FragmentInfo(origins=["f0"],call_counter=0')
    assert isinstance(made[1], MergeRule)
    assert made[1].target == FragmentInfo((("both", 0), ("both", 1)), 3, 1, None, "m1")
    with pytest.raises(MpmdError, match="expected"):
        rules.parse("FragmentRule()")


# Orders.


def test_rules_on_top_of_a_schedule() -> None:
    assert check(pipeline_schedule="GPipe", fragment_schedule_rules=late_backward)["m0"] == "F0 F1 F2 B0 B1 B2"
    rows = check(pipeline_schedule="none", fragment_schedule_rules=[late_backward])
    assert rows["m0"] == "F0 F1 B0 B1 F2 B2" and rows["m1"] == "F0 B0 F1 B1 F2 B2"

    def last(fragments: Fragments) -> Any:
        own = fragments.where(mesh="m1")
        return rules.order(own.one(kind="B", microbatch=1), own.one(kind="F", microbatch=2))

    rows = check(pipeline_schedule="GPipeBut1F1BForLastMesh", fragment_schedule_rules=[late_backward, last])
    assert rows == {"m0": "F0 F1 F2 B0 B1 B2", "m1": "F0 B0 F1 B1 F2 B2"}


@pytest.mark.parametrize("schedule", ["1F1B", "1f1b", "auto"])
def test_a_rule_leaves_the_schedule_as_it_is(schedule: str) -> None:
    """It used to take its place."""
    with_rule = lowered(
        pipeline_schedule=schedule,
        fragment_schedule_rules=lambda fragments: rules.order(*fragments.where(mesh="m0", kind="F")),
    )
    plain = lowered(pipeline_schedule=schedule)
    assert with_rule[1] == plain[1]
    assert with_rule[0].as_text() == plain[0].as_text()


def test_a_rule_against_the_schedule() -> None:
    def all_forwards_first(fragments: Fragments) -> Any:
        return rules.order(fragments.forward, fragments.backward)

    for schedule, name in (("1F1B", "1F1B"), ("zb-h1", "zb-h1")):
        settings = config(pipeline_schedule=schedule, fragment_schedule_rules=all_forwards_first)
        with pytest.raises(MpmdError) as caught:
            mpmd_trace.jit(accumulate, settings).lower(weights(), batch(COUNT))
        text = str(caught.value)
        assert text.startswith(f'{settings.where}: error: a schedule rule wants "f0" of microbatch')
        assert f"but the schedule '{name}' wants it the other way round" in text


def test_an_order_between_meshes() -> None:
    found = lowered()[0].fragments()
    with pytest.raises(MpmdError, match="fragments of one mesh; these are on 'm0' and 'm1', which run on their own"):
        rules.order(found.one(name="f0", kind="F", microbatch=0), found.one(name="f1", kind="F", microbatch=0))
    both = rules.order(found.forward, found.backward)  # on each mesh by itself
    assert len(both) == 2 * COUNT**2
    assert rules.order(found.forward, found.where(name="f9")) == []
    with pytest.raises(MpmdError, match=r"order got FragmentInfo.* more than once"):
        rules.order(found[0], found[0])


@given(data=st.data())
@max_examples(4)
def test_consistent_rules_keep_the_values(data: st.DataObject) -> None:
    schedule = data.draw(st.sampled_from(["none", "1F1B", "GPipe", "zb-h1"]))
    example = "1F1B" if schedule == "none" else schedule
    drawn: list[tuple[Fragment, ...]] = []

    def any_rules(fragments: Fragments) -> Any:
        # Fragments in the order of another schedule: rules that this order follows fit the empty one.
        rank = {"F": 0, "B": 1, "I": 1, "W": 1}
        for own in fragments.by("mesh").values():
            warm = 2 - own[0].m if example != "GPipe" else COUNT
            row = sorted(own, key=lambda f: (f.counter if f.kind == "F" else f.counter + warm - 0.5, rank[f.kind]))
            for _ in range(data.draw(st.integers(0, 3))):
                pair = data.draw(st.lists(st.sampled_from(range(len(row))), min_size=2, max_size=3, unique=True))
                drawn.append(tuple(row[i] for i in sorted(pair)))
        return [rules.order(*group) for group in drawn if {f.kind for f in group} <= {"F", "B"}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpmd_trace.scheduling.user_rules.warn", lambda *_: None)  # perhaps no rule was drawn
        rows = check(pipeline_schedule=schedule, fragment_schedule_rules=any_rules)
    for group in drawn:
        if {f.kind for f in group} <= {"F", "B"}:
            row = rows[group[0].mesh].split()
            places = [row.index(f"{f.kind}{f.microbatch}") for f in group]
            assert places == sorted(places)


# Merges.


def test_merging_what_a_builder_chooses() -> None:
    def last_mesh(fragments: Fragments) -> Any:
        return [rules.merge(pair) for pair in fragments.where(mesh="m1").by("microbatch").values()]

    found, _ = lowered(pipeline_schedule="1F1B", fragment_merge_rules=last_mesh)
    zeros = 2  # for the sums, one program on each mesh
    assert found.as_text().count("mpmd.fragment_call") == 4 * COUNT - COUNT + zeros
    check(pipeline_schedule="1F1B", fragment_merge_rules=last_mesh)
    with pytest.raises(MpmdError, match="merge is about fragments of one mesh; these are on 'm0', 'm1'"):
        rules.merge(found.fragments())
    assert rules.merge(found.fragments()[0]) == []


def test_merging_neighbours() -> None:
    asked: list[tuple[Fragment, Fragment]] = []

    def same_microbatch(a: Fragment, b: Fragment) -> bool:
        asked.append((a, b))
        return a.microbatch is not None and a.microbatch == b.microbatch and a.flops + b.flops < 1e9

    merging = {"fragment_merge_rules": rules.merge_neighbours(same_microbatch)}
    plain, _ = lowered(pipeline_schedule="1F1B")
    found, _ = lowered(pipeline_schedule="1F1B", **merging)
    # On m1 each pair; on m0 the last backward follows that of another microbatch.
    assert plain.as_text().count("mpmd.fragment_call") - found.as_text().count("mpmd.fragment_call") == COUNT
    assert all(a.mesh == b.mesh for a, b in asked)
    check(pipeline_schedule="1F1B", **merging)
    check(pipeline_schedule="GPipe", fragment_merge_rules=rules.merge_neighbours(lambda a, b: True))


# Comparators.


def test_a_comparator_sees_names_and_costs() -> None:
    seen: set[tuple[Any, ...]] = set()

    def dearest_first(a: Fragment, b: Fragment) -> bool:
        seen.add((a.names, a.kind, a.microbatch, a.flops > 0, a.bytes > 0))
        return (a.kind != "F", -a.flops, a.counter) < (b.kind != "F", -b.flops, b.counter)

    rows = check(pipeline_schedule=dearest_first)
    assert rows["m0"].startswith("F0 F1 F2")
    assert (("f1",), "B", 1, True, True) in seen


def test_a_comparator_and_a_rule_against_it() -> None:
    def forwards_first(a: Fragment, b: Fragment) -> bool:
        return (a.kind, -a.counter) > (b.kind, -b.counter)

    def rule(fragments: Fragments) -> Any:
        own = fragments.where(mesh="m0")
        return rules.order(own.one(kind="B", microbatch=0), own.one(kind="F", microbatch=2))

    assert check(pipeline_schedule=forwards_first)["m0"] == "F0 F1 F2 B0 B1 B2"
    with pytest.raises(MpmdError, match="but the comparator 'forwards_first' wants it the other way round"):
        lowered(pipeline_schedule=forwards_first, fragment_schedule_rules=rule)


# What matches nothing, and what is no rule.


def test_rules_that_match_nothing_are_warned_of() -> None:
    a, b = (FragmentInfo((("f0", 0),), call_counter=i, mesh_name="m0") for i in (0, 99))
    settings = config(fragment_schedule_rules=[ScheduleRule((a, b))])
    with pytest.warns(
        MpmdWarning, match=r"fragment_schedule_rules name fragments that this program does not have"
    ) as found:
        mpmd_trace.jit(accumulate, settings).lower(weights(), batch(COUNT))
    [warning] = found
    assert f"{warning.filename}:{warning.lineno}" == settings.where
    assert "call_counter=99" in str(warning.message).split("it has")[0]
    assert "call_counter=0" not in str(warning.message).split("it has")[0]
    merge = MergeRule((b, FragmentInfo((("f9", 0),), mesh_name="m0")), FragmentInfo(mesh_name="m0"))
    with pytest.warns(MpmdWarning, match="fragment_merge_rules name fragments that this program does not have"):
        lowered(fragment_merge_rules=[merge])
    with pytest.warns(MpmdWarning, match="'nothing' among fragment_merge_rules makes no rule for this program"):
        lowered(fragment_merge_rules=nothing)


def nothing(fragments: Fragments) -> list[MergeRule]:
    return []


def _returns_none(fragments: Fragments) -> None:
    rules.order(fragments.forward, fragments.backward)


A, B = (FragmentInfo((("f0", 0),), call_counter=i, mesh_name="m0") for i in (0, 1))
ON_M1 = FragmentInfo((("f1", 0),), call_counter=0, mesh_name="m1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fragment_merge_rules": [3]}, "fragment_merge_rules has 3, which is not a rule"),
        ({"fragment_merge_rules": [ScheduleRule((A, B))]}, "a ScheduleRule, which belongs to fragment_schedule_rules"),
        ({"fragment_schedule_rules": MergeRule((A, B), A)}, "a MergeRule, which belongs to fragment_merge_rules"),
        ({"fragment_schedule_rules": rules.merge_neighbours(max)}, "a MergeNeighbours, which belongs to fragment_merg"),
        ({"fragment_schedule_rules": ["FragmentScheduleRule("]}, "fragment_schedule_rules: expected"),
        ({"fragment_schedule_rules": lambda a, b: []}, "cannot be called with the fragments of a program"),
        ({"fragment_schedule_rules": ScheduleRule((A,))}, "a schedule rule names two fragments or more"),
        ({"fragment_schedule_rules": ScheduleRule((A, B, A))}, "names the same fragment twice"),
        ({"fragment_schedule_rules": ScheduleRule((A, ON_M1))}, "fragments of one mesh; this one has 'm0' and 'm1'"),
        ({"fragment_schedule_rules": ScheduleRule(("f", "g"))}, "a rule about 'f', which is not a FragmentInfo"),
        ({"fragment_merge_rules": MergeRule((A, B), ON_M1)}, "also in its target; this one has 'm0' and 'm1'"),
        ({"fragment_merge_rules": [MergeRule((A, B), A)] * 2}, None),
        ({"fragment_merge_rules": [MergeRule((A, B), A), MergeRule((B, A), B)]}, "is a source of two merge rules"),
    ],
)
def test_rules_are_checked_by_make_config(settings: dict[str, Any], message: str | None) -> None:
    if message is None:
        config(**settings)
        return
    with pytest.raises(MpmdError, match=message) as caught:
        config(**settings)
    assert "pipelines.py:" in str(caught.value)


def test_builders_that_make_no_rules() -> None:
    with pytest.raises(MpmdError, match=r"test_rules\.py:\d+: error: '_returns_none' returns None"):
        lowered(fragment_schedule_rules=_returns_none)
    with pytest.raises(MpmdError, match=r"test_rules\.py:\d+: error: .*'<lambda>' returns a function"):
        lowered(fragment_schedule_rules=lambda fragments: late_backward)
    with pytest.raises(MpmdError, match=r"a rule is made of fragments .* not of 'f0'"):
        rules.order("f0", "f1")
    with pytest.raises(MpmdError, match="merge_neighbours takes a function of two fragments, not 3"):
        rules.merge_neighbours(3)  # type: ignore[arg-type]


def test_all_rules_that_are_wrong_are_told() -> None:
    with pytest.raises(MpmdError) as caught:
        config(fragment_merge_rules=[3, 4], fragment_schedule_rules=[5], pipeline_schedule="1F2B")
    assert len(caught.value.diagnostics) == 4


# The other engine.


@pytest.mark.skipif(not cpp_engine.available(), reason="this jaxlib has no C++ partitioner")
def test_the_other_engine(recwarn: pytest.WarningsRecorder) -> None:
    def lower(**settings: Any) -> mpmd_trace.stages.Lowered:
        return mpmd_trace.jit(accumulate, config(**settings), engine="cpp").lower(weights(), batch(COUNT))

    def last_mesh(fragments: Fragments) -> Any:
        return [rules.merge(pair) for pair in fragments.where(mesh="m1").by("microbatch").values()]

    options = {"pipeline_schedule": "1F1B", "fragment_merge_rules": last_mesh}
    exact = {"placement": "reference", "partitioning_options": {"mpmd_equal_microbatches": False}}
    assert lower(**options).as_text() == lowered(**options, **exact)[0].as_text()
    with pytest.raises(MpmdError, match=r"the C\+\+ partitioner has no merge_neighbours"):
        lower(fragment_merge_rules=rules.merge_neighbours(lambda a, b: True))
    with pytest.warns(MpmdWarning, match="takes fragment_schedule_rules and ignores them"):
        lower(fragment_schedule_rules=late_backward)


def test_one_config_for_training_and_evaluation() -> None:
    settings = config(fragment_schedule_rules=_forwards_in_order)
    train, evaluate = mpmd_trace.jit(accumulate, settings), mpmd_trace.jit(loss, settings)
    assert_same(train(weights(), batch(COUNT)), jax.jit(accumulate)(weights(), batch(COUNT)))
    with pytest.warns(MpmdWarning, match="'_forwards_in_order' among fragment_schedule_rules makes no rule for this"):
        assert_same(evaluate(weights(), batch()), jax.jit(loss)(weights(), batch()))


def _forwards_in_order(fragments: Fragments) -> Any:
    return [rules.order(*group) for group in fragments.forward.by("mesh").values()]
