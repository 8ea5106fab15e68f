"""Jobs that succeed end with status 0; in others nobody waits for ever, and all say why; `ends.py` runs more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ends import faulty, plainly

from util import nightly


@pytest.mark.parametrize("victim", [nightly(0), 1])
def test_a_job_that_succeeds_without_a_launcher(victim: int, tmp_path: Path) -> None:
    """The process with the coordination service leaves last, whoever is late."""
    found = plainly("late", victim, str(tmp_path))
    assert [status for status, _ in found] == [0, 0, 0], found


def test_one_that_does_not_come_is_an_error_to_catch(tmp_path: Path) -> None:
    found = plainly("alone", 2, str(tmp_path), timeout=12.0)
    assert [status for status, _ in found] == [5, 5, 0], found
    for _, text in found[:2]:
        assert "caught of -1: error: process" in text and "not all of the 3 processes have come to" in text
        assert "finally" in text


@pytest.mark.nightly
def test_process_0_that_does_not_come_is_named(tmp_path: Path) -> None:
    found = plainly("alone", 0, str(tmp_path), timeout=12.0)
    assert [status for status, _ in found] == [0, 5, 5], found
    assert all("caught of 0:" in text and "where process 0 should be" in text for _, text in found[1:])


@pytest.mark.nightly
def test_one_that_comes_while_others_end_does_not_abort_them(tmp_path: Path) -> None:
    found = plainly("tardy", 2, str(tmp_path), timeout=12.0)
    assert [status for status, _ in found] == [5, 5, 5], found


@pytest.mark.parametrize(
    ("kind", "victim", "by_launcher"),
    [
        nightly("exit", 1, True),
        nightly("leave", 1, True),
        nightly("save", 1, True),
        nightly("tensors", 1, False),
        nightly("exit", 0, False),
        nightly("raise", 1, True),
        nightly("kill", 1, True),
        nightly("kill", 2, False),
        ("kill", 0, False),
        pytest.param("system", 0, False, marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="Python tells")),
    ],
)
def test_waits_for_others_in_other_libraries_end(kind: str, victim: int, by_launcher: bool) -> None:
    assert faulty(kind, victim, by_launcher=by_launcher) == []
