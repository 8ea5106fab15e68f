"""Jobs that succeed end with status 0; in others nobody waits for ever, and all say why; `ends.py` runs more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ends import launched, plainly


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_a_job_that_succeeds_without_a_launcher(victim: int) -> None:
    """The process with the coordination service leaves last, whoever is late."""
    found = plainly("late", victim)
    assert [status for status, _ in found] == [0, 0, 0], found


def test_one_that_does_not_come_is_an_error_to_catch() -> None:
    found = plainly("alone", 2, timeout=6.0)
    assert [status for status, _ in found] == [5, 5, 0], found
    for _, text in found[:2]:
        assert "caught of -1: error: process" in text and "not all of the 3 processes have come to" in text
        assert "finally" in text


@pytest.mark.nightly
def test_process_0_that_does_not_come_is_named() -> None:
    found = plainly("alone", 0, timeout=6.0)
    assert [status for status, _ in found] == [0, 5, 5], found
    assert all("caught of 0:" in text and "where process 0 should be" in text for _, text in found[1:])


@pytest.mark.parametrize(
    ("kind", "status", "why"),
    [
        ("exit", 3, "ended with status 3"),
        pytest.param("raise", 1, "ended with ValueError: no more of this", marks=pytest.mark.nightly),
        ("leave", 1, r"has ended, and process \d has waited in \S+ in \w+ for 5 s"),
        pytest.param("kill", 137, r"has ended without a word \(it crashed, or was killed\)", marks=pytest.mark.nightly),
        ("save", 3, r"failed to save to \S+state: OSError: \[Errno 28\] No space left on device"),
    ],
)
def test_waits_for_others_in_other_libraries_end(tmp_path: Path, kind: str, status: int, why: str) -> None:
    done = launched(kind, 1, str(tmp_path), timeout=5.0)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    for survivor in (0, 2):
        told = rf"\[{survivor}\] (mpmd_trace|caught): error: process {survivor} cannot go on: process 1 {why}"
        assert re.search(told, done.stdout + done.stderr), done.stdout + done.stderr
    if kind in ("exit", "raise", "leave"):
        assert "multihost_utils.py" in done.stderr and "ends.py" in done.stderr


def test_a_fault_without_a_launcher(tmp_path: Path) -> None:
    """Where the one with the coordination service fails, the others end with their own status."""
    found = plainly("exit", 0, timeout=5.0)
    assert [status for status, _ in found] == [3, 1, 1], found
    assert all("cannot go on: process 0 ended with status 3" in text for _, text in found[1:])
    assert "cannot go on" not in found[0][1]
