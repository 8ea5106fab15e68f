"""Options shared by the schedule commands, and what turns them into schedules and costs.

Options that belong together are the fields of a dataclass. A command that takes one as a parameter
has all of them: `grouped` spreads the fields out for typer and puts them together again.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from mpmd_trace.schedules import (
    AUTO_WEIGHT_FRACTION,
    Costs,
    Placement,
    Schedule,
    ScheduleError,
    Simulation,
    StageGraph,
    contiguous_stages,
    find_entry,
    get_schedule,
    load_csv,
    meshes_over,
    schedule_names,
    simulate,
    validate,
)
from mpmd_trace.schedules import MemoryLimit as Limit

R = TypeVar("R")


def grouped(command: Callable[..., R]) -> Callable[..., R]:
    """Return the command with the fields of its dataclass parameters in their place."""
    hints = get_type_hints(command, include_extras=True)
    flat: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            flat.append(parameter.replace(annotation=kind, kind=parameter.KEYWORD_ONLY))
            continue
        assert isinstance(kind, type)
        types = get_type_hints(kind, include_extras=True)
        fields = inspect.signature(kind).parameters
        groups[name] = kind, list(fields)
        flat += [field.replace(annotation=types[field.name]) for field in fields.values()]

    @functools.wraps(command)
    def wrapped(**values: Any) -> R:
        for name, (kind, fields) in groups.items():
            values[name] = kind(**{field: values.pop(field) for field in fields})
        return command(**values)

    wrapped.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in flat}
    return wrapped


MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", help="Microbatches of activations per mesh, one number or a list.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Orders = Annotated[bool, typer.Option("--orders", help="Also print the order of each mesh.")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """The size of the pipeline."""

    meshes: Annotated[int | None, typer.Option("--meshes", "-p", help="Number of meshes.")] = None
    microbatches: Annotated[int | None, typer.Option("--microbatches", "-m", help="Number of microbatches.")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraryOptions(SizeOptions):
    """A selection of schedules of the library."""

    chunks: Annotated[int | None, typer.Option("--chunks", "-v", help="Chunks per mesh.")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleOptions(LibraryOptions):
    """One schedule of the library, or a table."""

    name: Annotated[
        str, typer.Argument(help="Name of a schedule (see list), or a CSV table.", autocompletion=schedule_names)
    ]
    group_size: Annotated[int | None, typer.Option(help="Microbatches per round of an interleaved schedule.")] = None
    placement: Annotated[str | None, typer.Option(help="For a CSV table: the mesh of each stage, e.g. 0,1,1,0.")] = None
    edges: Annotated[
        str | None,
        typer.Option(help="Extra data flow between stages, e.g. 0-2,1-3; with a leading '=' instead of the chain."),
    ] = None
    stages_per_chunk: Annotated[
        int, typer.Option(help="Number of consecutive stages in place of each stage of the schedule.", min=1)
    ] = 1

    def load(self, memory: MemoryOptions, costs: Costs | None = None, *, checked: bool = True) -> Schedule:
        """Return a schedule of the library, or the table in a CSV file, checked by default."""
        schedule = self._table() if is_file(self.name) else self._named(memory, costs)
        if self.edges is not None:
            schedule = _with_edges(schedule, self.edges)
        return validate(schedule) if checked else schedule

    def _table(self) -> Schedule:
        stages = None if self.placement is None else whole_numbers(self.placement, "--placement")
        table = None if stages is None else Placement.of(stages, self.meshes)
        schedule = load_csv(Path(self.name), placement=table, microbatches=self.microbatches)
        if self.meshes is not None and self.meshes != schedule.meshes:
            raise ScheduleError(f"{self.name} has {schedule.meshes} rows, but --meshes is {self.meshes}")
        return contiguous_stages(schedule, self.stages_per_chunk) if self.stages_per_chunk > 1 else schedule

    def _named(self, memory: MemoryOptions, costs: Costs | None) -> Schedule:
        find_entry(self.name)
        if self.placement is not None:
            raise ScheduleError("--placement goes with a CSV table; a named schedule has its own")
        if self.meshes is None or self.microbatches is None:
            missing = [f"--{size}" for size in ("meshes", "microbatches") if getattr(self, size) is None]
            raise ScheduleError(f"schedule '{self.name}' needs {' and '.join(missing)}")
        return get_schedule(
            self.name,
            self.meshes,
            self.microbatches,
            chunks=self.chunks,
            group_size=self.group_size,
            costs=costs,
            memory_limit=memory.limit,
            weight_fraction=memory.fraction_for(self.name),
            stages_per_chunk=self.stages_per_chunk,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostOptions:
    """The costs of actions and transfers."""

    forward: Annotated[
        str, typer.Option(help="Time of F (a forward): one number, or a list with one per mesh or stage.")
    ] = "1"
    input_grad: Annotated[str, typer.Option(help="Time of I (gradients of inputs), in the same form.")] = "1"
    weight_grad: Annotated[str, typer.Option(help="Time of W (gradients of weights), in the same form.")] = "1"
    backward: Annotated[str | None, typer.Option(help="Time of a full backward; default I + W.")] = None
    fused_cost: Annotated[str | None, typer.Option(help="Time of a fused F and B; default F + B.")] = None
    latency: Annotated[float, typer.Option(help="Time of a transfer between meshes.")] = 0.0
    bandwidth: Annotated[float | None, typer.Option(help="Size that a link transfers per unit of time.")] = None
    size: Annotated[str, typer.Option(help="Size of a stage's output.")] = "0"
    collectives: Annotated[
        str | None,
        typer.Option(help="Additional times F,I,W per mesh in which the devices of a mesh only communicate."),
    ] = None

    def costs(self) -> Costs:
        """Return the costs that the options describe."""
        sent = None if self.collectives is None else _numbers(self.collectives, "--collectives")
        if sent is not None and not (isinstance(sent, tuple) and len(sent) == 3):
            raise ScheduleError(f"--collectives '{self.collectives}' must be three numbers, for F, I and W")
        return Costs(
            forward=_numbers(self.forward, "--forward"),
            input_grad=_numbers(self.input_grad, "--input-grad"),
            weight_grad=_numbers(self.weight_grad, "--weight-grad"),
            backward=None if self.backward is None else _numbers(self.backward, "--backward"),
            fused=None if self.fused_cost is None else _numbers(self.fused_cost, "--fused-cost"),
            latency=self.latency,
            bandwidth=self.bandwidth,
            size=_numbers(self.size, "--size"),
            collectives={} if sent is None else dict(zip("FIW", sent, strict=True)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """The count of memory."""

    weight_fraction: Annotated[
        float | None,
        typer.Option(help="Fraction of the activations that a weight gradient keeps; default 1, for zb-auto 0.5."),
    ] = None
    memory_limit: MemoryLimit = None

    @property
    def limit(self) -> Limit | None:
        """The memory limit of all meshes, or one for each."""
        return limit_of(self.memory_limit)

    def fraction_for(self, name: str) -> float | None:
        """Return the weight fraction of zb-auto when none is given: that of real layers."""
        if self.weight_fraction is not None or is_file(name):
            return self.weight_fraction
        return AUTO_WEIGHT_FRACTION if find_entry(name).name == "zb-auto" else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayOptions(MemoryOptions):
    """The way in which a schedule is played through time."""

    transfers: Annotated[
        str,
        typer.Option(
            help="async (in the background), exposed (occupy the sender), blocking (rendezvous) "
            "or in-order (in the background, one at a time per mesh)."
        ),
    ] = "async"
    fused: Annotated[
        str, typer.Option(help="Run fused actions as one block (block) or one after the other (serial).")
    ] = "block"

    def run(self, schedule: Schedule, costs: Costs, weight_fraction: float | None) -> Simulation:
        """Return the simulation of a schedule; odd options are a `ScheduleError`."""
        chosen: Any = {"transfers": self.transfers, "fused": self.fused}
        return simulate(schedule, costs, weight_fraction=1.0 if weight_fraction is None else weight_fraction, **chosen)


def limit_of(text: str | None) -> Limit | None:
    """Return the memory limit that the option means."""
    return None if text is None else _numbers(text, "--memory-limit")


def _numbers(text: str, what: str) -> float | tuple[float, ...]:
    """Return a number, or a tuple from a comma-separated list."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ScheduleError(f"{what} '{text}' is neither a number nor a list of numbers") from None
    if not all(math.isfinite(v) and v >= 0 for v in values):
        raise ScheduleError(f"{what} '{text}' must be finite, 0 or more")
    return values[0] if len(values) == 1 else tuple(values)


