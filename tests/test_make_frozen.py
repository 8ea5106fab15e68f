"""The comparison of `make frozen` names the first pass that made something else."""

from __future__ import annotations

from typing import Any

import pytest

import frozen


def made(*passes: tuple[str, str], **other: str) -> dict[str, Any]:
    return {"passes": [list(p) for p in passes], "module": "m", "plan": "p", **other}


def test_equal_records() -> None:
    assert frozen.difference(made(("a", "1"), ("b", "2")), made(("a", "1"), ("b", "2"))) is None


def test_the_first_pass_that_differs_is_named() -> None:
    text = frozen.difference(made(("a", "1"), ("b", "2"), ("c", "3")), made(("a", "1"), ("b", "4"), ("c", "5")))
    assert text == "the module after pass 1 differs: b; now: b"


def test_options_of_passes_count_unless_only_modules_do() -> None:
    before, after = made(("a", "1"), ("b{x=1}", "2")), made(("a", "1"), ("b", "2"))
    assert frozen.difference(before, after) == "pass 1: b{x=1}; now: b"
    assert frozen.difference(before, after, modules_only=True) is None


def test_passes_that_change_nothing_do_not_count_as_modules() -> None:
    before, after = made(("a", "1"), ("b", "1"), ("c", "2")), made(("a", "1"), ("c", "2"))
    assert frozen.difference(before, after) == "the module after pass 1 differs: b; now: c"
    assert frozen.difference(before, after, modules_only=True) is None


def test_what_is_made_without_hooks_counts() -> None:
    before, after = made(("a", "1")), made(("a", "1"), plan="q")
    assert frozen.difference(before, after) == "the plan without hooks differs"


def test_errors_and_missing_cases() -> None:
    assert frozen.difference({"error": "E: x"}, {"error": "E: x"}) is None
    assert frozen.difference({"error": "E: x"}, made()) == "error: E: x\n    now: None"
    assert frozen.difference(None, made()) == "is there only after"


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # of the optimizers of the recipes
def test_a_recipe_is_recorded_the_same_twice() -> None:
    name, make = next(case for case in frozen.cases(0) if "tokens counted" in case[0])
    first, second = make(), make()
    assert "error" not in first, name
    assert len(first["passes"]) > 30 and first == second
