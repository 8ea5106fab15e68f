"""From an exported module and meshes to something that can be called."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh, NamedSharding

from mpmd_trace.backend.arguments import ArgumentChecker
from mpmd_trace.backend.collectives import Collectives, CollectivesReport, collectives_of
from mpmd_trace.backend.cost_analysis import CountedProgram
from mpmd_trace.backend.executables import CompilerOptions, Executable, Known, Progress, compile_programs
from mpmd_trace.backend.placement import Placement, check_topology, device_owners
from mpmd_trace.backend.plan import Plan, ProgramSpec, parse_mesh
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.backend.runtime import Runtime
from mpmd_trace.backend.timeline import Timeline, measure
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError, shortened
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import read_module
from mpmd_trace.jax_compat import runtime as compat
from mpmd_trace.jax_compat.forks import check_not_forked

if TYPE_CHECKING:
    from mpmd_trace.backend.distribution.multi_process_program import MultiProcessProgram

#: Held while a step is issued.  Devices must get the programs that run on several of them in one order, or
#: collectives of two steps wait for each other.
ISSUING = threading.RLock()


class LoadedProgram(CountedProgram):
    """A compiled program on its meshes; call it with the flat list of its arguments."""

    runtime: Runtime

    def __init__(
        self,
        plan: Plan,
        runtime: Runtime,
        placement: Placement,
        keep_unused: bool = False,
        together: MultiProcessProgram | None = None,
    ) -> None:
        self.plan = plan
        self.runtime = runtime
        self.placement = placement
        self.input_specs = _input_specs(plan, placement)
        self.output_specs: tuple[jax.ShapeDtypeStruct, ...] = tuple(
            placement.spec(*plan.slots[s].place) for s in plan.results
        )
        self.keeps_unused = keep_unused
        self._checker = ArgumentChecker(plan, self.input_specs, keep_unused)
        self._together = together
        if together is not None:
            self._checker.move = together.move
        self._has_run = False
        # What is returned as it came lives on.
        self._donated = sorted(plan.donated.difference(plan.results))

    @property
    def input_shardings(self) -> tuple[NamedSharding, ...]:
        """The sharding of each argument."""
        return tuple(s.sharding for s in self.input_specs)

    @property
    def output_shardings(self) -> tuple[NamedSharding, ...]:
        """The sharding of each result."""
        return tuple(s.sharding for s in self.output_specs)

    def explain_placing(self, remedy: str) -> None:
        """Say in messages how to move an argument; `{index}` in the text is its number."""
        self._checker.remedy = remedy

    def warn_of_copies(self, warn: Callable[[str], None]) -> None:
        """Call `warn` once if host arrays are copied in every call, and once if arrays of other programs are moved."""
        self._checker.warn = warn

    def accept_misplaced_results(self, ours: dict[int, Any], *, within_mesh: bool) -> None:
        """Take results as arguments from any mesh: our own, and those of the other programs that share `ours`.

        A state may leave a step on another mesh than the one where the step wants it, and is moved then.
        `within_mesh`: also one that is there already, but sharded or laid out in another way.
        """
        self._checker.ours = ours
        self._checker.moves_ours_within_mesh = within_mesh

    def _remember(self, results: Sequence[jax.Array]) -> None:
        """Know these results again, without those that are returned as they came, which have the caller's sharding."""
        self._has_run = True
        self._checker.know(
            [x for x, s in zip(results, self.plan.results, strict=True) if s >= len(self.plan.arguments)]
        )

    @property
    def topology(self) -> dict[str, Mesh]:
        return self.placement.meshes

    def __call__(self, *args: Any) -> list[jax.Array]:
        """Return the flat results.  Returns before the devices are done, as every JAX program does.

        Host arrays, arrays that JAX put somewhere by itself and results of earlier calls on another mesh are
        placed; others must have the sharding of `input_shardings`.  Donated arguments are gone afterwards.

        Raises:
            MpmdError: naming every argument that does not fit, and what to do about it.
        """
        self.check_attached()
        with ISSUING:
            placed = self._checker(args)
            try:
                given = self._given(args, placed)
                results = self.runtime.run(placed)
                for array in given:
                    array.delete()
                if not self._has_run:
                    self._remember(results)
                return results
            except BaseException as error:
                self._tell_donated(args, error)
                raise

    def check_attached(self) -> None:
        """Raise `MpmdError` if the devices are described and not attached."""
        if (described := self.placement.described) is not None:
            raise MpmdError(
                f"the program was compiled for {described.device_kind} devices that are described and not attached to "
                "this machine, so it cannot run here and takes no arrays. memory_analysis(), cost_analysis(), "
                "collectives() and executables() tell about it; to run it, compile it for the devices of jax.devices()"
            )

    def _tell_donated(self, args: Sequence[Any], error: BaseException) -> None:
        """Say which arguments are gone after a step that failed, or was interrupted, half way."""
        gone = [self._checker.name(i) for i in sorted(self.plan.donated) if _is_gone(args[i])]
        if gone:
            error.add_note(
                "this step had reused the buffers of donated arguments, which are gone:\n"
                + "\n".join(shortened([f"  {name}" for name in gone]))
                + "\nall others are as they were"
            )

    def _given(self, args: Sequence[Any], placed: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the donated arrays that had to be placed first: the runtime reuses the copy, but they are gone too."""
        return [args[i] for i in self._donated if args[i] is not placed[i] and isinstance(args[i], jax.Array)]

    def measure(self, *args: Any) -> tuple[list[jax.Array], Timeline]:
        """Return the results, and when each instruction ran on each mesh.

        Every mesh has a thread that waits for each of its programs; this is slower than a plain call.  With several
        processes all of them call this, and each gets the times of all, on the clock of process 0.
        """
        self.check_attached()
        with ISSUING:
            placed = self._checker(args)
            result = measure(self.runtime, placed) if self._together is None else self._together.measure(placed)
            for array in self._given(args, placed):
                array.delete()
            self._remember(result[0])
            return result

    def collectives(self) -> CollectivesReport:
        """For each mesh of this process the collectives that a device runs in a step, as XLA has them."""
        result = CollectivesReport({mesh: Collectives() for mesh in self.own_meshes})
        of = {e.spec.number: collectives_of(e.compiled) for e in self.runtime.own_executables}
        for run in self.plan.runs:
            if run.mesh in result:
                result[run.mesh] += of[run.program]
        return result

    @functools.cached_property
    def peaks(self) -> dict[str, int]:
        """The most bytes on a device of each mesh, of all processes, which all ask for it: they decide by it alike."""
        result = {mesh: memory.peak for mesh, memory in self.memory_analysis().items()}
        everyone = self.runtime.from_all("memory of programs", result)
        return {mesh: max(one.get(mesh, 0) for one in everyone) for mesh in self.plan.meshes}

    def memory_use(self) -> Iterator[tuple[int, str, int]]:
        """Yield what a device holds while an instruction runs, with its scratch memory; see `Plan.memory_use`."""
        return self.plan.memory_use(*self.scratch)

    @property
    def own_meshes(self) -> list[str]:
        return [mesh for mesh in self.plan.meshes if mesh in self.placement.own]

    def __repr__(self) -> str:
        return f"<LoadedProgram {str(self.plan).splitlines()[0]}>"


def _is_gone(x: Any) -> bool:
    return isinstance(x, jax.Array) and x.is_deleted()


def load(
    module: Module | Callable[[], Module],
    topology: Mapping[str, Mesh],
    *,
    progress: Progress | None = None,
    compiler_options: CompilerOptions | None = None,
    host_callbacks: Sequence[Any] = (),
    keep_unused: bool = False,
    ready: Mapping[int, bytes] = MappingProxyType({}),
    plan: Plan | None = None,
    known: Known | None = None,
) -> LoadedProgram:
    """Compile an exported module for these meshes.

    Args:
        module: the result of the export passes, or any module of that form: `@main` consists of fragment
            calls and transfers.  Or a function that gives it, when something is to be compiled.
        topology: the devices of each mesh of the program, with the same axes.
        progress: called after each program with (done, all, name).
        compiler_options: for each mesh XLA's options, as in `jax.stages.Lowered.compile`.
        keep_unused: whether arguments that nothing uses are placed, too.
        host_callbacks: the Python functions that the module calls back, by number; see `Traced.host_callbacks`.
        ready: serialized executables of programs, by number, which are not compiled.
        plan: that of the module, if it is known.
        known: executables of other plans, by what they compute; those of this one are added.

    Raises:
        MpmdError: when the module is not exported, meshes are missing or have other axes, or XLA refuses.
    """
    check_not_forked()
    given = module if callable(module) else lambda: module
    owners = device_owners(topology)
    if plan is None or any(plan.shared.get(mesh, mesh) != owners.get(mesh) for mesh in plan.meshes):
        plan, ready = make_plan(given(), owners=owners), {} if plan is not None else ready
    check_topology(TopologyAttr.get({name: parse_mesh(body) for name, body in plan.meshes.items()}), topology)
    plan, placement = _placed(plan, topology)
    options = compiler_options or {}
    alone = placement.processes == {jax.process_index()}
    together = None if alone else _joined(plan, placement, options, given())
    own = [spec for spec in plan.programs if spec.mesh in placement.own]
    restored = _restored(own, placement, ready)
    missing = tuple(spec for spec in own if spec.number not in restored)
    try:
        compiled = (
            []
            if not missing
            else compile_programs(
                given(),
                dataclasses.replace(plan, programs=missing),
                placement,
                progress=progress,
                compiler_options={mesh: chosen for mesh, chosen in options.items() if mesh in placement.own},
                host_callbacks=host_callbacks,
                known=known if together is None else None,  # what is still known may differ between processes
            )
        )
    except BaseException as error:
        if together is not None:
            raise together.failed(error) from None
        raise
    by_number = {**restored, **{e.spec.number: e for e in compiled}}
    executables = [by_number[spec.number] for spec in own]
    runtime = Runtime(plan, executables, placement) if together is None else together.runtime(executables)
    return LoadedProgram(plan, runtime, placement, keep_unused, together)


def argument_checker(module: Module, topology: Mapping[str, Mesh], *, keep_unused: bool) -> ArgumentChecker:
    """Return what checks the arguments of an exported module, which is not compiled."""
    plan, placement = _placed(make_plan(module, owners=device_owners(topology)), topology)
    return ArgumentChecker(plan, _input_specs(plan, placement), keep_unused)


def _placed(plan: Plan, topology: Mapping[str, Mesh]) -> tuple[Plan, Placement]:
    placement = Placement({name: topology[name] for name in plan.meshes})
    return placement.with_padding(plan), placement


def _input_specs(plan: Plan, placement: Placement) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(placement.spec(*slot.place) for slot in plan.slots[: len(plan.arguments)])


def _joined(plan: Plan, placement: Placement, options: CompilerOptions, module: Module) -> MultiProcessProgram:
    # A process that is alone starts without what several need, which takes as long to import as to place arguments.
    from mpmd_trace.backend.distribution.multi_process_program import MultiProcessProgram

    return MultiProcessProgram(plan, placement, options, module.to_generic())


def _restored(
    programs: Sequence[ProgramSpec], placement: Placement, ready: Mapping[int, bytes]
) -> dict[int, Executable]:
    """Return the programs whose executables are `ready`, but for those that the platform does not take."""
    result = {}
    first: dict[bytes, compat.Compiled] = {}
    on_devices: dict[tuple[bytes, tuple[int, ...]], compat.Compiled | None] = {}
    for spec in programs:
        executable = ready.get(spec.number)
        if executable is None:
            continue
        key = executable, placement.device_ids(spec.mesh)
        if key not in on_devices:
            results = [placement.spec(*place) for place in spec.outputs]
            devices = list(placement.meshes[spec.mesh].devices.flat)
            like = first.get(executable)
            if like is None:
                on_devices[key] = compat.deserialized(executable, devices, results)
            else:
                on_devices[key] = compat.rebound(like, devices, results)
        bound = on_devices[key]
        if bound is not None:
            first.setdefault(executable, bound)
            result[spec.number] = Executable(spec, bound, spec.callee)
    return result


@explains_internal_errors
def run_module(
    module: Any, topology: Mapping[str, Mesh] | Sequence[tuple[str, Mesh]], args: Sequence[Any]
) -> list[jax.Array]:
    """Compile and run an exported module, also one of another compiler.

    Args:
        module: the module, as IR of this package or of jaxlib, or its MLIR text: for instance what `jaxlib`'s C++
            partitioner gives.
        topology: the devices of each mesh of the program.
        args: one array per argument of `@main`.

    Raises:
        MpmdError: in the cases of `load`, and if the topology or the arguments do not fit.
        TypeError: for a `module` that is none.
    """
    if not isinstance(module, Module):
        module = read_module(module)
    try:
        meshes = dict(topology)
    except (TypeError, ValueError):
        raise MpmdError(f"a topology maps the names of meshes to meshes; got {topology!r}") from None
    if isinstance(args, str | Mapping) or not isinstance(args, Iterable):
        raise MpmdError(f"args are the arrays for @main, in a list or tuple, not of type {type(args).__name__}")
    return load(module, meshes)(*args)
