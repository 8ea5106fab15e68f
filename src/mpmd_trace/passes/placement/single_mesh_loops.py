"""Loops and conditionals that stay whole though their values are on several meshes: what that moves is said."""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.passes.placement.hypergraph import DataflowHypergraph, Edge

#: How these warnings begin.
WHOLE = "A loop or conditional without a name stays whole"
#: Warnings are about at least so many bytes of a step.
COSTLY = 2**20
_KINDS = {
    "stablehlo.while": (
        "loop",
        "its values depend on each other, so that no mesh can run a part of it, and how often it runs is not known, or "
        "too often to unroll it. Loop over the values of each mesh by themselves, with a condition that reads scalars "
        "alone, or a known number of times, or name the loop",
    ),
    "stablehlo.case": (
        "switch",
        "it has effects, or values of types without zeros, so that no mesh can run a part of it. Take these out of it, "
        "or name it",
    ),
    "stablehlo.if": (
        "conditional",
        "it has effects, or values of types without zeros, so that no mesh can run a part of it. Take these out of it, "
        "or name it",
    ),
}


def warn_of_whole(
    flow: DataflowHypergraph,
    edges: Sequence[Edge],
    labels: Sequence[int],
    diagnostics: Diagnostics,
    costly: int = COSTLY,
) -> None:
    """Warn of each loop and conditional for which at least `costly` bytes move in a step."""
    whole = {node: op for op, node in flow.node_of.items() if op.name in _KINDS}
    if not whole:
        return
    moved: dict[int, dict[int, int]] = {node: {} for node in whole}
    for edge in edges:
        for node in edge.nodes:
            if node not in whole:
                continue
            others = {labels[other] for other in edge.nodes if other != node}
            if labels[node] not in others:  # the value is here because of this op alone
                for label in others:
                    moved[node][label] = moved[node].get(label, 0) + edge.weight
    for node, op in whole.items():
        size = sum(moved[node].values())
        if size < costly:
            continue
        kind, reason = _KINDS[op.name]
        meshes = ", ".join(flow.meshes[label] for label in sorted(moved[node]))
        diagnostics.warning(
            op,
            f"{WHOLE}: the {kind} runs on mesh {flow.meshes[labels[node]]}, and about {size:,} bytes of a step move "
            f"between it and {meshes} for it; {reason} (docs/placement.md)",
        )
