"""Results of simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from mpmd_trace.schedules import _memory
from mpmd_trace.schedules._actions import Step
from mpmd_trace.schedules._costs import Costs
from mpmd_trace.schedules._html import timeline_html
from mpmd_trace.schedules._program import Program
from mpmd_trace.schedules._schedule import Schedule

Measure = Literal["span", "makespan"]


@dataclass(frozen=True, slots=True)
class Event:
    """A step of a mesh with its start and end, in the unit of the costs."""

    mesh: int
    step: Step
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Events in time, mesh by mesh: of a simulation, or measured."""

    name: str
    rows: tuple[tuple[Event, ...], ...]
    unit: str = ""

    @property
    def end(self) -> float:
        """The time at which the last event ends."""
        return max((row[-1].end for row in self.rows if row), default=0.0)

    @classmethod
    def from_events(cls, name: str, events: list[Event], unit: str = "") -> Timeline:
        """Measured events in any order; time starts at the first one."""
        begin = min((e.start for e in events), default=0.0)
        rows: list[list[Event]] = [[] for _ in range(max((e.mesh for e in events), default=-1) + 1)]
        for e in sorted(events, key=lambda e: (e.mesh, e.start, e.end)):
            rows[e.mesh].append(Event(e.mesh, e.step, e.start - begin, e.end - begin))
        return cls(name, tuple(tuple(row) for row in rows), unit)


