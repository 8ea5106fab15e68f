"""Faults: reasons why a job of several processes cannot go on."""

from __future__ import annotations

import dataclasses

from mpmd_trace.diagnostics.messages import MpmdError


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """The reason why the job cannot go on: a process, and what about it (`process 2` is put before the text)."""

    process: int
    text: str

    def __str__(self) -> str:
        return f"process {self.process} {self.text}"


class PeerError(MpmdError):
    """Another process of the job has died, does not answer, has failed, or does not send what it should.

    This process can go on, but not with programs over several processes.  `process` is the number of the other one.
    """

    def __init__(self, message: str, process: int) -> None:
        super().__init__(message)
        self.process = process
