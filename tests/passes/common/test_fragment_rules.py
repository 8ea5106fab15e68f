"""Merge and schedule rules as text."""

from __future__ import annotations

import pytest

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule, ScheduleRule
from mpmd_trace.passes.manager import PassManager

F = 'FragmentInfo(origins=["f"(1),"g"],stage=0,call_counter=2,split_type=kDropTransferred,mesh_name="m")'
G = 'FragmentInfo(origins=[],mesh_name="n")'
FULL = FragmentInfo((("f", 1), ("g", 0)), 0, 2, "kDropTransferred", "m")
EMPTY = FragmentInfo(mesh_name="n")


def test_round_trip() -> None:
    """Printing gives the canonical text back."""
    merge = f"FragmentMergeRule(sources=[{F},{G}],target={G})"
    assert MergeRule.parse(merge) == MergeRule((FULL, EMPTY), EMPTY)
    assert str(MergeRule.parse(merge)) == merge
    schedule = f"FragmentScheduleRule(ordered_fragments=[{F}->{G}->{F}])"
    assert ScheduleRule.parse(schedule) == ScheduleRule((FULL, EMPTY, FULL))
    assert str(ScheduleRule.parse(schedule)) == schedule


def test_leniency() -> None:
    """Fields in any order, trailing commas, a missing opening quote, empty lists, text behind the end."""
    rule = MergeRule.parse(
        'FragmentMergeRule(sources=[FragmentInfo(origins=[f",],mesh_name="m",split_type=kKeepTransferred,'
        "stage=-1),],target=FragmentInfo(origins=[]))anything"
    )
    assert rule.sources == (FragmentInfo((("f", 0),), -1, None, "kKeepTransferred", "m"),)
    assert rule.target == FragmentInfo()
    assert MergeRule.parse("FragmentMergeRule(sources=[],target=FragmentInfo(origins=[]))").sources == ()
    assert ScheduleRule.parse("FragmentScheduleRule(ordered_fragments=[])x").ordered_fragments == ()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "FragmentMergeRule(sources=["),
        (f"FragmentMergeRule(sources=[{F}{G}],target={G})", "',' or '],target='"),
        (f"FragmentMergeRule(sources=[{F}],{G})", "'],target='"),
        (f"FragmentMergeRule(sources=[F],target={G})", "FragmentInfo(origins=["),
        (f"FragmentMergeRule(sources=[],target={G}", "')'"),
        ('FragmentMergeRule(sources=[FragmentInfo(origins=["f', "closing"),
        ('FragmentMergeRule(sources=[FragmentInfo(origins=["f"(x)', "a transpose count"),
        ('FragmentMergeRule(sources=[FragmentInfo(origins=["f"', "']'"),
        ("FragmentMergeRule(sources=[FragmentInfo(origins=[],stage=x", "an integer value for 'stage'"),
        ("FragmentMergeRule(sources=[FragmentInfo(origins=[],call_counter=", "'call_counter'"),
        ("FragmentMergeRule(sources=[FragmentInfo(origins=[],stage=1,stage=2", "more than once"),
        ("FragmentMergeRule(sources=[FragmentInfo(origins=[],split_type=k", "'kKeepTransferred' or"),
        ("FragmentMergeRule(sources=[FragmentInfo(origins=[],color=1", "one of the fields"),
    ],
)
def test_errors(text: str, wanted: str) -> None:
    """The message says what was expected and shows where."""
    with pytest.raises(MpmdError, match="rule") as error:
        MergeRule.parse(text)
    assert wanted in str(error.value)


def test_missing_arrow() -> None:
    with pytest.raises(MpmdError, match="->"):
        ScheduleRule.parse(f"FragmentScheduleRule(ordered_fragments=[{F},{G}])")


def test_bad_rules_are_found_when_the_pipeline_is_built() -> None:
    with pytest.raises(MpmdError, match="FragmentMergeRule"):
        PassManager("mpmd-rule-based-merge{rules=nonsense}")


@pytest.mark.parametrize("field", ["stage", "call_counter"])
def test_numbers_have_32_bits(field: str) -> None:
    """The greatest and the smallest number are read, the next ones are not."""
    rule = "FragmentMergeRule(sources=[],target=FragmentInfo(origins=[],{}={}))"
    for number in (2**31 - 1, -(2**31)):
        assert getattr(MergeRule.parse(rule.format(field, number)).target, field) == number
    for number in (2**31, -(2**31) - 1):
        with pytest.raises(MpmdError, match=f"an integer value for '{field}'"):
            MergeRule.parse(rule.format(field, number))
