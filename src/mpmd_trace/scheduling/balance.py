"""Names to meshes by their work, when the user leaves the choice to us, or by how many layers each stage is to have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.frontend.layer_scan import joined_parts
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.flops import flops
from mpmd_trace.ir.ops import Module, NamedComputationOp
from mpmd_trace.schedules import partition_layers


def balanced(traced: Module, meshes: Sequence[str]) -> dict[str, Assignment]:
    """Return the names of a traced program on the meshes, in the order in which they first run, with balanced work.

    Each mesh gets neighbors in that order, at least one name.  The work of a name is its floating point operations,
    forward and backward, so what does little (an embedding, a norm) goes with its neighbor.

    Raises:
        MpmdError: when there are fewer names than meshes.
    """
    work = work_of_names(traced)
    if len(work) < len(meshes):
        listed = ", ".join(map(repr, work)) or "none"
        raise MpmdError(
            f"the program has {len(work)} named computations ({listed}) for {len(meshes)} meshes, and each mesh needs "
            "one. Name its layers, with mpmd_trace.named_computation(fn, name=...) or "
            "mpmd_trace.equinox.name_layers, or use fewer meshes"
        )
    stages = partition_layers([sum(both) for both in work.values()], len(meshes)).stages
    names = list(work)
    return {names[i]: Assignment(mesh) for mesh, stage in zip(meshes, stages, strict=True) for i in stage}


def by_counts(traced: Module, counts: Sequence[int], meshes: Sequence[str]) -> dict[str, Assignment]:
    """Return the names of a traced program on its stages, in the order in which they first run: so many layers on each.

    `meshes` has the mesh of each stage.  A name is a layer, and so is each layer of a scan, which is traced by itself.

    Raises:
        MpmdError: when there are more or fewer layers.
    """
    names = list(work_of_names(traced))
    if len(names) != sum(counts):
        listed = ", ".join(
            f"{name!r} ({len(parts)} layers)" if len(parts) > 1 else repr(name) for name, parts in joined_parts(names)
        )
        raise MpmdError(
            f"name_to_mesh_assignment {list(counts)} places {sum(counts)} layers, and the program has {len(names)}: "
            f"{listed or 'no named computations'}. Give numbers with this sum, in the order of the program"
        )
    rounds = len(counts) > len(set(meshes))
    result: dict[str, Assignment] = {}
    ends = list(itertools.accumulate(counts))
    for stage, (end, mesh) in enumerate(zip(ends, meshes, strict=True)):
        for name, _ in joined_parts(names[end - counts[stage] : end]):
            result[name] = Assignment(mesh, stage if rounds else None)
    return result


def work_of_names(traced: Module) -> Mapping[str, tuple[float, float]]:
    """Operations of each name forward and backward, in the order of the program; every function once."""
    functions = {f.sym_name: f for f in traced.functions}
    result: dict[str, tuple[float, float]] = {}
    done: set[str] = set()

    def visit(region: Region) -> None:
        for op in (o for block in region.blocks for o in block):
            if isinstance(op, NamedComputationOp):
                forward, backward = result.get(op.origin.name, (0.0, 0.0))
                work = flops(op.body, traced)
                is_back = op.origin.transpose_count > 0
                result[op.origin.name] = (forward, backward + work) if is_back else (forward + work, backward)
                continue
            callee = op.props.get("callee")
            name = callee.text.removeprefix("@").strip('"') if callee is not None else ""
            if name in functions and name not in done:
                done.add(name)
                visit(functions[name].regions[0])
            for inner in op.regions:
                visit(inner)

    visit(traced.main.regions[0])
    return result
