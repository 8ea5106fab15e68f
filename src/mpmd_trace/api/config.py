"""`make_config`: build and check a configuration, and report all of its mistakes at once."""

from __future__ import annotations

import collections
import dataclasses
import numbers
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from mpmd_trace.backend.placement import overlaps
from mpmd_trace.config import Config, MeshOfInput
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.frontend.errors import Problem, callers_place, mistake, raise_problems
from mpmd_trace.frontend.layer_scan import equal_parts, range_mistakes
from mpmd_trace.frontend.name_checks import nearest
from mpmd_trace.frontend.tags import is_name
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.mesh_order import device_meshes
from mpmd_trace.scheduling.resolve_schedule import resolve_schedule
from mpmd_trace.scheduling.user_rules import checked_rules

#: `"mesh"`, `"mesh/stage"` or `(mesh, stage)`.
Place = str | tuple[str, int | None]

MEMORY_KINDS = ("device", "pinned_host")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, repr=False)
class _Default(Generic[T]):
    value: T

    def __repr__(self) -> str:
        return repr(self.value)


def _default(value: T) -> T:
    """Return the default of an argument, which tells whether the argument was given."""
    return cast(T, _Default(value))


def make_config(
    topology: Mapping[str, Mesh | AbstractMesh] | Sequence[tuple[str, Mesh | AbstractMesh]] | Mesh | AbstractMesh,
    name_to_mesh_assignment: Mapping[str, Place | list[Place]] | Sequence[int] | Literal["auto"] | None = None,
    *,
    stage_axis: str | None = None,
    name_to_stage_assignment: Mapping[str, int] | None = None,
    input_mesh_assignment: Any = (),
    output_mesh_assignment: Any = (),
    partitioning_options: Mapping[str, Any] | None = None,
    pipeline_schedule: Any = None,
    fragment_merge_rules: Any = (),
    fragment_schedule_rules: Any = (),
    placement: str = _default("cut"),
    hoist_invariants: bool = _default(True),
    gather: Literal["auto", "step", "phase", "microbatch"] = _default("auto"),
    gradient_reduction: str = _default("step"),
    device_memory: int | None = _default(None),
    optimizer_sharding: str | Sequence[str] | None = _default(None),
    remat: Literal["auto"] | None = _default(None),
    offload: Literal["auto"] | None = _default(None),
    overlap: Literal["auto", "pairs"] | None = _default(None),
) -> Config:
    """Build a configuration and check it, as far as possible without a program.

    Args:
        topology: the meshes by name, or one mesh that `stage_axis` splits.  An `AbstractMesh` is for compiling only.
            Meshes may share devices: a pipeline of several stages then runs on one device (`docs/howto.md`).
        name_to_mesh_assignment: one of these:

            - a dictionary with `"mesh"`, `"mesh/stage"` or `(mesh, stage)` for each name.  A mesh may have a memory
              kind for tensors, `"mesh#pinned_host"`.  The layers of a `scan` may be given by ranges, `"blocks[0:4]"`,
              or by a list of meshes, for as many equal parts.
            - `"auto"` (the default with `stage_axis`): the names in program order, balanced so that each mesh gets
              about the same work.  `lowered.config` has the chosen assignment.  Each program is balanced separately,
              so if two programs share a state, use the assignment of the first for the second.
            - a list of numbers, such as `[2, 3, 3, 2]`: how many layers (names, and layers of a `scan`) each stage
              has, in program order.  Give one number for each mesh, or for two or more rounds over the meshes, in a V
              if the schedule needs it.  A mesh with 0 computes nothing.
        stage_axis: the pipeline axis of a single mesh.  For an axis `"pp"`, the meshes of the stages are named `"pp0"`,
            `"pp1"` and so on, and have the other axes.
        name_to_stage_assignment: the stages of names, in addition to those in `name_to_mesh_assignment`.
        input_mesh_assignment: a pytree prefix of the dynamic arguments, of names of meshes (with memory kind) or None;
            `()` assigns nothing.
        output_mesh_assignment: the same for the result; or `MeshOfInput(argument)`, to put results on the meshes of an
            argument.
        partitioning_options: options of the compiler, by name; the arguments below may be among them.
        pipeline_schedule: a schedule, the name of a schedule, "auto", or a comparator of two fragments.  By default,
            microbatches run one after the other, in program order (`docs/schedules.md`).  Or a schedule for each group
            of meshes, such as `{"vision": "GPipe", ("m0", "m1"): "1F1B"}`: each group is a pipeline of its own.
        fragment_merge_rules: which fragments to merge: rules, their text, or functions that build rules from the
            program's fragments; see `mpmd_trace.rules`.
        fragment_schedule_rules: which fragments to run in a given order, in addition to the schedule; in the same form.
        placement: where to place unnamed code: `"cut"`, so that a step sends the fewest bytes between meshes
            (`docs/placement.md`), or `"reference"`, as in the C++ partitioner; `engine="cpp"` always does the latter.
        hoist_invariants: whether values that are the same for all microbatches (casts of weights, gathers of sharded
            weights, tables) are computed once per step, if that is worth the memory (`docs/hoisting.md`).
        gather: how long to keep copies of parameters that are gathered from their shards: for the `"step"`; for a
            `"phase"`, as long as consecutive fragments of a mesh read them (this differs from a step if a mesh has
            several stages); for a `"microbatch"`; or `"auto"`, the cheapest of these that fits into `device_memory`.
        gradient_reduction: how often to sum over the devices of a mesh what microbatches accumulate, such as gradients
            of a sharded batch: once per `"step"`, or for each `"microbatch"`.  The latter takes less memory if weights
            are sharded, too, and may overlap the next microbatch.
        device_memory: the bytes of memory of a device that a step may use; by default what the devices report.
        optimizer_sharding: the axis of a mesh, or several, over which to shard the optimizer state (ZeRO-1).  Each
            device updates its part of the parameters, and they are gathered once per step (`docs/memory.md`).
        remat: `"auto"` recomputes activations if a step would not fit into the memory of a device otherwise, at the
            least cost.
        offload: `"auto"` keeps activations in host memory instead, if that is cheaper.
        overlap: `"pairs"` makes one program of each block of the schedule or, if it has none, of a forward and a
            backward of different microbatches that are neighbors on a mesh, so that XLA hides the collectives of one
            behind the products of the other; `"auto"` does so if it makes a step shorter
            (`docs/programs_of_a_step.md`).

    Raises:
        FrontendError: with all mistakes.
    """
    problems: list[Problem] = []
    arguments = {
        "placement": placement,
        "hoist_invariants": hoist_invariants,
        "gather": gather,
        "gradient_reduction": gradient_reduction,
        "device_memory": device_memory,
        "optimizer_sharding": optimizer_sharding,
        "remat": remat,
        "offload": offload,
        "overlap": overlap,
    }
    given = _mapping(partitioning_options, "partitioning_options", problems)
    values = _merged(given, arguments, problems)
    axes = values.pop("optimizer_sharding", None)
    options = _options(values, problems)
    if stage_axis is not None or isinstance(topology, Mesh | AbstractMesh):
        topology = meshes_along(topology, stage_axis)
    meshes = _topology(topology, options, problems)
    stages = _mapping(name_to_stage_assignment, "name_to_stage_assignment", problems)
    if name_to_mesh_assignment is None and stage_axis is not None:
        name_to_mesh_assignment = "auto"
    is_auto = isinstance(name_to_mesh_assignment, str) and name_to_mesh_assignment == "auto"
    counts = _layer_counts(name_to_mesh_assignment, meshes, problems)
    by_rule = is_auto or counts is not None
    names = {} if by_rule else _mapping(name_to_mesh_assignment, "name_to_mesh_assignment", problems)
    assignments = _assignments(names, stages, meshes, problems)
    inputs = _prefix(input_mesh_assignment, "input_mesh_assignment", meshes, problems)
    outputs = _prefix(output_mesh_assignment, "output_mesh_assignment", meshes, problems)
    merge_rules, wrong = checked_rules(fragment_merge_rules, "fragment_merge_rules")
    schedule_rules, more = checked_rules(fragment_schedule_rules, "fragment_schedule_rules")
    problems += (*wrong, *more)
    options = dataclasses.replace(options, optimizer_sharding=_axes(axes, meshes, problems))
    where = callers_place()
    config = Config(
        topology=MappingProxyType(meshes),
        assignments=MappingProxyType(assignments),
        input_mesh_assignment=inputs,
        output_mesh_assignment=outputs,
        options=options,
        options_given=tuple(given),
        pipeline_schedule=pipeline_schedule,
        fragment_merge_rules=merge_rules,
        fragment_schedule_rules=schedule_rules,
        assigns_names=by_rule,
        layers_per_stage=counts or (),
        where=where,
    )
    try:
        schedule = resolve_schedule(config)
        if counts and schedule.stages == "v":
            config = dataclasses.replace(config, stages_in_a_v=True)
    except MpmdError as error:
        problems += error.diagnostics
    raise_problems(problems, where)
    return config


