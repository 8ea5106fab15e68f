"""The command line, in the process of the tests."""

from __future__ import annotations

import pytest
from commands import Command, runner


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command of `mpmd-trace`."""
    return runner(capsys)
