"""The tables of what meshes hold and what moves between them, for `run`, `explain` and `plan`."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING, Any

from mpmd_trace.backend.residence import CAUSES, Residence
from mpmd_trace.diagnostics.messages import shortened

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["as_data", "as_text"]

_WIDTH = 160


def as_data(found: Residence) -> dict[str, Any]:
    """The account as plain data."""
    return {
        "meshes": [dataclasses.asdict(held) for held in found.meshes],
        "moves": {cause: {"count": n, "bytes": size} for cause, (n, size) in found.causes.items()},
        "sent": [dataclasses.asdict(sent) for sent in found.sent],
        "not_where_used": [dataclasses.asdict(one) for one in found.astray],
        "returning": [{"name": name, "bytes": size} for name, size in found.returning],
        "arguments": dict(found.roles),
    }


def as_text(found: Residence, file: str) -> str:
    """The tables, and which parameters are not where they are used."""
    from rich.table import Table  # late: tables are for people, JSON does without

    columns = ("parameters", "state", "arguments", "gradients", "activations", "peak")
    held = Table("mesh", title="bytes on a device of each mesh", title_justify="left")
    for column in columns:
        held.add_column(column, justify="right")
    for mesh in found.meshes:
        held.add_row(mesh.mesh, *(f"{getattr(mesh, column):,}" for column in columns))
    moves = Table("cause", title="sent in a step", title_justify="left")
    for column in ("count", "bytes"):
        moves.add_column(column, justify="right")
    moves.add_column("what it is")
    for cause, (count, size) in found.causes.items():
        moves.add_row(cause, f"{count:,}", f"{size:,}", CAUSES[cause])
    text = _drawn(held, moves) if found.causes else _drawn(held)
    if found.astray:
        first = found.astray[0].number
        lines = [
            f"  {one.name} ({one.bytes:,} bytes) is on {one.mesh}, and named code uses it on {', '.join(one.used_on)}"
            for one in found.astray
        ]
        text += (
            "parameters that are not where they are used:\n"
            + "\n".join(shortened(lines))
            + f'\n  mpmd-trace explain {file} --value "input {first}" says why the first one is there\n'
        )
    return text


def _drawn(*tables: Table) -> str:
    """The tables as text, as wide as they are."""
    from rich.console import Console  # late: tables are for people, JSON does without

    shown = Console(file=io.StringIO(), width=_WIDTH, highlight=False)
    with shown.capture() as caught:
        for table in tables:
            shown.print(table)
    return "\n".join(line.rstrip() for line in caught.get().splitlines()) + "\n"
