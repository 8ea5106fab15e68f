"""A program of several processes, each of which loads and runs its own part."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from mpmd_trace.backend.distribution.consistency import check_consistency
from mpmd_trace.backend.distribution.job import joined
from mpmd_trace.backend.distribution.measured_step import measure_together
from mpmd_trace.backend.distribution.reshard import reshard_across_processes
from mpmd_trace.backend.distribution.runtime import process_runtime
from mpmd_trace.backend.executables import CompilerOptions, Executable
from mpmd_trace.backend.placement import Placement
from mpmd_trace.backend.plan import Plan
from mpmd_trace.backend.runtime import Runtime
from mpmd_trace.backend.timeline import Timeline


class MultiProcessProgram:
    """The common work of the processes of a program; all of them make one for the same program at the same time.

    Raises:
        MpmdError: when this process has not joined the others, or they have another program.
    """

    def __init__(self, plan: Plan, placement: Placement, options: CompilerOptions, text: str) -> None:
        job = joined()
        self._job, self._plan, self._placement = job, plan, placement
        self._number = check_consistency(job, plan, placement, options, text)

    def failed(self, error: BaseException) -> BaseException:
        """Report an error of compiling to the other processes, and return what to raise."""
        return self._job.peers.failed(error, f"to compile {self._plan.name}")

    def runtime(self, executables: Sequence[Executable]) -> Runtime:
        """Return what runs the part of this process, when all have compiled theirs."""
        with self._job.peers.telling(f"to load {self._plan.name}"):
            # Who has less to compile must not start: waiting for others would be a fault, and XLA waits half a minute.
            if self._number:  # a program of one process is compiled by that one alone
                self._job.peers.allgather_bytes("end of compiling", b"", patient=True)
            self._runtime = process_runtime(self._plan, executables, self._placement, self._job, self._number)
        return self._runtime

    def move(self, x: jax.Array, spec: jax.ShapeDtypeStruct) -> jax.Array:
        """Move an argument that is a result of ours from the devices of one process to those of another."""
        return reshard_across_processes(self._job, x, spec)

    def measure(self, args: Sequence[jax.Array]) -> tuple[list[jax.Array], Timeline]:
        return measure_together(self._runtime, self._plan, args)
