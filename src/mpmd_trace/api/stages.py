"""What becomes of a traced program: lowered (partitioned), compiled, ready to be called."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from mpmd_trace.api import finishing, meshes
from mpmd_trace.api.microbatches import without_microbatches
from mpmd_trace.api.options import compiler_options as chosen_options
from mpmd_trace.api.placement_warnings import placement_warnings
from mpmd_trace.backend.executables import CompilerOptions
from mpmd_trace.backend.load import LoadedProgram, MemoryAnalysis, load
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.backend.residence import Residence, residence
from mpmd_trace.backend.timeline import Timeline
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, Note, shortened
from mpmd_trace.frontend.arguments import Leaf
from mpmd_trace.frontend.config import Config
from mpmd_trace.frontend.errors import at_users_place, callers_place, problem, raise_problems, warn
from mpmd_trace.frontend.memories import HOST
from mpmd_trace.frontend.placements import Spec
from mpmd_trace.frontend.trace import Traced
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import MeshAttr, TopologyAttr
from mpmd_trace.ir.ops import Module
from mpmd_trace.jax_compat.layouts import place_of, put
from mpmd_trace.jax_compat.runtime import with_weak_type
from mpmd_trace.jax_compat.tracing import structure_differences
from mpmd_trace.passes.common.verify_stage_merging import VerifyStageMerging
from mpmd_trace.passes.cpp_engine import partition_with_cpp
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.find_stages import FindStages
from mpmd_trace.passes.manager import Hook
from mpmd_trace.passes.optimize.pipeline_scheduler import INEXACT
from mpmd_trace.passes.optimize.rule_orders import UserRules
from mpmd_trace.passes.partition import IoSpec, Partitioned, partition_as
from mpmd_trace.passes.request import PartitioningOptions, PartitionRequest
from mpmd_trace.scheduling.bridge import ScheduleChoice
from mpmd_trace.scheduling.fragments import Fragments, fragments_of
from mpmd_trace.scheduling.user_rules import (
    MERGE,
    SCHEDULE,
    MergeNeighbours,
    has_rules,
    literal_rules,
    rules_of_program,
)

__all__ = ["Adapter", "Compiled", "InOut", "Lowered", "Stage"]

Stage = Literal["jaxpr", "stablehlo", "mpmd", "plan"]


class Adapter(Protocol):
    """How the caller's pytrees become pytrees of arrays alone, and back."""

    def wrap(self, tree: Any) -> Any:
        """`tree` with everything but arrays made part of its structure."""

    def unwrap(self, tree: Any) -> Any:
        """What `wrap` was given."""


class InOut(NamedTuple):
    """Something for the arguments, as a pytree `(args, kwargs)`, and the same for the result."""

    inputs: Any
    outputs: Any




