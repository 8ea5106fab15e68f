"""`make_config`: a configuration from what the user writes, with every mistake in it reported at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.frontend.config import Config, MeshOfInput
from mpmd_trace.frontend.errors import callers_place, problem, raise_problems
from mpmd_trace.frontend.names import nearest
from mpmd_trace.frontend.tags import is_name
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.passes.import_.pipelines import PLACEMENTS
from mpmd_trace.passes.request import PartitioningOptions
from mpmd_trace.scheduling.bridge import choose_schedule
from mpmd_trace.scheduling.user_rules import checked_rules

__all__ = ["make_config"]

MEMORY_KINDS = ("device", "pinned_host")
#: The option of the front end; the others are the partitioner's.
_HETEROGENEOUS = "enable_heterogeneous_meshes"


def make_config(
    topology: Mapping[str, Mesh | AbstractMesh] | Sequence[tuple[str, Mesh | AbstractMesh]],
    name_to_mesh_assignment: Mapping[str, str | tuple[str, int | None]],
    *,
    name_to_stage_assignment: Mapping[str, int] | None = None,
    input_mesh_assignment: Any = (),
    output_mesh_assignment: Any = (),
    partitioning_options: Mapping[str, Any] | None = None,
    pipeline_schedule: Any = None,
    fragment_merge_rules: Any = (),
    fragment_schedule_rules: Any = (),
    placement: str = "reference",
) -> Config:
    """A configuration, checked as far as that is possible without a program.

    Args:
        topology: the meshes by name. An `AbstractMesh` serves for compiling only.
        name_to_mesh_assignment: for each name `"mesh"`, `"mesh/stage"` or `(mesh, stage)`; a mesh
            may carry a memory kind for tensors, `"mesh#pinned_host"`.
        name_to_stage_assignment: stages of names, besides those given with the meshes.
        input_mesh_assignment: a pytree prefix of the dynamic arguments, of mesh names (with memory
            kind) or None; `()` assigns nothing.
        output_mesh_assignment: a pytree prefix of the result, likewise; or `MeshOfInput(argument)`, for results
            that are to be where an argument is.
        partitioning_options: options of the compiler, by name.
        pipeline_schedule: a schedule, the name of one, "auto", or a comparator of two fragments.
        fragment_merge_rules: which fragments become one: rules, their text, or functions that make rules of the
            program's fragments; see `mpmd_trace.rules`.
        fragment_schedule_rules: likewise which fragments run in a given order, on top of the schedule.
        placement: where code without a name goes: `"cut"`, where the fewest bytes move between meshes in a step
            (`docs/placement.md`), or `"reference"`, as in the C++ partitioner.

    Raises:
        FrontendError: with every mistake found.
    """
    problems: list[Diagnostic] = []
    options = _mapping(partitioning_options, "partitioning_options", problems)
    _check_options(options, problems)
    meshes = _topology(topology, options, problems)
    assignments: dict[str, Assignment] = {}
    stages = _mapping(name_to_stage_assignment, "name_to_stage_assignment", problems)
    names = _mapping(name_to_mesh_assignment, "name_to_mesh_assignment", problems)
    for name, value in names.items():
        found = _assignment(value, f"the name {name!r}", meshes, problems)
        if found is None:
            continue
        stage = stages.get(name, found.stage)
        if found.stage is not None and stage != found.stage:
            problems.append(
                problem(
                    f"the name {name!r} has stage {found.stage} in name_to_mesh_assignment and "
                    f"stage {stage} in name_to_stage_assignment. Give it once."
                )
            )
        if not _is_stage(stage):
            problems.append(problem(f"the name {name!r} has stage {stage!r}; a stage is an int from 0 on."))
            continue
        assignments[name] = dataclasses.replace(found, stage=stage)
    for name in stages:
        if name not in names:
            problems.append(
                problem(f"the name {name!r} has a stage but no mesh. " + nearest(name, names))
            )
    _check_stages(assignments, problems)
    inputs = _prefix(input_mesh_assignment, "input_mesh_assignment", meshes, problems)
    outputs = _prefix(output_mesh_assignment, "output_mesh_assignment", meshes, problems)
    merge_rules, wrong = checked_rules(fragment_merge_rules, "fragment_merge_rules")
    schedule_rules, more = checked_rules(fragment_schedule_rules, "fragment_schedule_rules")
    problems += [problem(text) for text in (*wrong, *more)]
    if placement not in PLACEMENTS:
        problems.append(problem(f"placement is {' or '.join(map(repr, PLACEMENTS))}, not {placement!r}."))
    where = callers_place()
    config = Config(
        topology=MappingProxyType(meshes),
        assignments=MappingProxyType(assignments),
        input_mesh_assignment=inputs,
        output_mesh_assignment=outputs,
        partitioning_options=MappingProxyType(options),
        pipeline_schedule=pipeline_schedule,
        fragment_merge_rules=merge_rules,
        fragment_schedule_rules=schedule_rules,
        placement=placement,
        where=where,
    )
    try:
        choose_schedule(config)
    except MpmdError as error:
        problems += error.diagnostics
    raise_problems(problems, where)
    return config


def _mapping(given: Any, what: str, problems: list[Diagnostic]) -> dict[str, Any]:
    """`given` (a mapping, pairs, or None) as a dictionary, without the keys that cannot be names."""
    try:
        found = dict(given if given is not None or what == "name_to_mesh_assignment" else {})
    except (TypeError, ValueError):
        found = {}
        problems.append(problem(f"{what} maps names to values, as {{name: value}}; got {given!r}."))
    if isinstance(given, Sequence) and any(isinstance(pair, str) for pair in given):  # "ab" is no pair
        problems.append(problem(f"{what} maps names to values, as {{name: value}}; got {given!r}."))
        return {}
    for name in [name for name in found if not is_name(name)]:
        del found[name]
        problems.append(
            problem(
                f"{what} has the key {name!r}, which cannot be a name: names are strings that are not "
                "empty, do not start or end with blanks, and do not contain , @ \" or \\."
            )
        )
    return found


def _check_options(options: Mapping[str, Any], problems: list[Diagnostic]) -> None:
    value = options.get(_HETEROGENEOUS, False)
    if not isinstance(value, bool):
        text = f"partitioning option '{_HETEROGENEOUS}' is True or False, not {value!r}"
        problems.append(problem(text))
    try:
        PartitioningOptions.of({k: v for k, v in options.items() if k != _HETEROGENEOUS}, besides=(_HETEROGENEOUS,))
    except MpmdError as error:
        problems += error.diagnostics


def _topology(
    topology: Any, options: Mapping[str, Any], problems: list[Diagnostic]
) -> dict[str, Mesh | AbstractMesh]:
    meshes: dict[str, Mesh | AbstractMesh] = {}
    owners: dict[Any, str] = {}
    if isinstance(topology, str) or not isinstance(topology, Iterable):
        problems.append(
            problem(f"a topology lists (name, mesh) pairs or maps names to meshes; got {topology!r}.")
        )
        return meshes
    pairs = list(topology.items()) if isinstance(topology, Mapping) else list(topology)
    if not pairs:
        problems.append(problem("the topology has no mesh. Give at least one, by name."))
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            problems.append(
                problem(f"a topology lists (name, mesh) pairs or maps names to meshes; got {pair!r}.")
            )
            continue
        name, mesh = pair
        if not is_name(name) or set(name.removesuffix("/cpu")) & set("#/"):
            problems.append(
                problem(f"{name!r} cannot name a mesh: use a string without , @ # / \\ or quotes.")
            )
        elif name in meshes:
            problems.append(problem(f"the topology has two meshes called {name!r}."))
        elif not isinstance(mesh, (Mesh, AbstractMesh)):
            problems.append(
                problem(
                    f"the mesh {name!r} is a {type(mesh).__name__}; make it with jax.sharding.Mesh "
                    "or, for compiling only, jax.sharding.AbstractMesh."
                )
            )
        else:
            meshes[name] = mesh
            _check_axis_names(name, mesh, problems)
            _check_devices(name, mesh, owners, problems)
    if options.get(_HETEROGENEOUS) is False:
        _check_axes(meshes, problems)
    return meshes


def _check_devices(
    name: str, mesh: Mesh | AbstractMesh, owners: dict[Any, str], problems: list[Diagnostic]
) -> None:
    if isinstance(mesh, AbstractMesh):
        return
    if not mesh.devices.size:
        problems.append(
            problem(
                f"the mesh {name!r} has no devices: its shape is {dict(mesh.shape)}. Make it of devices in "
                f"jax.devices(); there are {len(jax.devices())}."
            )
        )
        return
    shared: dict[str, list[str]] = {}
    wrong = [device for device in mesh.devices.flat if not isinstance(device, jax.Device)]
    if wrong:
        problems.append(
            problem(
                f"the mesh {name!r} has {wrong[0]!r} where a device belongs. Make it of devices in "
                f"jax.devices(); there are {len(jax.devices())}."
            )
        )
        return
    listed = list(mesh.devices.flat)
    for device in dict.fromkeys(listed):
        owner = owners.setdefault(device, name)
        if owner != name:
            shared.setdefault(owner, []).append(str(device))
        if listed.count(device) > 1:
            problems.append(
                problem(f"the mesh {name!r} has {device} {listed.count(device)} times. Each device belongs once.")
            )
    for owner, devices in shared.items():
        problems.append(
            problem(
                f"the meshes {owner!r} and {name!r} overlap: both have {', '.join(devices)}. Give "
                "each mesh devices of its own."
            )
        )


def _check_axis_names(name: str, mesh: Mesh | AbstractMesh, problems: list[Diagnostic]) -> None:
    """XLA crashes on some names of axes that JAX takes."""
    for axis in mesh.axis_names:
        if not isinstance(axis, str) or not axis.isascii() or set(axis) & set('"\\\n'):
            problems.append(
                problem(
                    f"the mesh {name!r} has an axis named {axis!r}. Name axes by strings of ASCII characters, "
                    "without \" and \\."
                )
            )


def _check_axes(meshes: Mapping[str, Mesh | AbstractMesh], problems: list[Diagnostic]) -> None:
    shapes = {name: dict(mesh.shape) for name, mesh in meshes.items()}
    first = next(iter(shapes), None)
    for name, shape in shapes.items():
        if 0 in shape.values():
            continue  # it has no devices, and that was said
        if first is not None and list(shape.items()) != list(shapes[first].items()):
            problems.append(
                problem(
                    f"the mesh {name!r} has axes {shape}, the mesh {first!r} {shapes[first]}. Give "
                    "all meshes the same axes, or leave out enable_heterogeneous_meshes=False."
                )
            )


def _is_stage(stage: object) -> bool:
    if stage is None:
        return True
    return isinstance(stage, int) and not isinstance(stage, bool) and stage >= 0


def _assignment(
    value: Any, what: str, meshes: Mapping[str, Any], problems: list[Diagnostic]
) -> Assignment | None:
    """`value` as an assignment; None, and a problem, when it is not one."""
    stage: Any = None
    text = value
    if isinstance(value, tuple) and len(value) == 2:
        text, stage = value
    if not isinstance(text, str):
        problems.append(
            problem(f'{what} is assigned to {value!r}. Write "mesh", "mesh/stage" or (mesh, stage).')
        )
        return None
    try:
        found = Assignment.parse(text)
    except ValueError:
        found = Assignment.on_mesh(text)  # no mesh is called so
    if found.stage is not None and stage is not None:
        problems.append(problem(f"{what} is assigned to {value!r}, which gives two stages."))
        return None
    if found.mesh not in meshes:
        problems.append(
            problem(
                f"{what} is assigned to the mesh {found.mesh!r}, which the topology lacks. "
                + nearest(found.mesh, meshes)
            )
        )
        return None
    if found.memory_kind not in (None, *MEMORY_KINDS):
        problems.append(
            problem(
                f"{what} is assigned to memory {found.memory_kind!r} of mesh {found.mesh!r}; memories are "
                f"{' and '.join(MEMORY_KINDS)}."
            )
        )
        return None
    return found if stage is None else dataclasses.replace(found, stage=stage)


def _check_stages(assignments: Mapping[str, Assignment], problems: list[Diagnostic]) -> None:
    first: dict[int, str] = {}
    for name, assigned in assignments.items():
        if assigned.stage is None:
            continue
        other = first.setdefault(assigned.stage, name)
        if assignments[other].mesh != assigned.mesh:
            problems.append(
                problem(
                    f"stage {assigned.stage} is on two meshes: {other!r} is on "
                    f"{assignments[other].mesh!r}, {name!r} on {assigned.mesh!r}. A stage runs on "
                    "one mesh; number the stages along the pipeline."
                )
            )


def _prefix(prefix: Any, what: str, meshes: Mapping[str, Any], problems: list[Diagnostic]) -> Any:
    """`prefix` with each mesh name parsed."""

    def one(path: Any, value: Any) -> Assignment | MeshOfInput | None:
        if value is None:
            return None
        where = f"{what}{jax.tree_util.keystr(path)}"
        if isinstance(value, MeshOfInput):
            if what != "output_mesh_assignment":
                problems.append(problem(f"{where} is {value}, which is for output_mesh_assignment only."))
            elif isinstance(value.argument, bool) or not isinstance(value.argument, int | str):
                problems.append(
                    problem(f"{where} is {value}; it takes the position of an argument, or the name of a keyword.")
                )
            return value
        found = _assignment(value, where, meshes, problems)
        if found is not None and found.stage is not None:
            problems.append(problem(f"{where} has a stage; only computations have stages."))
        return found

    return jax.tree_util.tree_map_with_path(one, prefix, is_leaf=lambda x: x is None)