def _assignments(
    names: Mapping[str, Any], stages: Mapping[str, Any], meshes: Mapping[str, Any], problems: list[Problem]
) -> dict[str, Assignment]:
    """Return the mesh and stage of each name."""
    assignments: dict[str, Assignment] = {}
    for name, value in _with_parts(names, problems).items():
        assignment = _assignment(value, f"the name {name!r}", meshes, problems)
        if assignment is None:
            continue
        stage = stages.get(name, assignment.stage)
        if assignment.stage is not None and stage != assignment.stage:
            problems.append(
                f"the name {name!r} has stage {assignment.stage} in name_to_mesh_assignment and "
                f"stage {stage} in name_to_stage_assignment. Give it once."
            )
        is_stage = stage is None or (isinstance(stage, int) and not isinstance(stage, bool) and stage >= 0)
        if not is_stage:
            problems.append(f"the name {name!r} has stage {stage!r}; a stage is an int from 0 on.")
            continue
        assignments[name] = dataclasses.replace(assignment, stage=stage)
    for name in stages:
        if name not in assignments and name not in names:
            problems.append(f"the name {name!r} has a stage but no mesh. " + nearest(name, names))
    problems += range_mistakes(list(assignments))
    problems += _stage_problems(assignments)
    return assignments


def _axes(given: Any, meshes: Mapping[str, Mesh | AbstractMesh], problems: list[Problem]) -> tuple[str, ...]:
    """Return the axes of `optimizer_sharding`, each of which a mesh has."""
    axes = () if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(axes, Sequence) or not all(isinstance(axis, str) for axis in axes):
        problems.append(f"optimizer_sharding is the name of an axis, several, or None, not {given!r}.")
        return ()
    known = list(dict.fromkeys(str(axis) for mesh in meshes.values() for axis in mesh.shape))
    for axis in axes:
        if axis not in known:
            text = f"optimizer_sharding has the axis {axis!r}, which no mesh of the topology has."
            problems.append(f"{text} {nearest(axis, known)}")
    return tuple(dict.fromkeys(axes))


