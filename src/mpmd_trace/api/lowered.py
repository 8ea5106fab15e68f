"""A program ready to be compiled by XLA."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax

from mpmd_trace.api import compilation_cache
from mpmd_trace.api.compiled import Compiled
from mpmd_trace.api.options import compiler_options as chosen_options
from mpmd_trace.api.options import former_option, options_of_overlap
from mpmd_trace.api.partitioned import PartitionedProgram, loud, tell_once
from mpmd_trace.backend.executables import Known
from mpmd_trace.backend.load import LoadedProgram, argument_checker, load
from mpmd_trace.backend.placement_report import placement_report
from mpmd_trace.backend.placement_tables import PlacementReport, Traffic
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError, listed, shortened
from mpmd_trace.diagnostics.progress import LOG, stage, without_bar
from mpmd_trace.diagnostics.tables import as_html
from mpmd_trace.frontend.errors import callers_place, problem, raise_problems, recorded_warnings, warn
from mpmd_trace.frontend.traced import Traced
from mpmd_trace.ir.garbage_collection import paused_collector
from mpmd_trace.jax_compat.lowering import platform_of
from mpmd_trace.passes.memory.remarks import PeakRemark


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Lowered(PartitionedProgram):
    """A traced and partitioned program; the counterpart of `jax.stages.Lowered`."""

    keep_unused, compiler_options = former_option("keep_unused"), former_option("compiler_options")
    engine = former_option("engine")

    #: The key under which the persistent compilation cache keeps it, None: not at all.
    key: str | None = None
    #: Executables that programs of the same function have been compiled to for other arguments.
    known: Known | None = dataclasses.field(default=None, repr=False, compare=False)
    #: How often it was compiled before, to know what programs take besides values.
    attempts: int = 0

    def __repr__(self) -> str:
        return f"<mpmd_trace Lowered: {self._summary()}; {', '.join(self.config.topology)}; {self.schedule.name}>"

    def _repr_html_(self) -> str:
        report = self.placement_report()
        title = f"Lowered: {self._summary()}; schedule {self.schedule.name}"
        return as_html(title, [self.config.table, report.held, report.moves, report.links])

    @paused_collector()
    @explains_internal_errors
    def compile(
        self,
        compiler_options: Mapping[str, Any] | None = None,
        *,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Compiled:
        """Compile an XLA executable for every distinct program.

        `progress(done, total, name)` is called as executables become ready.  `compiler_options`, as for
        `mpmd_trace.jit`, are used beside those given there.  Raises `MpmdError`, also when a mesh of the topology
        has no devices.
        """
        more = chosen_options(compiler_options, self.config, callers_place())
        meshes = self.config.topology
        given = (options_of_overlap(self.config), self.settings.compiler_options, more)
        options = {mesh: {k: v for one in given for k, v in one.get(mesh, {}).items()} for mesh in meshes}
        if self.config.is_abstract:
            message = (
                "the topology has abstract meshes, which have no devices to run on; make it of "
                "jax.sharding.Mesh to compile, or use lower(...).as_text() to look at the program, and its "
                "cost_analysis() and memory_analysis() for estimates"
            )
            raise MpmdError([problem(message, self.config.where)])
        if os.environ.get("MPMD_TRACE_LAUNCHED"):
            from mpmd_trace.api.processes import check_joined  # late: a process that is alone starts without it

            check_joined()
        _check_devices(self.config)
        _check_platform(self.config, self.traced)
        started = time.monotonic()
        lowered, program = self, self._load(options, progress, stored=not more)
        if self.stored is not None:
            for text, place in self.stored.warnings:
                warn(text, place)
            return Compiled(self, program)
        while (smaller := lowered._smaller(program)) is not None:
            lowered, program = smaller, smaller._load(options, progress)
        with recorded_warnings(lowered.warned):
            lowered._warn_of(program)
        if self.key is not None and not more:
            seconds = time.monotonic() - started
            compilation_cache.keep(self.key, lowered.stored_form(program), self.config, seconds)
        return Compiled(lowered, program)

    def check_given_twice(self, flat: Sequence[Any]) -> None:
        """Raise `MpmdError` for arrays that are donated and given twice: before XLA compiles, which may take long."""
        traced, given = self.traced, Counter(id(x) for x in flat if isinstance(x, jax.Array))
        is_here = traced.stacks is None and not self.config.is_abstract and jax.process_count() == 1
        if is_here and any(given[id(flat[i])] > 1 for i in traced.signature.donated):
            keep_unused = self.settings.keep_unused
            checker = argument_checker(self.partitioned.module, self.config.topology, keep_unused=keep_unused)
            checker.check_given_twice([*traced.constants, *flat])

    def _load(
        self,
        options: Mapping[str, Mapping[str, Any]],
        progress: Callable[[int, int, str], None] | None,
        *,
        stored: bool = True,
    ) -> LoadedProgram:
        """Return the executables of the program as it is: those that are stored, if they may be used, or new ones."""
        ready = {} if self.stored is None or not stored else self.stored.ready
        name = self.traced.name
        plan = None if self.stored is None or not ready else pickle.loads(self.stored.plan)
        with contextlib.ExitStack() as around:
            if progress is not None:
                around.enter_context(without_bar())
            # Before the next stage, which is reported by itself.
            module = (lambda: self.partitioned.module) if plan is not None else self.partitioned.module
            shown = around.enter_context(stage("load" if ready else "XLA", name, loud=loud()))

            def count(done: int, total: int, program: str) -> None:
                LOG.debug("XLA of %s: %d of %d programs, %s", name, done, total, program)
                if shown is not None:
                    shown.count(done, total, program)
                if progress is not None:
                    progress(done, total, program)

            return load(
                module,
                dict(self.config.topology),
                progress=count,
                compiler_options=options,
                host_callbacks=() if self.stored is not None else self.traced.host_callbacks,
                keep_unused=self.settings.keep_unused,
                ready=ready,
                plan=plan,
                known=self.known,
            )

    def _smaller(self, program: LoadedProgram) -> Lowered | None:
        """Return the program with less activations and copies, where XLA's programs take more than was known."""
        if self.attempts > 2 or not self.limit or max(program.peaks.values()) <= self.limit:
            return None
        remarks = [one for one in self.partitioned.diagnostics if isinstance(one, PeakRemark)]
        expected = {mesh: one.bytes for one in remarks for mesh in one.meshes}
        # A plan may hold more than the passes expected, e.g. transfers that arrive early.  Where what XLA needs besides
        # the values of the plan changes nothing, that is to be reserved as well.
        for values in filter(None, (program.plan.live_bytes(), expected)):
            more = reserved(program.peaks, values, self.limit, self.reserved)
            other = dataclasses.replace(self, reserved=more, attempts=self.attempts + 1, warned=[])
            with warnings.catch_warnings():  # they were said
                warnings.simplefilter("ignore")
                if str(other.partitioned.module) != str(self.partitioned.module):
                    other.warned[:] = self.warned
                    return other
        return None

    def _warn_of(self, program: LoadedProgram) -> None:
        """Warn of what is known now that it is compiled."""
        if self.settings.donation.warns:
            _warn_of_donations(program, self.traced)
        options = self.config.options
        if options.remat is not None or options.offload is not None:
            for text in missing(program, self.limit):
                warn(text, self.config.where)
        self._warn_of_idle_meshes(program)
        given = [{i for i, place in enumerate(places) if place is not None} for places in self.assignments]
        own = {self.traced.inputs[i].name for i in given[0]}
        for text in placement_warnings(placement_report(program.plan, held=False), own, given[1]):
            warn(text, self.config.where)

    def _warn_of_idle_meshes(self, program: LoadedProgram) -> None:
        """Say which meshes no name is assigned to, and neither hold nor compute anything."""
        used = {slot.mesh for slot in program.plan.slots} | {run.mesh for run in program.plan.runs}
        # Meshes of a list of numbers of layers are left without any on purpose.
        assigned = self.config.assigned_meshes.union(self.config.stage_meshes)
        idle = [name for name in self.config.topology if name not in assigned and name not in used]
        if idle and jax.process_index() == 0:
            some = f"the mesh {idle[0]!r} has" if len(idle) == 1 else f"the meshes {', '.join(map(repr, idle))} have"
            tell_once(
                f"{some} nothing to do in {self.traced.name}, since no name is assigned there. Assign names (or "
                "'auto', which assigns them by their work), or leave the mesh out of the topology "
                f"({self.config.where})"
            )


