"""Lets the tests of this folder import their shared programs, and count what is partitioned."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mpmd_trace.api import partitioned as program

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For each time that a program is partitioned the phases; a program that is compiled was partitioned once."""
    calls: list[str] = []
    real = program.partition_as

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs.get("phases", "all"))
        return real(*args, **kwargs)

    monkeypatch.setattr(program, "partition_as", counting)
    return calls
