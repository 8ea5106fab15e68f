"""The command line, in the process of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Command, Writer, runner


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command of `mpmd-trace`."""
    return runner(capsys)


@pytest.fixture
def opt(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `mpmd-trace opt`."""
    return runner(capsys, "opt")


@pytest.fixture
def written(tmp_path: Path) -> Writer:
    """Writes a text to a file of this name, and gives its path."""

    def write(text: str, name: str = "in.mlir") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write