def _warn_of_donations(program: LoadedProgram, traced: Traced) -> None:
    """Warn of donated arguments whose memory nothing reuses; it is freed all the same."""
    plan = program.plan
    reused = set()
    for run in plan.runs:
        spec = plan.programs[run.program]
        free = [type for type, *_ in spec.outputs]
        for position in run.donated:
            type = spec.inputs[position][0]
            if type in free:
                free.remove(type)
                reused.add(run.inputs[position])
    constants = len(traced.constants)
    names = [traced.inputs[slot - constants].name for slot in sorted(plan.donated.difference(reused, plan.results))]
    if names:
        warn(
            f"no program of {traced.name} reuses the memory of these donated arguments, which is freed after the step: "
            + listed(names, 8)
        )


def _check_platform(config: Config, traced: Traced) -> None:
    """Raise `MpmdError` for a program that was lowered for devices that the meshes do not have."""
    platforms = {platform_of(mesh) for mesh in config.topology.values()}
    if len(platforms) == 1 and traced.platform not in platforms:
        raise MpmdError(
            f"{traced.name} was lowered for {traced.platform}, and the devices of the meshes are "
            f"{', '.join(map(str, platforms))}: leave lowering_platforms out to compile for them"
        )


def _check_devices(config: Config) -> None:
    """Raise `MpmdError` for meshes with devices that this process cannot use."""
    problems = []
    for name, mesh in config.topology.items():
        missing = [d for d in mesh.devices.flat if d not in d.client.devices()]
        if missing:
            problems.append(
                f"the mesh {name!r} has {missing[0]}, which is not a device of this process. Make the mesh of devices "
                f"in jax.devices(); there are {len(jax.devices())}."
            )
    raise_problems(problems, config.where)


