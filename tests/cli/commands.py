"""Running commands of `mpmd-trace` in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from mpmd_trace_cli.entry import main


class Result(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Result]
#: Writes a text to a file of a name, and gives its path.
Writer = Callable[..., str]


def runner(capsys: pytest.CaptureFixture[str], *first: str) -> Command:
    """Runs `mpmd-trace` with the arguments `first` and those of the call."""

    def call(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as stop:
            main([*first, *arguments])
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return call
