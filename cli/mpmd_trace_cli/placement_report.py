"""The tables of what meshes hold and what moves between them, for `run`, `explain` and `plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.backend.collectives import Collectives, CollectivesReport
from mpmd_trace.backend.placement_tables import PlacementReport
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.messages import shortened
from mpmd_trace.diagnostics.tables import as_text as as_tables
from mpmd_trace.jax_compat.collective_overlap import HiddenShare
from mpmd_trace.passes.hoisting.hoist_invariants import TOO_LITTLE
from mpmd_trace.passes.memory.remarks import MEMORY
from mpmd_trace.report.placement_reasons import MOST_REASONS
from mpmd_trace.scheduling.costs import hiding_of


def as_data(report: PlacementReport, why: Mapping[int, str]) -> dict[str, Any]:
    """Return the account as plain data."""
    return {
        "meshes": [dataclasses.asdict(held) for held in report.meshes],
        "sharing_devices": report.sharing,
        "moves": {cause: {"count": n, "bytes": size} for cause, (n, size) in report.causes.items()},
        "sent": [dataclasses.asdict(sent) for sent in report.sent],
        "not_where_used": [{**dataclasses.asdict(one), "why": why.get(one.number)} for one in report.misplaced],
        "returning": [dataclasses.asdict(one) for one in report.returning],
        "arguments": dict(report.roles),
    }


def as_text(report: PlacementReport, why: Mapping[int, str], file: str, *, returning: bool = True) -> str:
    """Return the tables, what is not where it is used and why, and with `returning` what leaves on another mesh."""
    text = as_tables([report.held, report.moves, report.links]) + "\n"
    for meshes in report.sharing:
        text += (
            f"{', '.join(meshes)} share their devices: the peak is that of all together, one of them works at a "
            "time, and what goes from one to another is not copied\n"
        )
    if report.misplaced:
        lines, said = [], ""
        for one in report.misplaced:
            used = f"is used on {', '.join(one.used_on)}"
            if one.of:
                used = f"{one.of}, whose state it is, on {one.used_on[0]}"
            line = f"  {one.name} ({one.bytes:,} bytes) is on {one.mesh}, and {used}"
            reason = why.get(one.number, "")
            lines.append(line + (f"\n    why: {reason}" if reason and reason != said else ""))
            said = reason or said
        text += (
            "misplaced parameters and states:\n"
            + "\n".join(shortened(lines, MOST_REASONS))
            + f'\n  mpmd-trace explain {file} --value "input {report.misplaced[0].number}" explains the first one\n'
        )
    if report.returning and returning:
        lines = [
            f"  {one.name} ({one.bytes:,} bytes) is taken on {one.mesh} and returned on {one.leaves}"
            for one in report.returning
        ]
        text += moved_back(lines) + "\n"
    return text


def moved_back(lines: Sequence[str], total: str = "") -> str:
    """Return what to say of arrays that a step leaves on other meshes than those where the next one takes them."""
    return (
        f"arrays that a step returns on another mesh, so the next step moves them back:{total}\n"
        + "\n".join(shortened(lines))
        + "\n  output_mesh_assignment with mpmd_trace.MeshOfInput keeps them in place (docs/steps.md)"
    )


def facts_data(config: Config, lowered: PartitionedProgram, collectives: CollectivesReport) -> dict[str, Any]:
    """Return what else is known as plain data: the collectives, what hides them, and the remarks of passes."""
    return {"collectives": collectives_data(collectives), **hiding_data(config, collectives), **remarks_data(lowered)}


def facts_text(config: Config, lowered: PartitionedProgram, collectives: CollectivesReport, fits: str = "") -> str:
    """Return the same as text, with whether the program fits."""
    return collectives_text(collectives) + hiding_text(config, collectives) + fits + remarks_text(lowered)


def collectives_data(collectives: Mapping[str, Collectives]) -> dict[str, Any]:
    """Return the collectives of each mesh as plain data."""
    return {
        mesh: {kind: dataclasses.asdict(one) for kind, one in all_of.of.items()} for mesh, all_of in collectives.items()
    }


def collectives_text(collectives: CollectivesReport) -> str:
    """Return an empty line and a table of the collectives of a device in a step; nothing where there are none."""
    has_any = any(all_of.of for all_of in collectives.values())
    return f"\n{collectives}\n" if has_any else ""


def hiding_data(config: Config, collectives: Mapping[str, Collectives]) -> dict[str, Any]:
    """Return which part of its collectives each mesh is assumed to hide in pairs, in forwards and in backwards.

    None for a mesh of whose devices that is not known; nothing for programs without pairs.
    """
    if config.options.overlap is None:
        return {}
    assumed: dict[str, Any] = {mesh: None for mesh, own in collectives.items() if own.of}
    for mesh, shares in hiding_of(config).items():
        if mesh in assumed:
            each = {kind: shares.get(kind, HiddenShare()) for kind in collectives[mesh].of}
            assumed[mesh] = {k: {"forward": one.of(True)[1], "backward": one.of(False)[1]} for k, one in each.items()}
    return {"assumed_hidden_in_pairs": assumed}


def hiding_text(config: Config, collectives: Mapping[str, Collectives]) -> str:
    """Return the same as lines."""
    lines: dict[str, list[str]] = {}
    for mesh, by_kind in hiding_data(config, collectives).get("assumed_hidden_in_pairs", {}).items():
        parts = [
            f"{kind} {one['forward']:.0%} of forwards, {one['backward']:.0%} of backwards"
            for kind, one in (by_kind or {}).items()
        ]
        lines.setdefault("; ".join(parts) or "nothing, as it is not known of these devices", []).append(mesh)
    told = [f"  {', '.join(meshes)}: {text}" for text, meshes in lines.items()]
    return "\n".join(["what pairs are assumed to hide of their collectives:", *told, ""]) if told else ""


def remarks_data(lowered: PartitionedProgram) -> dict[str, Any]:
    """Return what passes did about memory and about repetition, and what not and why: their remarks."""
    remarks = [d.message for d in lowered.partitioned.diagnostics if d.severity == "remark"]
    return {
        "memory": [text.removeprefix(MEMORY) for text in remarks if text.startswith(MEMORY)],
        "once_per_step": [text for text in remarks if not text.startswith(MEMORY)],
    }


def remarks_text(lowered: PartitionedProgram) -> str:
    """Return the remarks as lists, without those on values that are too small to be worth a program."""
    heads = {"once_per_step": "values that are the same in all microbatches"}
    told = ""
    for name, texts in remarks_data(lowered).items():
        lines = shortened([f"  {text}" for text in texts if not text.endswith(TOO_LITTLE)])
        if small := sum(text.endswith(TOO_LITTLE) for text in texts):
            lines.append(f"  small values computed in each microbatch: {small} (--json lists them)")
        told += "\n".join([f"{heads.get(name, name)}:", *lines, ""]) if texts else ""
    return told