def shortest_of(events: Iterable[Event]) -> float:
    """Return the duration that sets the scale of a picture: the shortest one, leaving out the shortest twentieth."""
    lengths = sorted(e.end - e.start for e in events if e.end > e.start)
    return lengths[len(lengths) // 20] if lengths else 0.0


@dataclass(frozen=True)
class Simulation:
    """Start and end of every step of a schedule, and the measures taken from them.

    There are two kinds of bubble. The *makespan* bubble counts from time 0 to the end of the last
    action, so it includes the ramp before a mesh starts. The *span* bubble takes the longest time
    from a mesh's own first start to its own last end, the measure of the zero-bubble papers. Both
    subtract the work of the busiest mesh from this time.
    """

    schedule: Schedule
    costs: Costs
    program: Program = field(repr=False)
    starts: list[float] = field(repr=False)
    ends: list[float] = field(repr=False)
    arrival: Callable[[int, int], float] = field(repr=False)
    work: list[float] = field(repr=False)
    share: list[float] = field(repr=False)
    static: list[float] = field(repr=False)
    weight_fraction: float = 1.0
    transfers: str = "async"

    def _repr_html_(self) -> str:
        rows = [[(event.step, event.start, event.end) for event in row] for row in self.timeline.rows]
        peak = max(self.peak_memory, default=0.0)
        measures = f"makespan {self.makespan:g}, bubble {self.bubble_rate_makespan:.1%}, peak memory {peak:g}"
        return timeline_html(self.schedule.title, rows, self.makespan, measures)

    def _rows(self) -> list[tuple[int, int]]:
        first = self.program.first
        return [(first[m], first[m + 1]) for m in range(self.schedule.meshes)]

    @cached_property
    def makespan(self) -> float:
        """The end of the last action."""
        return max(self.ends, default=0.0)

    @cached_property
    def spans(self) -> tuple[float, ...]:
        """For each mesh, the time from its first start to its last end."""
        return tuple(self.ends[b - 1] - self.starts[a] if b > a else 0.0 for a, b in self._rows())

    @property
    def span(self) -> float:
        """The longest time from a mesh's first start to its last end."""
        return max(self.spans, default=0.0)

    def time(self, measure: Measure) -> float:
        """Return the time of a step by one of the two measures."""
        return self.span if measure == "span" else self.makespan

    @property
    def ideal(self) -> float:
        """The work of the busiest mesh, M(F+I+W) when all are equal: no schedule is faster."""
        return max(self.work, default=0.0)

    @property
    def bubble_makespan(self) -> float:
        """Makespan minus the work of the busiest mesh."""
        return self.makespan - self.ideal

    @property
    def bubble_span(self) -> float:
        """Span minus the work of the busiest mesh."""
        return self.span - self.ideal

    @property
    def bubble_rate_makespan(self) -> float:
        """The makespan bubble over the makespan."""
        return self.bubble_makespan / self.makespan if self.makespan else 0.0

    @property
    def bubble_rate_span(self) -> float:
        """The span bubble over the span; "bubble rate" in the zero-bubble papers."""
        return self.bubble_span / self.span if self.span else 0.0

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """For each mesh, how long it computes."""
        return tuple(sum(e - s for s, e in zip(self.starts[a:b], self.ends[a:b], strict=True)) for a, b in self._rows())

    @property
    def idle(self) -> tuple[float, ...]:
        """For each mesh, how much of the makespan it does not compute."""
        return tuple(self.makespan - b for b in self.busy)

    @cached_property
    def peak_activations(self) -> tuple[float, ...]:
        """For each mesh, the most activations it holds, in microbatches per mesh."""
        return tuple(
            _memory.peak(order, self.share, self.weight_fraction, not self.schedule.forward_only)
            for order in self.schedule.orders
        )

    @property
    def peak_memory(self) -> tuple[float, ...]:
        """For each mesh, the peak of activations plus what it always holds."""
        pairs = zip(self.peak_activations, self.static, strict=True)
        return tuple(round(p + s, 9) for p, s in pairs)

    def memory_curve(self, mesh: int) -> list[tuple[float, float]]:
        """(time, activations held from then on) of a mesh, one point per change."""
        first = self.program.first[mesh]
        held = 0.0
        points: list[tuple[float, float]] = [(0.0, 0.0)]
        order = self.schedule.orders[mesh]
        for n, (taken, given) in enumerate(
            _memory.changes(order, self.share, self.weight_fraction, not self.schedule.forward_only)
        ):
            for time, change in ((self.starts[first + n], taken), (self.ends[first + n], -given)):
                if change:
                    held = round(held + change, 9)
                    points.append((time, held))
        return points

    @cached_property
    def timeline(self) -> Timeline:
        """The steps with their times, to draw."""
        rows = tuple(tuple(map(self._event, range(a, b))) for a, b in self._rows())
        return Timeline(self.schedule.name, rows)

    def _event(self, step: int) -> Event:
        return Event(self.program.mesh[step], self.program.steps[step], self.starts[step], self.ends[step])

    @cached_property
    def critical_path(self) -> tuple[Event, ...]:
        """A chain of steps from time 0 to the makespan in which each one made the next wait.

        Shortening a step that is not on it cannot shorten the makespan. Where the previous step
        of the mesh and a transfer end together, the mesh's own step is named.
        """
        if not self.ends:
            return ()
        step = max(range(len(self.ends)), key=lambda i: (self.ends[i], -i))
        path: list[int] = [step]
        while self.starts[step] > 0.0:
            mesh = self.program.mesh[step]
            before = step - 1 if step > self.program.first[mesh] else -1
            candidates = [(self.arrival(need, mesh), -n, need) for n, need in enumerate(self.program.needs[step])]
            best = max(candidates, default=(-1.0, 0, -1))
            if before >= 0 and self.ends[before] >= best[0] - 1e-12:
                step = before
            elif best[2] >= 0:
                step = best[2]
            elif before >= 0:
                step = before
            else:
                break
            path.append(step)
        return tuple(map(self._event, reversed(path)))

    def summary(self) -> dict[str, object]:
        """Return the measures as plain data; the keys are those of `schedule simulate --json`."""
        numbers = ("makespan", "span", "ideal", "bubble_makespan", "bubble_span")
        rates = ("bubble_rate_makespan", "bubble_rate_span")
        of_meshes = ("idle", "peak_activations", "peak_memory")
        return {
            "schedule": self.schedule.name,
            "meshes": self.schedule.meshes,
            "stages": self.schedule.stages,
            "microbatches": self.schedule.microbatches,
            **{name: _tidy(getattr(self, name)) for name in (*numbers, *rates)},
            **{name: [_tidy(v) for v in getattr(self, name)] for name in of_meshes},
            "weight_fraction": self.weight_fraction,
            "transfers": self.transfers,
        }


def _tidy(value: float) -> float:
    """Ten decimals, and no negative zero: enough for any unit, without rounding noise."""
    return round(value, 10) + 0.0
