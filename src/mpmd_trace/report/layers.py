"""A program with every name on a mesh of its own: what each layer holds and sends, however stages are cut.

Names, operations without a name and transfers are placed by the compiler's own passes, so that what crosses
between two layers is what would be sent if a cut were there.  Nothing is compiled by XLA.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.ir.ops import Module
from mpmd_trace.passes.compile_options import OUR_OPTIONS
from mpmd_trace.passes.partition import partition_as
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.report.plan_values import Profile, activation_slots, cut_bytes, other_bytes, values_of_plan
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.scheduling.transfers import Value


@dataclasses.dataclass(frozen=True)
class LayerValues:
    """The values of a program whose actions name layers instead of stages.

    `static`: the bytes that a device holds beside activations and scratch memory, for each layer; `cuts`: the
    bytes that cross behind each layer but the last, forward and back.
    """

    names: tuple[str, ...]
    meshes: tuple[str, ...]
    values: tuple[Value, ...]
    static: tuple[Profile, ...]
    cuts: tuple[tuple[float, float], ...]


def values_of_layers(lowered: PartitionedProgram, traced: Module, names: Sequence[str]) -> LayerValues:
    """Return the values between the named parts of a program, which are given in its order.

    Raises `MpmdError` where it cannot be divided like this.
    """
    config = lowered.config
    shapes = {tuple(mesh.shape.items()) for mesh in config.topology.values()}
    if len(shapes) > 1:
        raise MpmdError("the meshes have different axes")
    held = [n for n in names if config.assignments[n].memory_kind not in (None, "device")]
    if held:
        raise MpmdError(f"'{held[0]}' is assigned to a memory of its mesh")
    request = lowered.request
    meshes = [f"layer{i}" for i in range(len(names))]
    axes = next(iter(request.topology.meshes.values()))
    options = request.with_options(
        placement="reference",
        mpmd_infer_transfers=True,
        mpmd_split_bwd_fragments=False,
        **dict.fromkeys(OUR_OPTIONS, False),
    ).options
    request = PartitionRequest(
        request.func_name,
        TopologyAttr.get(dict.fromkeys(meshes, axes)),
        {name: Assignment(mesh) for name, mesh in zip(names, meshes, strict=True)},
        (None,) * len(request.inputs),
        (None,) * len(request.outputs),
        request.donated,
        options,
    )
    actions = FragmentActions()
    plan = make_plan(partition_as(traced, request, hooks=[actions]).module)
    values = values_of_plan(plan, actions)
    layers = {i: i for i in range(len(names))}
    seen: list[set[int]] = [set() for _ in names]
    for value in values:
        for _, action in value.uses:
            if action.kind == "F":
                seen[action.stage].add(action.microbatch)
    others, _ = other_bytes(plan, actions, activation_slots(values, layers))
    cuts = cut_bytes(values, len(names), [len(s) for s in seen])
    return LayerValues(tuple(names), tuple(meshes), tuple(values), tuple(others[m] for m in meshes), tuple(cuts))