def _with_parts(names: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the assignments, with a name for each equal part in the place of those that list meshes."""
    result: dict[str, Any] = {}
    for name, value in names.items():
        if not isinstance(value, list):
            result[name] = value
        elif value:
            result.update(zip(equal_parts(name, len(value)), value, strict=True))
        else:
            problems.append(f"the layers {name!r} are assigned to an empty list. List meshes.")
    return result


def _layer_counts(given: Any, meshes: Mapping[str, Any], problems: list[Problem]) -> tuple[int, ...] | None:
    """Return the numbers of layers that are given in the place of names; None where names are."""
    if isinstance(given, np.ndarray | jax.Array) and given.ndim == 1:
        given = given.tolist()
    if isinstance(given, Mapping | str | bytes | bytearray) or not isinstance(given, Sequence) or not given:
        return None
    try:
        counts = [operator.index(n) for n in given]
    except TypeError:
        counts = []
    if not counts or any(isinstance(n, bool) for n in given):
        if any(isinstance(n, numbers.Real) for n in given):
            problems.append(
                f"name_to_mesh_assignment is {given!r}. As a list it has whole numbers: how many layers each stage has."
            )
            return ()
        return None
    own = device_meshes(meshes)
    rounds, rest = divmod(len(counts), len(own) or 1)
    if rest or not rounds:
        problems.append(
            f"name_to_mesh_assignment {counts} has numbers of layers for {len(counts)} stages, and there are "
            f"{len(own)} meshes ({', '.join(own)}). Give one number for each mesh, or for each in "
            "several rounds over all of them."
        )
    if min(counts) < 0 or not sum(counts):
        problems.append(
            f"name_to_mesh_assignment {counts} has numbers of layers; they are 0 or more, and one is above 0."
        )
    elif rounds > 1 and 0 in counts:
        problems.append(
            f"name_to_mesh_assignment {counts} leaves stage {counts.index(0)} empty. Only with one stage per "
            "mesh may one be empty: schedules with several have the same number on each mesh."
        )
    return tuple(counts)


def _mapping(given: Any, what: str, problems: list[Problem]) -> dict[str, Any]:
    """Return `given` (a mapping, pairs, or None) as a dictionary, without the keys that cannot be names."""
    pairs = {} if given is None and what != "name_to_mesh_assignment" else given
    try:
        pairs = pairs if isinstance(pairs, Mapping) else list(pairs)
        if isinstance(pairs, list) and any(isinstance(pair, str) for pair in pairs):
            raise ValueError('"ab" is no pair')
        result = dict(pairs)
    except (TypeError, ValueError):
        result = {}
        problems.append(f"{what} maps names to values, as {{name: value}}; got {given!r}.")
    for name in [name for name in result if not is_name(name)]:
        del result[name]
        problems.append(
            f"{what} has the key {name!r}, which cannot be a name: names are strings that are not "
            'empty, do not start or end with blanks, and do not contain , @ " or \\.'
        )
    return result


def _merged(given: Mapping[str, Any], arguments: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return all options that were given: those by name, and the arguments."""
    arguments = {name: value for name, value in arguments.items() if not isinstance(value, _Default)}
    for name, value in arguments.items():
        if name in given and given[name] != value:
            problems.append(f"{name} is {value!r}, and {given[name]!r} in partitioning_options. Give it once.")
    return {**given, **arguments}


def _options(values: Mapping[str, Any], problems: list[Problem]) -> CompileOptions:
    try:
        return CompileOptions.of(values)
    except MpmdError as error:
        problems += error.diagnostics
        return CompileOptions()


def _topology(topology: Any, options: CompileOptions, problems: list[Problem]) -> dict[str, Mesh | AbstractMesh]:
    meshes: dict[str, Mesh | AbstractMesh] = {}
    if isinstance(topology, str) or not isinstance(topology, Iterable):
        problems.append(f"a topology lists (name, mesh) pairs or maps names to meshes; got {topology!r}.")
        return meshes
    pairs = list(topology.items()) if isinstance(topology, Mapping) else list(topology)
    if not pairs:
        problems.append("the topology has no mesh. Give at least one, by name.")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            problems.append(f"a topology lists (name, mesh) pairs or maps names to meshes; got {pair!r}.")
            continue
        name, mesh = pair
        if not is_name(name) or set(name.removesuffix("/cpu")) & set("#/"):
            problems.append(f"{name!r} cannot name a mesh: use a string without , @ # / \\ or quotes.")
        elif name in meshes:
            problems.append(f"the topology has two meshes called {name!r}.")
        elif not isinstance(mesh, (Mesh, AbstractMesh)):
            problems.append(
                f"the mesh {name!r} is a {type(mesh).__name__}; make it with jax.sharding.Mesh "
                "or, for compiling only, jax.sharding.AbstractMesh."
            )
        else:
            meshes[name] = mesh
            problems += _axis_name_problems(name, mesh)
            problems += _device_problems(name, mesh)
    problems += overlaps(meshes)
    if options.enable_heterogeneous_meshes is False:
        problems += _axes_problems(meshes)
    return meshes


def _device_problems(name: str, mesh: Mesh | AbstractMesh) -> Iterator[str]:
    if isinstance(mesh, AbstractMesh):
        return
    listed = list(mesh.devices.flat)
    wrong = next(
        (f"{device!r} where a device belongs" for device in listed if not isinstance(device, jax.Device)), None
    )
    if not listed:
        wrong = f"no devices: its shape is {dict(mesh.shape)}"
    if wrong is not None:
        count = len(jax.devices())
        yield f"the mesh {name!r} has {wrong}. Make it of devices in jax.devices(); there are {count}."
        return
    for device, times in collections.Counter(listed).items():
        if times > 1:
            yield f"the mesh {name!r} has {device} {times} times. Each device belongs once."


def _axis_name_problems(name: str, mesh: Mesh | AbstractMesh) -> Iterator[str]:
    """XLA crashes on some names of axes that JAX takes."""
    for axis in mesh.axis_names:
        if not isinstance(axis, str) or not axis.isascii() or set(axis) & set('"\\\n'):
            yield (
                f'the mesh {name!r} has an axis named {axis!r}. Name axes by strings of ASCII characters, without " '
                "and \\."
            )


def _axes_problems(meshes: Mapping[str, Mesh | AbstractMesh]) -> Iterator[str]:
    shapes = {name: dict(mesh.shape) for name, mesh in meshes.items()}
    first = next(iter(shapes), None)
    for name, shape in shapes.items():
        if 0 in shape.values():
            continue  # it has no devices, and that was said
        if first is not None and list(shape.items()) != list(shapes[first].items()):
            yield (
                f"the mesh {name!r} has axes {shape}, the mesh {first!r} {shapes[first]}. Give all meshes the same "
                "axes, or leave out enable_heterogeneous_meshes=False."
            )


def _assignment(value: Any, what: str, meshes: Mapping[str, Any], problems: list[Problem]) -> Assignment | None:
    """Return `value` as an assignment; None, and a problem, when it is not one."""
    stage: Any = None
    text = value
    if isinstance(value, tuple) and len(value) == 2:
        text, stage = value
    if not isinstance(text, str):
        problems.append(f'{what} is assigned to {value!r}. Write "mesh", "mesh/stage" or (mesh, stage).')
        return None
    try:
        parsed = Assignment.parse(text)
    except ValueError:
        parsed = Assignment.on_mesh(text)  # no mesh is called so
    if parsed.stage is not None and stage is not None:
        problems.append(f"{what} is assigned to {value!r}, which gives two stages.")
        return None
    if parsed.mesh not in meshes:
        if meshes:  # else the topology is wrong, which has been said
            lacks = f"{what} is assigned to the mesh {parsed.mesh!r}, which the topology lacks."
            problems.append(f"{lacks} {nearest(parsed.mesh, meshes)}")
        return None
    if parsed.memory_kind not in (None, *MEMORY_KINDS):
        problems.append(
            f"{what} is assigned to memory {parsed.memory_kind!r} of mesh {parsed.mesh!r}; memories are "
            f"{' and '.join(MEMORY_KINDS)}."
        )
        return None
    return parsed if stage is None else dataclasses.replace(parsed, stage=stage)


def _stage_problems(assignments: Mapping[str, Assignment]) -> Iterator[str]:
    first: dict[int, str] = {}
    for name, assigned in assignments.items():
        if assigned.stage is None:
            continue
        other = first.setdefault(assigned.stage, name)
        if assignments[other].mesh != assigned.mesh:
            yield (
                f"stage {assigned.stage} is on two meshes: {other!r} is on {assignments[other].mesh!r}, {name!r} on "
                f"{assigned.mesh!r}. A stage runs on one mesh; number the stages along the pipeline."
            )


def _prefix(prefix: Any, what: str, meshes: Mapping[str, Any], problems: list[Problem]) -> Any:
    """Return `prefix` with each mesh name parsed."""

    def one(path: Any, value: Any) -> Assignment | MeshOfInput | None:
        if value is None:
            return None
        where = f"{what}{jax.tree_util.keystr(path)}"
        if isinstance(value, MeshOfInput):
            if what != "output_mesh_assignment":
                problems.append(f"{where} is {value}, which is for output_mesh_assignment only.")
            elif isinstance(value.argument, bool) or not isinstance(value.argument, int | str):
                problems.append(f"{where} is {value}; it takes the position of an argument, or the name of a keyword.")
            return value
        result = _assignment(value, where, meshes, problems)
        if result is not None and result.stage is not None:
            problems.append(f"{where} has a stage; only computations have stages.")
        return result

    return jax.tree_util.tree_map_with_path(one, prefix, is_leaf=lambda x: x is None)


# A topology from one mesh, one axis of which is the pipeline.


def meshes_along(mesh: Any, axis: str | None) -> dict[str, Mesh | AbstractMesh]:
    """Return the slices of `mesh` along `axis`, called `axis0`, `axis1` and so on; they have the other axes.

    Where there is no other axis, each slice keeps this one, with the size 1.

    Raises:
        FrontendError: for something that is not one mesh, or an axis that it does not have.
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise mistake(
            f"stage_axis={axis!r} cuts one mesh into those of the pipeline, and the topology is {mesh!r}. Give a "
            "jax.sharding.Mesh, or leave stage_axis out."
        )
    names = list(mesh.axis_names)
    if axis is None or axis not in names:
        asked = "needs stage_axis, the axis along which stages lie" if axis is None else f"has no axis {axis!r}"
        raise mistake(
            f"a topology of one mesh {asked}; its axes are {', '.join(map(repr, names))}. For a pipeline of a single "
            "mesh, give the mesh a name: {'all': mesh}."
        )
    at = names.index(axis)
    others = tuple(name for name in names if name != axis)
    types = [kind for name, kind in zip(names, mesh.axis_types, strict=True) if name != axis or not others]
    result: dict[str, Mesh | AbstractMesh] = {}
    for i in range(mesh.shape[axis]):
        if isinstance(mesh, AbstractMesh):
            sizes = tuple(mesh.shape[name] for name in others)
            result[f"{axis}{i}"] = AbstractMesh(sizes or (1,), others or (axis,), axis_types=tuple(types))
        else:
            devices = np.take(mesh.devices, [i] if not others else i, axis=at)
            result[f"{axis}{i}"] = Mesh(devices, others or (axis,), axis_types=tuple(types))
    return result
