"""The meshes of arguments and results, from assignments and from shardings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh

from mpmd_trace.config import Config
from mpmd_trace.frontend.arg_shardings import Spec, same_devices
from mpmd_trace.frontend.arguments import Leaf
from mpmd_trace.frontend.memory_kinds import HOST
from mpmd_trace.frontend.trace import Traced
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.jax_compat.lowering import named_tensor_p
from mpmd_trace.jax_compat.targets import is_described, memory_of
from mpmd_trace.jax_compat.tracing import is_literal, opened

__all__ = ["assigned", "device_memory", "of_named_inputs"]


def device_memory(config: Config) -> int | None:
    """The bytes of memory that a step may take of a device: as configured, or as the smallest device has; or None."""
    if config.options.device_memory is not None or config.is_abstract:
        return config.options.device_memory
    sizes = [
        memory_of(device) for mesh in config.topology.values() if isinstance(mesh, Mesh) for device in _one_of(mesh)
    ]
    return min((size for size in sizes if size), default=None)


def _one_of(mesh: Mesh) -> list[jax.Device]:
    """Return a device of a mesh that says how much memory it has."""
    first = mesh.devices.flat[0]
    # One of this process is of the same kind, where others have the mesh.
    return [first] if is_described(first) else (mesh.local_devices or jax.local_devices())[:1]


def of_named_inputs(traced: Traced, config: Config) -> dict[int, Assignment]:
    """Return the assignments of arguments that are named tensors in host memory.

    Such an argument is in host memory if nothing but these names uses it, and in device memory otherwise; mesh
    inference alone would refuse it when its users differ.
    """
    program = opened(traced.rewritten.program.jaxpr)
    inputs = {v: i for i, v in enumerate(program.invars[len(traced.constants) :])}
    users: dict[int, list[Assignment | None]] = {}
    for eqn in program.eqns:
        name = eqn.params["name"] if eqn.primitive is named_tensor_p else None
        for atom in eqn.invars:
            if not is_literal(atom) and atom in inputs:
                users.setdefault(inputs[atom], []).append(config.assignments.get(name) if name else None)
    result: dict[int, Assignment] = {}
    for i, all_of_them in sorted(users.items()):
        named = sorted((a for a in all_of_them if a is not None), key=lambda a: a.mesh)
        if any(a.memory_kind == HOST for a in named):
            alike = None not in all_of_them and len(set(named)) == 1 and i not in traced.returned.values()
            result[i] = named[0] if alike else dataclasses.replace(named[0], memory_kind=None)
    return result


def assigned(
    config: Config,
    assignments: Mapping[int, Assignment],
    specs: Sequence[Spec | None],
    leaves: Sequence[Leaf],
    what: str,
) -> tuple[list[Assignment | None], list[str]]:
    """For each argument (`what` is "input") or result ("output") its mesh or None, and the contradictions.

    A sharding over a mesh of the topology names that mesh, unless the topology has these devices twice.  The host
    memory of an argument is left out: `finishing.put_on_host` cares for it.
    """
    per_argument: list[Assignment | None] = []
    problems: list[str] = []
    for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        assignment = assignments.get(i)
        named: list[str] = []
        if spec is not None and spec.mesh is not None:
            named = [name for name, mesh in config.topology.items() if same_devices(spec.mesh, mesh)]
        if assignment is None:
            per_argument.append(Assignment(named[0]) if len(named) == 1 else None)
            continue
        if named and assignment.mesh not in named:
            problems.append(
                f"{leaf.name} is on mesh {assignment.mesh!r} in {what}_mesh_assignment, and its sharding is over "
                f"the devices of mesh {named[0]!r}. Give both the same mesh, or leave one of them out."
            )
        on_host = what == "input" and assignment.memory_kind == HOST
        per_argument.append(dataclasses.replace(assignment, memory_kind=None) if on_host else assignment)
    return per_argument, problems
