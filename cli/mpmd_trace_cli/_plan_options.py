"""The options of `mpmd-trace plan`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options that tell about the machine, and what to try."""

    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure the times of the program's executables instead of estimating them from operation counts.",
        ),
    ] = False
    microbatches: Annotated[
        str, typer.Option(help="Numbers of microbatches to try: 4,8,16. Default: that of the program.")
    ] = ""
    memory_limit: Annotated[float | None, typer.Option(help="Memory limit of a device in MiB.")] = None
    tflops: Annotated[float | None, typer.Option(help="A device's speed in TFLOP/s.")] = None
    gbytes: Annotated[float | None, typer.Option(help="A device's memory bandwidth in GB/s.")] = None
    latency_us: Annotated[float | None, typer.Option(help="Latency of a transfer in microseconds.")] = None
    link_gbytes: Annotated[float | None, typer.Option(help="Bandwidth between devices of two meshes in GB/s.")] = None
    link: Annotated[
        list[str] | None, typer.Option(help="Override the link between two meshes: m0:m1=20,12.5 (microseconds, GB/s).")
    ] = None
    collective_gbytes: Annotated[
        float | None, typer.Option(help="Bandwidth between the devices of a mesh in GB/s, for collectives.")
    ] = None
    transfers: Annotated[
        str | None,
        typer.Option(
            help="async (in the background, the default), exposed (occupy the sender), blocking (rendezvous) "
            "or in-order (in the background, one at a time per mesh)."
        ),
    ] = None
    rows: Annotated[int, typer.Option(help="Number of alternatives to print.")] = 12
    save: Annotated[
        str | None, typer.Option(help="Write the best schedule as CSV, for mpmd_trace.schedules.load_csv.")
    ] = None
