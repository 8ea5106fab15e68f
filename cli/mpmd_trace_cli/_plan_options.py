"""The options of `mpmd-trace plan`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is known about the machine, and what to try."""

    measure: Annotated[bool, typer.Option("--measure", help="Measure the program's parts instead of asking XLA.")] = (
        False
    )
    microbatches: Annotated[str, typer.Option(help="Numbers of microbatches to try: 4,8,16.")] = ""
    memory_limit: Annotated[float | None, typer.Option(help="MiB that a device may hold.")] = None
    tflops: Annotated[float | None, typer.Option(help="A device's speed in TFLOP/s.")] = None
    gbytes: Annotated[float | None, typer.Option(help="A device's memory bandwidth in GB/s.")] = None
    latency_us: Annotated[float | None, typer.Option(help="Latency of a transfer in microseconds.")] = None
    link_gbytes: Annotated[
        float | None, typer.Option(help="Bandwidth from device to device of two meshes in GB/s.")
    ] = None
    link: Annotated[
        list[str] | None, typer.Option(help="Another one for two meshes: m0:m1=20,12.5 (microseconds, GB/s).")
    ] = None
    transfers: Annotated[
        str | None, typer.Option(help="async (hidden behind work, the default), exposed or blocking")
    ] = None
    rows: Annotated[int, typer.Option(help="How many alternatives to print.")] = 12
    save: Annotated[
        str | None, typer.Option(help="Write the best schedule as CSV, for mpmd_trace.schedules.load_csv.")
    ] = None
