"""Costs and memory of a program, as XLA counts them or as they are estimated."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

from mpmd_trace.backend.placement_report import placement_report
from mpmd_trace.backend.placement_tables import PlacementReport
from mpmd_trace.backend.plan import Plan, ProgramSpec
from mpmd_trace.backend.runtime import Runtime
from mpmd_trace.diagnostics.tables import Shown, Table, in_units


@dataclasses.dataclass(frozen=True)
class MemoryAnalysis:
    """Bytes per device on one mesh.

    `peak` follows the plan: arguments, live values and the scratch memory of the program that runs.  It does
    not count that issuing may run ahead of the devices.  Meshes that share devices have the peak of these, each the
    same; the rest is of a mesh alone.
    """

    peak: int
    arguments: int
    results: int
    temporary: int
    code: int


class MemoryReport(Shown, dict[str, MemoryAnalysis]):
    """The memory of one device of each mesh in bytes, by the name of the mesh; as text and in notebooks, a table."""

    @property
    def tables(self) -> list[Table]:
        names = [field.name for field in dataclasses.fields(MemoryAnalysis)]
        rows = [[mesh, *(in_units(getattr(one, name)) for name in names)] for mesh, one in self.items()]
        return [Table("memory of a device of each mesh", ["mesh", *names], rows)]

    @property
    def table(self) -> Table:
        """The table, under the name that it had in the release before this one."""
        warnings.warn("memory_analysis().table is memory_analysis().tables[0]", DeprecationWarning, stacklevel=2)
        return self.tables[0]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A program that is not compiled, with estimates of what an executable reports."""

    spec: ProgramSpec
    cost: dict[str, float]
    temporary_bytes: int
    reused_bytes: int
    code_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Estimates:
    """The executables of a program that is not compiled, in place of its runtime."""

    own_executables: list[Estimate]


class CountedProgram:
    """A base of programs that have a plan: their costs, their memory, and the report of their placement."""

    plan: Plan
    runtime: Runtime | Estimates

    def cost_analysis(self) -> dict[str, Any]:
        """Return XLA's estimates: sums over all devices for one call, and per program for one device and run.

        With several processes, they are those of the programs of this one.

        Keys: `flops`, `bytes accessed`, `transfers`, `bytes transferred`, and `programs`, a dictionary from
        the name and mesh of a program to its `runs` and everything that XLA says about it.
        """
        plan = self.plan
        runs, devices = [0] * len(plan.programs), plan.devices
        for run in plan.runs:
            runs[run.program] += 1
        totals = {"flops": 0.0, "bytes accessed": 0.0}
        programs: dict[str, dict[str, float]] = {}
        for executable in self.runtime.own_executables:
            spec, cost = executable.spec, executable.cost
            count = runs[spec.number]
            for key in totals:
                totals[key] += cost.get(key, 0.0) * count * devices[spec.mesh]
            programs[f"p{spec.number} {spec.callee} on {spec.mesh}"] = {"runs": count, **cost}
        return {
            **totals,
            "transfers": sum(len(t.outputs) for t in plan.transfers),
            "bytes transferred": plan.transferred_bytes,
            "programs": programs,
        }

    def memory_analysis(self) -> MemoryReport:
        """Return the bytes per device for each mesh; with several processes, for those of this one."""
        plan, executables = self.plan, self.runtime.own_executables
        temporary, reused = self.scratch
        peaks = plan.live_bytes(temporary, reused)

        def held(slots: Sequence[int], mesh: str) -> int:
            return sum(plan.slots[s].bytes for s in dict.fromkeys(slots) if plan.slots[s].mesh == mesh)

        return MemoryReport(
            {
                mesh: MemoryAnalysis(
                    peak=peaks[mesh],
                    arguments=held(plan.arguments, mesh),
                    results=held(plan.results, mesh),
                    temporary=max((temporary[e.spec.number] for e in executables if e.spec.mesh == mesh), default=0),
                    code=sum(e.code_bytes for e in executables if e.spec.mesh == mesh),
                )
                for mesh in self.own_meshes
            }
        )

    @property
    def own_meshes(self) -> Sequence[str]:
        """The meshes of this process, in the order of the plan."""
        return list(self.plan.meshes)

    @property
    def scratch(self) -> tuple[dict[int, int], dict[int, int]]:
        """The bytes of scratch memory, and of donated values that become results, of each program by number."""
        executables = self.runtime.own_executables
        temporary = {e.spec.number: e.temporary_bytes for e in executables}
        return temporary, {e.spec.number: e.reused_bytes for e in executables}

    def placement_report(self) -> PlacementReport:
        """Return what each mesh holds and what moves between them, with the scratch memory of the programs."""
        return placement_report(self.plan, *self.scratch)
