"""Timelines as pictures: the layout, in pixels, shared by SVG and PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mpmd_trace.schedules._actions import KIND_NAMES, KINDS, Action, Kind, Step
from mpmd_trace.schedules._result import Event, Simulation, Timeline

COLOURS: dict[Kind, str] = {
    "F": "#5b8fc7",
    "I": "#e8a04c",
    "W": "#8fbf78",
    "B": "#d9775f",
    "O": "#9a8fb8",
}
INK, PALE, GRID, IDLE = "#1f2430", "#5c6370", "#d9dce1", "#eceef2"
AREA, AREA_EDGE = "#c9d8ea", "#3f6ea5"

LEFT, RIGHT, TOP = 64.0, 64.0, 66.0
MAX_WIDTH = 30_000.0


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled box; `title` is shown when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str = ""
    second: str = ""
    """Colour of the lower half, for fused actions."""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text; `anchor` is start, middle or end; y is the baseline."""

    x: float
    y: float
    text: str
    size: float
    fill: str = INK
    anchor: str = "start"
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line or, with `fill`, an area."""

    points: tuple[tuple[float, float], ...]
    stroke: str
    width: float = 1.0
    fill: str = ""


Shape = Rect | Text | Line


@dataclass(frozen=True)
class Picture:
    """Shapes on a white page, sizes in pixels."""

    width: float
    height: float
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Scale:
    """Pixels per unit of time, and sizes that follow from the number of meshes."""

    pixels: float
    row: float
    font: float
    strip: float


def draw(
    *sources: Simulation | Timeline,
    memory: bool = True,
    title: str | None = None,
) -> Picture:
    """The timelines of one or more sources above each other, on one time axis.

    A simulation also gets its activation curves, one strip per mesh on one scale. To see plan
    beside measurement, give the simulation and the measured `Timeline` in the same unit.
    """
    timelines = [s.timeline if isinstance(s, Simulation) else s for s in sources]
    scale = _scale(timelines)
    end = max(t.end for t in timelines)
    shapes: list[Shape] = []
    y = TOP
    for source, timeline in zip(sources, timelines, strict=True):
        heading = _heading(source, timeline)
        if len(sources) == 1 and title is None:
            title = heading
        else:
            shapes.append(Text(LEFT, y - 8, heading, 11, INK, "start", True))
        y = _timeline(shapes, timeline, scale, end, y)
        y = _axis(shapes, scale, end, y, timeline.unit)
        if memory and isinstance(source, Simulation):
            y = _memory(shapes, source, scale, end, y + 26)
        y += 40
    head = title or " beside ".join(t.name for t in timelines)
    shapes.append(Text(LEFT, 22, head, 14, INK, "start", True))
    _legend(shapes, timelines)
    width = max(LEFT + end * scale.pixels + RIGHT, 620.0)
    return Picture(math.ceil(width), math.ceil(y - 14), tuple(shapes))


def _heading(source: Simulation | Timeline, timeline: Timeline) -> str:
    if isinstance(source, Simulation):
        s = source.schedule
        return (
            f"{s.name}: {s.meshes} meshes x {s.microbatches} microbatches, "
            f"makespan {_number(source.makespan)}, "
            f"span bubble {100 * source.bubble_rate_span:.1f} %, "
            f"peak {_number(max(source.peak_activations, default=0.0))} microbatches"
        )
    return f"{timeline.name}: makespan {_number(timeline.end)}{timeline.unit}"


def _scale(timelines: Sequence[Timeline]) -> Scale:
    """As wide as labels need, and no wider than a few screens for small schedules."""
    lengths = sorted(
        e.end - e.start for t in timelines for row in t.rows for e in row if e.end > e.start
    )
    end = max(t.end for t in timelines) or 1.0
    shortest = lengths[len(lengths) // 20] if lengths else end
    digits = max(
        (len(str(p.microbatch)) for t in timelines for row in t.rows for e in row
         for p in e.step.parts),
        default=1,
    )
    meshes = max(len(t.rows) for t in timelines)
    font = 11.0 if meshes <= 8 else 9.0 if meshes <= 16 else 8.0
    needed = (digits * 0.6 * font + 3.0) / shortest
    pleasant = 1100.0 / end
    pixels = min(max(needed, min(pleasant, 34.0 / shortest)), MAX_WIDTH / end)
    row = 30.0 if meshes <= 8 else 22.0 if meshes <= 16 else 17.0
    strip = 30.0 if meshes <= 8 else 20.0 if meshes <= 16 else 14.0
    return Scale(pixels, row, font, strip)


def _timeline(shapes: list[Shape], timeline: Timeline, scale: Scale, end: float, y: float) -> float:
    for mesh, row in enumerate(timeline.rows):
        top = y + mesh * scale.row
        height = scale.row - 3
        middle = top + height / 2 + scale.font * 0.35
        shapes.append(Text(LEFT - 8, middle, f"mesh {mesh}", scale.font, PALE, "end"))
        shapes.append(Rect(LEFT, top, end * scale.pixels, height, IDLE))
        chunk = {s: n for n, s in enumerate(sorted({p.stage for e in row for p in e.step.parts}))}
        for e in row:
            x, width = LEFT + e.start * scale.pixels, (e.end - e.start) * scale.pixels
            gap = 0.8 if width > 4 else 0.0
            fill, second = _fill(e.step, chunk)
            note = f"{e.step}  mesh {mesh}  {_number(e.start)} to {_number(e.end)}"
            shapes.append(Rect(x, top, max(width - gap, 0.2), height, fill, note, second))
            _label(shapes, e, x + (width - gap) / 2, top, height, width - gap, scale.font)
    return y + len(timeline.rows) * scale.row


def _fill(step: Step, chunk: dict[int, int]) -> tuple[str, str]:
    colours = [_shade(COLOURS[p.kind], chunk[p.stage]) for p in step.parts]
    return colours[0], colours[1] if len(colours) > 1 else ""


def _shade(colour: str, chunk: int) -> str:
    """Later chunks of a mesh are lighter."""
    mix = min(0.62, 0.42 * chunk) if chunk < 2 else min(0.72, 0.3 + 0.16 * chunk)
    parts = [int(colour[n : n + 2], 16) for n in (1, 3, 5)]
    return "#" + "".join(f"{round(v + (255 - v) * mix):02x}" for v in parts)


def _label(
    shapes: list[Shape], e: Event, x: float, top: float, height: float, width: float, font: float
) -> None:
    parts = e.step.parts
    if len(parts) == 2 and height >= 2 * font:
        halves = [(parts[0], top + height * 0.25), (parts[1], top + height * 0.75)]
    elif len(parts) > 1:
        halves = [(parts[0], top + height * 0.5)]
    else:
        halves = [(parts[0], top + height / 2)]
    for part, centre in halves:
        text = _fitting(part, width, font)
        if text:
            shapes.append(Text(x, centre + font * 0.35, text, font, INK, "middle"))


def _fitting(action: Action, width: float, font: float) -> str:
    number = str(action.microbatch) if action.microbatch >= 0 else ""
    for text in (f"{action.kind}{number}", number):
        if text and len(text) * 0.6 * font <= width:
            return text
    return ""


def _axis(shapes: list[Shape], scale: Scale, end: float, y: float, unit: str) -> float:
    rough = max(70.0 / scale.pixels, 1e-12)
    power = 10.0 ** math.floor(math.log10(rough))
    tick = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    shapes.append(Line(((LEFT, y + 2), (LEFT + end * scale.pixels, y + 2)), GRID))
    for n in range(math.floor(end / tick + 1e-9) + 1):
        x = LEFT + n * tick * scale.pixels
        shapes.append(Line(((x, y + 2), (x, y + 6)), PALE))
        shapes.append(Text(x, y + 16, _number(n * tick) + (unit if n else ""), 9, PALE, "middle"))
    return y + 18


def _memory(shapes: list[Shape], result: Simulation, scale: Scale, end: float, y: float) -> float:
    peaks = result.peak_activations
    highest = max(max(peaks, default=0.0), 1e-9)
    shapes.append(
        Text(LEFT, y - 6, f"activations held, in microbatches (full height = {_number(highest)}, "
             f"peak of each mesh at the right, w = {result.weight_fraction:g})", 10, PALE)
    )
    for mesh in range(result.schedule.meshes):
        base = y + (mesh + 1) * scale.strip - 2
        height = scale.strip - 3
        points = [(LEFT, base)]
        level = base
        # Where one action frees what the next one takes, only the outcome is drawn.
        for time, held in {round(t, 9): h for t, h in result.memory_curve(mesh)}.items():
            x = LEFT + time * scale.pixels
            points.append((x, level))
            level = base - height * held / highest
            points.append((x, level))
        points += [(LEFT + end * scale.pixels, level), (LEFT + end * scale.pixels, base)]
        shapes.append(Line(tuple(points), AREA_EDGE, 0.8, AREA))
        font = min(scale.font, scale.strip - 3)
        shapes.append(Text(LEFT - 8, base - 2, f"mesh {mesh}", font, PALE, "end"))
        shapes.append(Text(LEFT + end * scale.pixels + 6, base - 2, _number(peaks[mesh]), font))
    return y + result.schedule.meshes * scale.strip


def _legend(shapes: list[Shape], timelines: Sequence[Timeline]) -> None:
    used = {p.kind for t in timelines for row in t.rows for e in row for p in e.step.parts}
    several = any(len({p.stage for e in row for p in e.step.parts}) > 1
                  for t in timelines for row in t.rows)
    x = LEFT
    for kind in KINDS:
        if kind in used:
            shapes.append(Rect(x, 30, 12, 12, COLOURS[kind]))
            name = f"{kind} {KIND_NAMES[kind]}"
            shapes.append(Text(x + 16, 40, name, 10, PALE))
            x += 16 + len(name) * 6.0 + 14
    if several:
        shapes.append(Text(x, 40, "lighter: later stage of the mesh", 10, PALE))


def _number(value: float) -> str:
    return f"{round(value, 4) + 0.0:g}" if abs(value) < 1e6 else f"{value:.5g}"
