"""What is known of each program that XLA compiled."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from mpmd_trace.backend.load import LoadedProgram

__all__ = ["ExecutableInfo", "executables"]


@dataclasses.dataclass(frozen=True)
class ExecutableInfo:
    """A program of a compiled step, on one mesh; see `jax.stages.Compiled` for what XLA says of it.

    name: that of its function in the "mpmd" text and in the plan.
    mesh: where it runs.
    runs: how often in a step.
    donated: the positions of the arguments whose memory it takes.
    compiled_as: the program that XLA compiled for it, equal but for names, whose names its text and profiles have.
    """

    name: str
    mesh: str
    runs: int
    donated: tuple[int, ...]
    compiled_as: str
    _compiled: Any = dataclasses.field(repr=False)

    def as_text(self) -> str:
        """The HLO that XLA has optimized; each op has the `op_name` and the source line that `jax.jit` gives it."""
        return str(self._compiled.as_text())

    def runtime_executable(self) -> Any:
        """Return the executable of XLA itself, as `jax.stages.Compiled.runtime_executable` has it."""
        return self._compiled.runtime_executable()

    def cost_analysis(self) -> Any:
        """XLA's estimates for one device and run: `flops`, `bytes accessed` and others."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """Bytes on one device: `argument_size_in_bytes`, `output_size_in_bytes`, `temp_size_in_bytes` and others."""
        return self._compiled.memory_analysis()


def executables(program: LoadedProgram) -> list[ExecutableInfo]:
    """Return the programs, in the order of the plan; with several processes those of this one."""
    runs = collections.Counter(run.program for run in program.plan.runs)
    return [
        ExecutableInfo(e.name, e.spec.mesh, runs[e.spec.number], e.spec.donated, e.compiled_as, e.compiled)
        for e in program.runtime.own_executables
    ]