# Whether compiled programs fit into memory, as XLA says.


def reserved(
    peaks: Mapping[str, int], values: Mapping[str, int], limit: int, known: Mapping[str, int]
) -> dict[str, int]:
    """Return the bytes on a device of each mesh that are not for values, for a step that does not fit into `limit`.

    `known`: those that were reserved when the program was made, and were too few.
    """
    result = {}
    for mesh, peak in peaks.items():
        before = known.get(mesh, 0)
        result[mesh] = max(before, peak - values.get(mesh, peak), before + peak - limit if known else 0)
    return result


def missing(program: LoadedProgram, limit: int) -> Iterator[str]:
    """Yield what to say where a step does not fit, or where that is unknown."""
    if not limit:
        yield (
            "remat and offload have no effect, because the devices do not say how much memory they have: give "
            "make_config(device_memory=...) in bytes"
        )
        return
    peaks = program.peaks.items()
    above = [f"{peak - limit:,} bytes too many on mesh {mesh!r}" for mesh, peak in peaks if peak > limit]
    if above:
        yield (
            f"a step does not fit into {limit:,} bytes of a device, whatever is done with activations: "
            f"{', '.join(above)}. Take smaller microbatches, more stages, or shard parameters and the optimizer's "
            "state (optimizer_sharding)"
        )


# What a person would not have drawn in the placement of a step, with the way out.


