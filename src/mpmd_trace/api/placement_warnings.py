"""What a person would not have drawn in the placement of a step, with the way out."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mpmd_trace.backend.placement_report import PlacementReport, Traffic
from mpmd_trace.diagnostics.messages import shortened

__all__ = ["COSTLY", "placement_warnings"]

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
