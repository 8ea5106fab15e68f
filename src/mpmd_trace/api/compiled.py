"""A compiled program, ready to be called."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import warnings
from typing import Any

import jax

from mpmd_trace.api import compilation_cache
from mpmd_trace.api.calling_convention import CallingConvention
from mpmd_trace.api.equinox_errors import checks_of, errors_of_equinox
from mpmd_trace.api.partitioned import Dialect, PartitionedProgram
from mpmd_trace.api.stage_info import InOut, StageInfo
from mpmd_trace.api.step_stats import StepClock, StepStats, plan_bubble, step_stats
from mpmd_trace.backend.collectives import CollectivesReport
from mpmd_trace.backend.cost_analysis import MemoryReport
from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.placement_tables import PlacementReport
from mpmd_trace.backend.serialization import serialize
from mpmd_trace.backend.timeline import Timeline
from mpmd_trace.diagnostics.files import check_output, write_file
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.diagnostics.tables import as_html
from mpmd_trace.frontend.errors import warn
from mpmd_trace.jax_compat.forks import check_not_forked
from mpmd_trace.jax_compat.layouts import full_format, place_of, put
from mpmd_trace.passes.partition import IoSpec
from mpmd_trace.scheduling.utilization import model_flops


class Compiled(StageInfo):
    """A compiled program.  Call it with arguments of the types for which it was lowered.

    Arguments that are elsewhere are moved to the meshes and shardings of the program first; `place` does this in
    advance.
    """

    def __init__(self, lowered: PartitionedProgram, program: LoadedProgram) -> None:
        self.lowered = lowered
        self.program = program
        self.traced = traced = lowered.traced
        self.settings = lowered.settings
        self._clock = StepClock()
        program.explain_placing(
            "move it with compiled.place(*args), which puts all arguments where the program wants them, or "
            "with jax.device_put and a sharding of compiled.function_named_shardings.inputs"
        )
        program.warn_of_copies(warn)
        specs, count = program.input_specs, len(traced.constants)
        is_attached = program.placement.described is None
        self._constants = [put(c, spec) if is_attached else c for c, spec in zip(traced.constants, specs, strict=False)]
        self._in_specs = list(specs[count:])
        self._caller = CallingConvention(traced, self.settings.adapter, self._in_specs, list(program.output_specs))
        #: Checks of Equinox by which it may fail, so that each call waits for the step, as in `equinox.filter_jit`.
        self._checks = checks_of(traced)

    def __repr__(self) -> str:
        programs, runs = len(self.program.plan.programs), len(self.program.plan.runs)
        return f"<mpmd_trace Compiled: {self._summary()}; {programs} programs, {runs} runs a step>"

    def _repr_html_(self) -> str:
        programs, runs = len(self.program.plan.programs), len(self.program.plan.runs)
        title = f"Compiled: {self._summary()}; {programs} programs, {runs} runs a step"
        report = self.placement_report()
        return as_html(title, [*self.memory_analysis().tables, report.moves, report.links])

    # Calling.

    @explains_internal_errors
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.settings.adapter.calling():
            return self.call_flat(self._caller.flat(args, kwargs))

    def call_flat(self, flat: list[Any]) -> Any:
        """Return the result for the leaves of the arguments (static ones left out)."""
        check_not_forked()
        self.program.check_attached()
        self._clock.tick()
        physical = self._caller.physical(flat)
        if self._checks:
            with errors_of_equinox(self._checks, self.lowered.config):
                results = jax.block_until_ready(self.program(*self._constants, *physical))
        else:
            results = self.program(*self._constants, *physical)
        self._caller.delete_donated(flat)
        return self._caller.result(results)

    @explains_internal_errors
    def measure(self, *args: Any, **kwargs: Any) -> tuple[Any, Timeline]:
        """Run a step; return its result, and the start and end of each program and transfer on each mesh."""
        check_not_forked()
        self.program.check_attached()
        with self.settings.adapter.calling():
            flat = self._caller.flat(args, kwargs)
            results, timeline = self.program.measure(*self._constants, *self._caller.physical(flat))
            self._caller.delete_donated(flat)
            return self._caller.result(results), timeline

    def accept_stacked_results(self, ours: dict[int, Any]) -> None:
        """Know stacked results again, as `LoadedProgram.accept_misplaced_results` does others: by their shardings."""
        stacked = self._caller.stacked_out
        if stacked is not None:
            ours.update((id(s), s) for s in stacked.shardings if s is not None)

    @explains_internal_errors
    def place(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Move each array to its mesh and sharding; return the arguments as `(args, kwargs)`.

        A Ref is returned as it is, and has its array there.
        """
        check_not_forked()
        self.program.check_attached()
        with self.settings.adapter.calling():
            physical = self._caller.physical(self._caller.flat(args, kwargs))
            result: tuple[tuple[Any, ...], dict[str, Any]] = self._caller.placed(physical)
        return result

    @explains_internal_errors
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file: its plan and executables, which `mpmd_trace.load` reads without tracing.

        An existing file is replaced when the new file is complete.

        Raises `MpmdError` if the file cannot be written, if the program calls back Python functions, if static parts
        of its arguments cannot be written, or if it runs in several processes.
        """
        self.program.check_attached()
        check_output(os.fspath(path))
        lowered = self.lowered
        if lowered.stored is None and lowered.traced.host_callbacks:
            raise MpmdError(
                f"{lowered.traced.name} calls back Python functions (jax.debug.print, pure_callback, io_callback), "
                "which cannot be written to a file; take them out"
            )
        if jax.process_count() > 1:
            raise MpmdError("a program of several processes cannot be written to a file: each of them has a part of it")
        data = serialize(
            lowered.stored_form(self.program), compilation_cache.signature(self.traced, self.settings.adapter)
        )
        write_file(path, data)

    def step_stats(self, *, tokens: int | None = None, peak_flops: float | None = None) -> StepStats:
        """Return step time, tokens per second, MFU, bubble, bytes sent and the peak memory on each mesh.

        It does not wait for the devices.  To collect the times, each call of the program only reads the clock once.

            if step % 100 == 0:
                logger.log(step, dataclasses.asdict(compiled.step_stats(tokens=batch.size)))

        Args:
            tokens: the number of tokens (or samples) of a step.
            peak_flops: the peak FLOP/s of one device; by default that of common GPUs and TPUs (dense bfloat16).
        """
        flops, bubble = self._costs
        return step_stats(self.program, self._clock, flops, tokens, peak_flops, bubble)

    @functools.cached_property
    def _costs(self) -> tuple[float | None, float]:
        """The FLOPs of the model in a step (None for a loaded program, which has no trace), and the bubble."""
        plan = self.program.plan
        # XLA says nothing of the programs of other processes.
        counted = self.lowered.estimated if None in self.program.runtime.executables else self.program
        flops = {e.spec.callee: e.cost.get("flops", 0.0) for e in counted.runtime.own_executables}
        bubble = plan_bubble(plan, [flops.get(program.callee, 0.0) for program in plan.programs])
        return None if self.lowered.stored is not None else model_flops(self.lowered.compiler_ir("stablehlo")), bubble

    # What is known about it.

    @property
    def function_named_shardings(self) -> InOut:
        """The `NamedSharding` of each argument and result."""
        return InOut(self.input_shardings, self.output_shardings)

    @property
    def input_shardings(self) -> Any:
        """The sharding of each argument, as `(args, kwargs)`; see `jax.stages.Compiled`."""
        return self._caller.of_inputs([spec.sharding for spec in self._in_specs])

    @property
    def output_shardings(self) -> Any:
        """The sharding of each result."""
        return self._caller.of_outputs(list(self.program.output_shardings))

    @property
    def out_info(self) -> Any:
        """Type and sharding of each result, as `jax.ShapeDtypeStruct`; layers in unequal pieces have no sharding."""
        return self.function_types.outputs

    @property
    def input_formats(self) -> Any:
        """Sharding and layout in memory of each argument, as `(args, kwargs)`; see `jax.stages.Compiled`."""
        return self._caller.of_inputs(list(map(full_format, self._in_specs)))

    @property
    def output_formats(self) -> Any:
        """Sharding and layout in memory of each result."""
        return self._caller.of_outputs(list(map(full_format, self.program.output_specs)))

    @property
    def function_mesh_assignment(self) -> InOut:
        """The mesh name of each argument and result; a tuple of them for layers in pieces."""
        count = len(self._constants)
        inputs: list[IoSpec] = self.lowered.partitioned.input_specs[count:]
        outputs: list[IoSpec] = self.lowered.partitioned.output_specs
        return self._caller.in_out([s.mesh for s in inputs], [s.mesh for s in outputs])

    @property
    def function_types(self) -> InOut:
        """Shape, dtype and sharding of each argument and result, as `jax.ShapeDtypeStruct`."""
        traced = self.traced
        places = [place_of(s) for s in (*self._in_specs, *self.program.output_specs)]
        types = [
            jax.ShapeDtypeStruct(leaf.struct.shape, leaf.struct.dtype, sharding=place)
            for leaf, place in zip([*traced.inputs, *traced.outputs], places, strict=True)
        ]
        return self._caller.in_out(types[: len(traced.inputs)], types[len(traced.inputs) :])

    def cost_analysis(self) -> dict[str, Any]:
        """Return XLA's counts of floating-point operations and bytes, per mesh and in total, and the bytes moved."""
        return self.program.cost_analysis()

    def memory_analysis(self) -> MemoryReport:
        """Return for each mesh the bytes of one device: the peak under the schedule, arguments, results, scratch.

        The result is a dict; `print` and notebooks show it as a table.
        """
        return self.program.memory_analysis()

    def collectives(self) -> CollectivesReport:
        """Return for each mesh the collectives that one device runs in a step, from XLA's optimized programs.

        `print` shows a table.
        """
        return self.program.collectives()

    def executables(self) -> list[ExecutableInfo]:
        """Return the programs that XLA compiled: where and how often each runs, its optimized HLO, cost and memory.

        They are in the order of the plan; with several processes those of this one.
        """
        runs = collections.Counter(run.program for run in self.program.plan.runs)
        return [
            ExecutableInfo(e.spec.callee, e.spec.mesh, runs[e.spec.number], e.spec.donated, e.compiled_as, e.compiled)
            for e in self.program.runtime.own_executables
        ]

    def runtime_executable(self) -> dict[tuple[str, str], Any]:
        """Return XLA's executable of each program of this process, by its name and mesh; see `jax.stages.Compiled`."""
        return {(one.name, one.mesh): one.runtime_executable() for one in self.executables()}

    def placement_report(self) -> PlacementReport:
        """Return what each mesh holds (its peak with temporary memory), and what is sent between meshes, by cause."""
        return self.program.placement_report()

    def residence(self) -> PlacementReport:
        """Return `placement_report()`; the name of before, for one release."""
        warnings.warn("residence() is called placement_report()", DeprecationWarning, stacklevel=2)
        return self.placement_report()

    def as_text(self, dialect: Dialect = "mpmd", *, debug_info: bool = False) -> str:
        """Return the program as text: "jaxpr", "stablehlo", "mpmd" as `Lowered.as_text`, "plan" as it runs."""
        return str(self.program.plan) if dialect == "plan" else self.lowered.as_text(dialect, debug_info=debug_info)


# What is known of each program that XLA compiled.


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
        """Return the HLO that XLA has optimized; each op has the `op_name` and source line that `jax.jit` gives it."""
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