def whole_numbers(text: str, what: str) -> tuple[int, ...]:
    """Integers from a comma-separated list."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ScheduleError(f"{what} '{text}' is not a list of whole numbers") from None
    if any(v < 0 for v in values):
        raise ScheduleError(f"{what} '{text}' must not be negative")
    return values


def _with_edges(schedule: Schedule, text: str) -> Schedule:
    alone = text.startswith("=")
    pairs: list[tuple[int, int]] = []
    for part in text.removeprefix("=").split(","):
        ends = part.split("-")
        if len(ends) != 2 or not all(e.strip().isdigit() for e in ends):
            raise ScheduleError(f"--edges '{text}': '{part}' is not two stages as in 0-2")
        pairs.append((int(ends[0]), int(ends[1])))
    graph = StageGraph.from_edges(schedule.stages, pairs) if alone else (schedule.graph.with_skips(*pairs))
    return schedule.with_graph(graph)


def is_file(name: str) -> bool:
    """Return whether a name means a table in a file."""
    return name.lower().endswith(".csv") or ("/" in name and Path(name).is_file())


def name_and_chunks(text: str, chunks: int | None) -> tuple[str, int | None]:
    """Return the name and its chunks: four of `interleaved-1f1b/4`, else `chunks` where the schedule has a choice."""
    if is_file(text):
        return text, None
    name, slash, number = text.rpartition("/")
    if slash and number.isdigit():
        return name, int(number)
    return text, chunks if "chunks" in find_entry(text).options else None


def table(results: list[tuple[str, Simulation]], base: float | None, memory_limit: Limit | None) -> str:
    """Results as a table, one line each."""
    width = max([8, *(len(name) for name, _ in results)])
    head = f"{'schedule':<{width}} {'makespan':>10} {'span':>10} {'rate':>7} {'rate(span)':>10}"
    lines = [f"{head} {'peak':>6} {'vs 1f1b':>8}"]
    for name, r in results:
        won = gain_over(base, r)
        gain = "" if won is None else f"{100 * won:+.1f} %"
        over = "  over the limit" if meshes_over(r.peak_activations, memory_limit) else ""
        lines.append(
            f"{name:<{width}} {_short(r.makespan):>10} {_short(r.span):>10} "
            f"{r.bubble_rate_makespan:>7.4f} {r.bubble_rate_span:>10.4f} "
            f"{_short(max(r.peak_activations)):>6} {gain:>8}{over}"
        )
    return "\n".join(lines) + "\n"


def gain_over(base: float | None, result: Simulation) -> float | None:
    """Return how much faster than a makespan; None without one, and where nothing takes any time."""
    return None if base is None or not result.makespan else base / result.makespan - 1


def _short(value: float) -> str:
    return f"{round(value, 4):g}" if value < 1e6 else f"{value:.6g}"