def _on_device(assignment: Assignment | None) -> Assignment | None:
    """The mesh alone: results go to the memory of the host in the end, since those of calls cannot be made there."""
    return None if assignment is None else dataclasses.replace(assignment, memory_kind=None)


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """A traced program and its partitioned form."""

    traced: Traced
    config: Config
    schedule: ScheduleChoice
    hooks: Sequence[Hook] = ()
    engine: str = "python"
    adapter: Adapter | None = None
    #: XLA's options for each mesh.
    compiler_options: CompilerOptions = dataclasses.field(default_factory=dict)
    #: Whether arguments that the program does not use are placed on a mesh all the same.
    keep_unused: bool = False
    #: Whether to warn of donated arguments whose memory no program reuses.
    warns_of_donations: bool = False

    @property
    def request(self) -> PartitionRequest:
        """What the partitioner is asked for, but for rules.  Raises `MpmdError`."""
        config, traced = self.config, self.traced
        constants = len(traced.constants)
        options = {**config.partitioning_options, **self.schedule.options}
        options.pop("enable_heterogeneous_meshes", None)  # for the frontend
        shapes = {n: MeshAttr.get((str(a), size) for a, size in m.shape.items()) for n, m in config.topology.items()}
        return PartitionRequest(
            traced.name,
            TopologyAttr.get(shapes),
            config.assignments,
            (*(None,) * constants, *self._assignments[0]),
            tuple(self._assignments[1]) if self.engine == "cpp" else tuple(map(_on_device, self._assignments[1])),
            tuple(constants + i for i in traced.donated),
            PartitioningOptions.of(options),
            same_mesh=tuple(SameMesh(constants + i, o) for i, o in config.same_mesh(traced)),
            own_meshes=config.is_heterogeneous,
            placement="reference" if self.engine == "cpp" else config.placement,
            copies_between_hosts=True,
            merge_parts=True,
            stages=FindStages(number=self.schedule.stages),
            warns_of_schedules=config.pipeline_schedule is not None,
            cut_in_calls=config.placement == "cut",
            senders_apart=config.placement == "cut",
        )

    @property
    def request_with_rules(self) -> PartitionRequest:
        """What an engine is asked for that knows the reference's rules, which are made for this program.

        Raises `MpmdError`.
        """
        rules = literal_rules(self.config, self.fragments)
        if any(isinstance(rule, MergeNeighbours) for rule in rules[MERGE]):
            raise MpmdError("the C++ partitioner has no merge_neighbours; use engine='python', or leave it out")
        if rules[SCHEDULE]:
            warn("the C++ partitioner takes fragment_schedule_rules and ignores them", self.config.where)
        return dataclasses.replace(self.request, merge_rules=rules[MERGE], schedule_rules=rules[SCHEDULE])

    def fragments(self) -> Fragments:
        """The named fragments as they will be scheduled, with what they cost: what rules are made of.

        Raises `MpmdError`.
        """
        return fragments_of(self._import())

    @functools.cached_property
    def partitioned(self) -> Partitioned:
        """The exported module and what each pass did.  Raises `MpmdError`."""
        found = self._partition()
        self._tell(found.diagnostics)
        traced, main = self.traced, found.module.main
        kinds = dict(enumerate(traced.out_memories))
        assigned = self.config.output_meshes(traced.out_tree)
        kinds.update((i, a.memory_kind or kinds[i] or "device") for i, a in assigned.items())
        constants = len(traced.constants)
        functions = {f.sym_name: f for f in found.module.functions}
        for index in sorted({*traced.on_host, *self._on_host}):
            returned = [o for o, i in traced.returned.items() if i == index]
            finishing.put_on_host(
                main,
                functions,
                constants + index,
                moved=index in self._on_host,
                returned={o: kinds[o] in (None, HOST) for o in returned},
            )
        finishing.keep_memory_kinds(main, kinds)
        finishing.set_layouts(main, [*[None] * constants, *traced.in_shardings], traced.out_shardings)
        return found

    def _tell(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Warnings of the scheduler; those of other passes speak of functions and ops that users do not know."""
        for one in diagnostics:
            if one.severity == "warning" and one.message.startswith(INEXACT):
                warn(one.message, self.config.where)

    @functools.cached_property
    def _on_host(self) -> frozenset[int]:
        """The arguments that are assigned to host memory, from which programs get them by a transfer."""
        assigned, specs = self._assigned_inputs, self.traced.in_shardings
        return frozenset(
            i for i, a in assigned.items() if a.memory_kind == HOST and (specs[i] or Spec()).memory != HOST
        )

    @functools.cached_property
    def _assigned_inputs(self) -> dict[int, Assignment]:
        found = meshes.of_named_inputs(self.traced, self.config)
        specs = self.traced.in_shardings
        inferred = {i: a for i, a in found.items() if (spec := specs[i]) is None or spec.mesh is None}
        return {**inferred, **self.config.input_meshes(self.traced.in_tree)}

    @functools.cached_property
    def _assignments(self) -> tuple[list[Assignment | None], list[Assignment | None]]:
        """The mesh of each argument and result that is assigned to one, or has a sharding over one."""
        config, traced = self.config, self.traced
        inputs, bad = meshes.assigned(
            config, self._assigned_inputs, traced.in_shardings, traced.inputs, "input"
        )
        outputs, worse = meshes.assigned(
            config, config.output_meshes(traced.out_tree), traced.out_shardings, traced.outputs, "output"
        )
        raise_problems([*bad, *worse], config.where)
        return inputs, outputs

    def _partition(self) -> Partitioned:
        if self.engine == "cpp":
            return partition_with_cpp(self.traced.mlir_text(), self.request_with_rules)
        rules = self._rules if has_rules(self.config, self.schedule) else None
        try:
            return partition_as(
                self.traced.mlir_text(), self.request, hooks=self.hooks, user_rules=rules, imported=self._check_schedule
            )
        except MpmdError as error:
            raise at_users_place(self._explained(error), self.config.where) from None

    def _check_schedule(self, module: Module) -> None:
        """Warn of a schedule that was asked for and has nothing to order."""
        asked = self.config.pipeline_schedule is not None and self.schedule.name.lower() not in ("none", "gpipe")
        text = without_microbatches(module, self.schedule.name) if asked else None
        if text is not None:
            warn(text, self.config.where)

    def _explained(self, error: MpmdError) -> MpmdError:
        """The error, with the reason of it when that is a checkpoint."""
        place = self.traced.recomputed
        if place is None or error.pass_name != VerifyStageMerging.name:
            return error
        text = (
            "jax.checkpoint around several stages recomputes them here, for the backward of a loop or call whose "
            "forward pass is another one. Take the gradient inside of the body of the loop, or checkpoint each stage"
        )
        note = Note(text, problem("", place).location)
        first, *rest = error.diagnostics
        return MpmdError([dataclasses.replace(first, notes=(*first.notes, note)), *rest], pass_name=error.pass_name)

    def imported(self) -> Module:
        """The program after the import phase, its backwards split: what schedules are chosen by."""
        return self._import(mpmd_split_bwd_fragments=True)

    def _rules(self, module: Module) -> UserRules:
        return rules_of_program(self.config, self.schedule, module)

    def _import(self, **options: Any) -> Module:
        """The program after the import phase, with some options changed."""
        try:
            request = self.request
            request = dataclasses.replace(request, options=dataclasses.replace(request.options, **options))
            return partition_as(self.traced.mlir_text(), request, phases="import").module
        except MpmdError as error:
            raise at_users_place(error, self.config.where) from None

    def residence(self) -> Residence:
        """What each mesh holds and what moves between them, as far as that is known before XLA compiles it."""
        return residence(make_plan(self.partitioned.module))

    def as_text(self, stage: Stage = "mpmd") -> str:
        """The program as text: "jaxpr" as traced, "stablehlo" with named ops, "mpmd" as exported."""
        if stage == "jaxpr":
            return str(self.traced.jaxpr)
        if stage == "stablehlo":
            return self.traced.mlir_text(debug_info=False)
        if stage == "mpmd":
            return self.partitioned.as_text()
        if stage == "plan":
            return str(self.compile().program.plan)
        raise ValueError(f"stage is 'jaxpr', 'stablehlo', 'mpmd' or 'plan', not {stage!r}")

    def compile(
        self,
        progress: Callable[[int, int, str], None] | None = None,
        *,
        compiler_options: Mapping[str, Any] | None = None,
    ) -> Compiled:
        """XLA executables for every distinct program, ready to be called.

        `progress(done, total, name)` is called as executables become ready.  `compiler_options`, as for
        `mpmd_trace.jit`, are used beside those given there.  Raises `MpmdError`, also when a mesh of the topology
        has no devices.
        """
        more = chosen_options(compiler_options, self.config, callers_place())
        meshes = self.config.topology
        options = {mesh: {**self.compiler_options.get(mesh, {}), **more.get(mesh, {})} for mesh in meshes}
        if self.config.is_abstract:
            message = (
                "the topology has abstract meshes, which have no devices to run on; make it of "
                "jax.sharding.Mesh to compile, or use lower(...).as_text() to look at the program"
            )
            raise MpmdError([problem(message, self.config.where)])
        _check_devices(self.config)
        program = load(
            self.partitioned.module,
            dict(self.config.topology),
            progress=progress,
            compiler_options=options,
            host_callbacks=self.traced.host_callbacks,
            keep_unused=self.keep_unused,
        )
        if self.warns_of_donations:
            _warn_of_donations(program, self.traced)
        own = {self.traced.inputs[i].name for i, place in enumerate(self._assignments[0]) if place is not None}
        for text in placement_warnings(residence(program.plan), own):
            warn(text, self.config.where)
        return Compiled(self, program)


def _warn_of_donations(program: LoadedProgram, traced: Traced) -> None:
    """Warn of donated arguments whose memory nothing reuses; it is freed all the same."""
    plan = program.plan
    reused = set()
    for run in plan.runs:
        free = [plan.slots[s].type for s in run.outputs]
        for slot in (run.inputs[position] for position in run.donated):
            if plan.slots[slot].type in free:
                free.remove(plan.slots[slot].type)
                reused.add(slot)
    constants = len(traced.constants)
    names = [traced.inputs[slot - constants].name for slot in sorted(plan.donated.difference(reused, plan.results))]
    if names:
        warn(
            f"no program of {traced.name} reuses the memory of these donated arguments, which is freed after the step: "
            + ", ".join(shortened(names))
        )


def _without_values(leaves: Sequence[Leaf]) -> list[tuple[int, Any]]:
    """The leaves that are tangents of integers, which have no values: position and array."""
    empty = jax.dtypes.float0
    return [(i, np.zeros(x.struct.shape, empty)) for i, x in enumerate(leaves) if x.struct.dtype == empty]


def _check_devices(config: Config) -> None:
    """Raise `MpmdError` for meshes with devices that this process cannot use."""
    problems = []
    for name, mesh in config.topology.items():
        missing = [d for d in mesh.devices.flat if d not in d.client.devices()]
        if missing:
            problems.append(
                problem(
                    f"the mesh {name!r} has {missing[0]}, which is not a device of this process. Make the "
                    f"mesh of devices in jax.devices(); there are {len(jax.devices())}.",
                    config.where,
                )
            )
    raise_problems(problems)


def _argument(path: tuple[Any, ...]) -> str:
    """A path into (args, kwargs) in words."""
    if len(path) < 2:
        return ("positional arguments", "keyword arguments")[path[0].idx] if path else "the arguments"
    rest = jax.tree_util.keystr(path[2:])
    return f"argument {path[1].idx}{rest}" if path[0].idx == 0 else f"keyword argument {path[1].key}{rest}"


class Compiled:
    """A compiled program.  Call it with arguments of the types it was lowered for.

    Arguments that are not where the program wants them are placed there first; `place` does that ahead of
    time.
    """

    def __init__(self, lowered: Lowered, program: LoadedProgram) -> None:
        self.lowered = lowered
        self.program = program
        traced = lowered.traced
        self._in_tree = traced.in_tree
        self._out_tree = traced.out_tree
        self._keys_in = [(i, leaf.key_impl) for i, leaf in enumerate(traced.inputs) if leaf.key_impl]
        self._keys_out = [(i, leaf.key_impl) for i, leaf in enumerate(traced.outputs) if leaf.key_impl]
        self._void_in = _without_values(traced.inputs)
        self._void_out = _without_values(traced.outputs)
        self._weak_out = [i for i, leaf in enumerate(traced.outputs) if leaf.struct.weak_type]
        program.explain_placing(
            "move it with compiled.place(*args), which puts all arguments where the program wants them, or "
            "with jax.device_put and a sharding of compiled.function_named_shardings.inputs"
        )
        count = len(traced.constants)
        self._constants = [
            put(c, spec) for c, spec in zip(traced.constants, program.input_specs, strict=False)
        ]
        self._in_specs = list(program.input_specs[count:])

    # Calling.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call_flat(self._flatten(args, kwargs))

    def call_flat(self, flat: list[Any]) -> Any:
        """The result for the leaves of the arguments (static ones left out)."""
        if self._keys_in or self._void_in:
            flat = self._physical(flat)
        return self._unflatten(self.program(*self._constants, *flat))

    def measure(self, *args: Any, **kwargs: Any) -> tuple[Any, Timeline]:
        """The result, and when each program and transfer of the step ran on each mesh."""
        flat = self._physical(self._flatten(args, kwargs))
        results, timeline = self.program.measure(*self._constants, *flat)
        return self._unflatten(results), timeline

    def _unflatten(self, results: list[Any]) -> Any:
        for i, impl in self._keys_out:
            results[i] = jax.random.wrap_key_data(results[i], impl=impl)
        for i, void in self._void_out:
            results[i] = void
        for i in self._weak_out:
            results[i] = with_weak_type(results[i])
        return self._unwrap(jax.tree_util.tree_unflatten(self._out_tree, results))

    def _unwrap(self, tree: Any) -> Any:
        adapter = self.lowered.adapter
        return tree if adapter is None else adapter.unwrap(tree)

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        given: Any = (args, kwargs)
        if self.lowered.adapter is not None:
            given = self.lowered.adapter.wrap(given)
        flat: list[Any]
        flat, tree = jax.tree_util.tree_flatten(given)
        if tree != self._in_tree:
            lines = [f"  {_argument(path)}: {text}" for path, text in structure_differences(self._in_tree, tree)]
            raise MpmdError(
                f"{self.lowered.traced.name} was compiled for other arguments:\n" + "\n".join(shortened(lines)) + "\n"
                "Compile it again for these (static arguments are left out of the call), or pass what it was "
                "compiled for."
            )
        return flat

    def _physical(self, flat: list[Any]) -> list[Any]:
        """The leaves as the compiled program takes them."""
        found: list[Any] = list(flat)
        for i, impl in self._keys_in:
            dtype = getattr(found[i], "dtype", None)
            if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
                name = self.lowered.traced.inputs[i].name
                raise MpmdError(
                    f"argument {name} must be a typed PRNG key ({impl}), as it was when the program was "
                    "compiled; wrap it with jax.random.wrap_key_data"
                )
            found_impl = str(jax.random.key_impl(found[i]))
            if found_impl != impl:
                name = self.lowered.traced.inputs[i].name
                raise MpmdError(
                    f"argument {name} must be a typed PRNG key of {impl}, as it was when the program was "
                    f"compiled, not of {found_impl}; make it with jax.random.key(seed, impl={impl!r})"
                )
            found[i] = jax.random.key_data(found[i])
        for i, void in self._void_in:
            if getattr(found[i], "dtype", None) != void.dtype or found[i].shape != void.shape:
                name = self.lowered.traced.inputs[i].name
                wanted = f"an array float0{list(void.shape)}, as it was when the program was compiled"
                raise MpmdError(f"argument {name} must be {wanted}")
            found[i] = np.zeros(void.shape, np.bool_)
        return found

    def place(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as `(args, kwargs)`, each array moved to the mesh and sharding the program wants."""
        flat = self._physical(self._flatten(args, kwargs))
        placed = [put(v, spec) for v, spec in zip(flat, self._in_specs, strict=True)]
        for i, impl in self._keys_in:
            placed[i] = jax.random.wrap_key_data(placed[i], impl=impl)
        for i, void in self._void_in:
            placed[i] = void
        found: tuple[tuple[Any, ...], dict[str, Any]]
        found = self._unwrap(jax.tree_util.tree_unflatten(self._in_tree, placed))
        return found

    # What is known about it.

    @property
    def function_named_shardings(self) -> InOut:
        """The `NamedSharding` of each argument and result."""
        count = len(self.lowered.traced.constants)
        return self._in_out(
            list(self.program.input_shardings)[count:], list(self.program.output_shardings)
        )

    @property
    def input_formats(self) -> Any:
        """Sharding and layout in memory of each argument, as `(args, kwargs)`; see `jax.stages.Compiled`."""
        count = len(self.lowered.traced.constants)
        return self._unflattened(self._in_tree, self.program.input_formats[count:])

    @property
    def output_formats(self) -> Any:
        """Sharding and layout in memory of each result."""
        return self._unflattened(self._out_tree, self.program.output_formats)

    @property
    def function_mesh_assignment(self) -> InOut:
        """The mesh name of each argument and result."""
        count = len(self.lowered.traced.constants)
        inputs: list[IoSpec] = self.lowered.partitioned.input_specs[count:]
        outputs: list[IoSpec] = self.lowered.partitioned.output_specs
        return self._in_out([s.mesh for s in inputs], [s.mesh for s in outputs])

    @property
    def function_types(self) -> InOut:
        """Shape, dtype and sharding of each argument and result, as `jax.ShapeDtypeStruct`."""
        traced = self.lowered.traced
        places = [place_of(s) for s in (*self._in_specs, *self.program.output_specs)]
        types = [
            jax.ShapeDtypeStruct(leaf.struct.shape, leaf.struct.dtype, sharding=place)
            for leaf, place in zip([*traced.inputs, *traced.outputs], places, strict=True)
        ]
        return self._in_out(types[: len(traced.inputs)], types[len(traced.inputs) :])

    def _in_out(self, inputs: list[Any], outputs: list[Any]) -> InOut:
        return InOut(self._unflattened(self._in_tree, inputs), self._unflattened(self._out_tree, outputs))

    def _unflattened(self, tree: Any, leaves: Sequence[Any]) -> Any:
        return self._unwrap(jax.tree_util.tree_unflatten(tree, leaves))

    def cost_analysis(self) -> dict[str, Any]:
        """Floating point operations and bytes per mesh and in all, as XLA counts them, and bytes moved."""
        return self.program.cost_analysis()

    def memory_analysis(self) -> dict[str, MemoryAnalysis]:
        """For each mesh the bytes of one device: the peak from the schedule, arguments, results, scratch."""
        return self.program.memory_analysis()

    def residence(self) -> Residence:
        """What each mesh holds (its peak with scratch memory), and what moves between them, by cause."""
        return self.program.residence()

    def as_text(self, stage: Stage = "mpmd") -> str:
        """See `Lowered.as_text`."""
        return str(self.program.plan) if stage == "plan" else self.lowered.as_text(stage)