#: Warnings are about at least so many bytes of a step; `Lowered.placement_report` has everything.
COSTLY = 2**20
#: Unnamed code may send so much of what a step sends.
_UNNAMED = 0.25
_MOST = 3


def placement_warnings(
    report: PlacementReport, assigned: Collection[str] = (), results: Collection[int] = (), costly: int = COSTLY
) -> Iterator[str]:
    """Yield what costs at least `costly` bytes in a step, each kind in one text, the largest values first.

    `assigned`: the arguments whose mesh the user chose, and `results` the results; who knows what that costs.
    """
    misplaced = [one for one in report.misplaced if one.name not in assigned]
    if misplaced and sum(one.bytes for one in misplaced) >= costly:
        lines = [
            f"{a.name} ({a.bytes:,} bytes) is on {a.mesh} and "
            + (f"belongs to {a.of} on {a.used_on[0]}" if a.of else f"used on {' and '.join(a.used_on)}")
            for a in misplaced
        ]
        yield (
            "misplaced parameters, or states of them: they are not on the mesh whose named code uses the parameter, so "
            f"they, gradients or updates move in every step: {_listed(lines)}. The cause is unnamed code that needs "
            "large values of several meshes (mpmd-trace explain says which): let it take a scalar through "
            "mpmd_trace.broadcast, or put them where the parameter is used with input_mesh_assignment and "
            "mpmd_trace.MeshOfInput (docs/steps.md)"
        )
    returning = [one for one in report.returning if one.name not in assigned and one.result not in results]
    if returning and sum(one.bytes for one in returning) >= costly:
        lines = [f"{one.name} ({one.bytes:,} bytes) from {one.leaves} to {one.mesh}" for one in returning]
        yield (
            "results of a step are on another mesh than the arguments that they replace, so every step of a loop "
            f"moves them back: {_listed(lines)}. output_mesh_assignment with mpmd_trace.MeshOfInput keeps both on one "
            "mesh (docs/steps.md)"
        )
    if sum(one.bytes for one in report.gathered) >= costly:
        lines = [
            f"{one.what} ({one.bytes:,} bytes on each device in a step) from {one.source} to {one.target}, split over "
            f"{' and '.join(map(repr, one.axes))} on {one.source}"
            for one in report.gathered
        ]
        yield (
            "values that are sharded over axes of their mesh arrive unsharded on a mesh of another shape that has such "
            f"axes: {_listed(lines)}. Shardings do not propagate between meshes of different shapes: state them in the "
            "computation that takes the value, with jax.lax.with_sharding_constraint over its own mesh"
        )
    sent = [one for one in report.sent if one.cause not in ("small", "host memory")]
    repeated = [one for one in sent if one.times > 1 and _again(one)]
    if sum(map(_again, repeated)) >= costly:
        lines = [f"{one.what}, {one.times} times from {one.source} to {one.target}" for one in repeated]
        yield (
            f"{sum(map(_again, repeated)):,} bytes of a step are values that are sent to the same mesh again, though "
            f"they do not change: {_listed(lines)}. Compute what needs them in a named computation on that mesh, once "
            "for all microbatches"
        )
    unnamed = [one for one in report.sent if one.cause == "unnamed code"]
    size = sum(one.bytes for one in unnamed)
    if size >= costly and size >= _UNNAMED * report.bytes:
        lines = [f"{one.what} ({one.bytes:,} bytes) from {one.source} to {one.target}" for one in unnamed]
        yield (
            f"{size:,} of the {report.bytes:,} bytes that a step sends are for unnamed code: {_listed(lines)}. "
            "Name the computation that computes or reads them (mpmd_trace.named_computation) and assign it to the mesh "
            "of its largest values"
        )


def _again(sent: Traffic) -> int:
    """Return the bytes of all times but the first."""
    return sent.bytes * (sent.times - 1) // sent.times


def _listed(lines: list[str]) -> str:
    return "; ".join(line.strip() for line in shortened(lines, _MOST))
