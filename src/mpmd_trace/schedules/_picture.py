"""Timelines as pictures: the layout, in pixels of a 96th of an inch, shared by all kinds of files, and SVG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from mpmd_trace.schedules._actions import COLORS, KIND_NAMES, KINDS, Action, Step
from mpmd_trace.schedules._errors import ScheduleError, counted
from mpmd_trace.schedules._result import Event, Simulation, Timeline, shortest_of

INK, PALE, GRID, IDLE = "#1f2430", "#5c6370", "#d9dce1", "#eceef2"
AREA, AREA_EDGE = "#c9d8ea", "#3f6ea5"

FONT = "DejaVu Sans, Verdana, Helvetica, sans-serif"
LEFT, RIGHT, MARGIN = 64.0, 64.0, 8.0
MAX_WIDTH = 30_000.0
#: Seven points: what can be read on paper.
SMALLEST = 28 / 3


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

    @property
    def parts(self) -> list[tuple[float, float, str]]:
        """(y, height, color) of what it is made of."""
        if not self.second:
            return [(self.y, self.height, self.fill)]
        half = self.height / 2
        return [(self.y, half, self.fill), (self.y + half, half, self.second)]


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

    def _repr_svg_(self) -> str:
        """Return what notebooks show."""
        return to_svg(self)


def to_svg(picture: Picture) -> str:
    """Return a self-contained SVG; hovering over an action shows its name and times."""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(picture.width)}" '
        f'height="{_n(picture.height)}" viewBox="0 0 {_n(picture.width)} {_n(picture.height)}" '
        f'font-family="{FONT}">',
        f'<rect width="{_n(picture.width)}" height="{_n(picture.height)}" fill="#ffffff"/>',
    ]
    for shape in picture.shapes:
        if isinstance(shape, Rect):
            out.append(_rect(shape))
        elif isinstance(shape, Text):
            weight = ' font-weight="bold"' if shape.bold else ""
            anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
            # Labels lie on the actions, and must not catch the pointer.
            out.append(
                f'<text x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}" '
                f'fill="{shape.fill}"{anchor}{weight} pointer-events="none">'
                f"{escape(shape.text, quote=False)}</text>"
            )
        else:
            points = " ".join(f"{_n(x)},{_n(y)}" for x, y in shape.points)
            out.append(
                f'<polyline points="{points}" fill="{shape.fill or "none"}" '
                f'stroke="{shape.stroke}" stroke-width="{_n(shape.width)}" stroke-linejoin="round"/>'
            )
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _rect(shape: Rect) -> str:
    title = f"<title>{escape(shape.title, quote=False)}</title>" if shape.title else ""
    place = f'x="{_n(shape.x)}" width="{_n(shape.width)}"'
    boxes = [f'<rect {place} y="{_n(y)}" height="{_n(height)}" fill="{fill}"' for y, height, fill in shape.parts]
    if shape.second:
        return f"<g>{title}{''.join(f'{box}/>' for box in boxes)}</g>"
    return f"{boxes[0]}>{title}</rect>" if title else f"{boxes[0]}/>"


def _n(value: float) -> str:
    return f"{round(value, 2):g}" if abs(value) < 1e5 else str(round(value))


@dataclass(frozen=True)
class Scale:
    """Pixels per unit of time, sizes that follow from the number of meshes, and the names of meshes at the left.

    `wide` is how wide the picture is to be, in pixels, where that is given, and `digits` how many a label has
    room for then: where not all labels fit, none of a kind is written.
    """

    pixels: float
    row: float
    font: float
    strip: float
    left: float
    names: tuple[str, ...]
    wide: float | None = None
    digits: int = 0


def draw(
    *sources: Simulation | Timeline,
    memory: bool = True,
    title: str | None = None,
    names: Sequence[str] = (),
    width: float | None = None,
) -> Picture:
    """Draw the timelines of one or more sources above each other, on one time axis.

    A simulation also gets its activation curves, one strip per mesh on one scale. To see plan
    beside measurement, give the simulation and the measured `Timeline` in the same unit.

    - `names`: those of the meshes, instead of numbers.
    - `width`: in inches, for a page: letters keep their size (7 points and more), lines are broken, and actions
      that are too short for a label have none. Without it, a picture is as wide as the labels of its actions need.
    """
    timelines = [s.timeline if isinstance(s, Simulation) else s for s in sources]
    if width is not None and not 2 <= width <= 300:
        raise ScheduleError(f"a picture is 2 to 300 inches wide, not {width:g}")
    scale = _scale(timelines, names, width)
    end = max(t.end for t in timelines)
    shapes: list[Shape] = []
    headings = [_heading(source, timeline) for source, timeline in zip(sources, timelines, strict=True)]
    one = len(sources) == 1 and title is None
    y = _lines(shapes, scale, headings[0] if one else title or " beside ".join(t.name for t in timelines), 22, 14, INK)
    y = _legend(shapes, timelines, scale, y - 14) + 24
    for source, timeline, heading in zip(sources, timelines, headings, strict=True):
        if not one:
            y = _lines(shapes, scale, heading, y - 8, 11, INK) - 6
        y = _timeline(shapes, timeline, scale, end, y)
        y = _axis(shapes, scale, end, y, timeline.unit)
        if memory and isinstance(source, Simulation):
            y = _memory(shapes, source, scale, end, y + 26)
        y += 40
    texts = [s.x + 0.65 * s.size * len(s.text) for s in shapes if isinstance(s, Text) and s.anchor == "start"]
    wide = scale.wide or max(scale.left + end * scale.pixels + RIGHT, 620.0, *texts)
    return Picture(math.ceil(wide), math.ceil(y - 14), tuple(shapes))


def _lines(shapes: list[Shape], scale: Scale, text: str, y: float, size: float, fill: str) -> float:
    """Return a text at the left, in lines where the picture has a width; gives the height of the next line."""
    left = scale.left if scale.wide is None else MARGIN
    size = size if scale.wide is None else min(size, 11.0)
    most = len(text) if scale.wide is None else int((scale.wide - 2 * MARGIN) / (0.62 * size))
    for line in textwrap.wrap(text, max(most, 1)):
        shapes.append(Text(left, y, line, size, fill, "start", fill == INK))
        y += size + 3
    return y + 14 - size - 3 if scale.wide is None else y


def _heading(source: Simulation | Timeline, timeline: Timeline) -> str:
    if isinstance(source, Simulation):
        s = source.schedule
        return (
            f"{s.name}: {counted(s.meshes, 'mesh')} x {counted(s.microbatches, 'microbatch')}, "
            f"makespan {_number(source.makespan)}, "
            f"span bubble {100 * source.bubble_rate_span:.1f} %, "
            f"peak {_number(max(source.peak_activations, default=0.0))} microbatches"
        )
    return f"{timeline.name}: makespan {_number(timeline.end)}{timeline.unit}"


def _scale(timelines: Sequence[Timeline], names: Sequence[str], inches: float | None) -> Scale:
    """As wide as labels need, and no wider than a few screens for small schedules; or as wide as it is to be."""
    events = [e for t in timelines for row in t.rows for e in row]
    end = max(t.end for t in timelines) or 1.0
    shortest = shortest_of(events) or end
    digits = max((len(str(p.microbatch)) for e in events for p in e.step.parts), default=1)
    meshes = max(len(t.rows) for t in timelines)
    if names and len(names) < meshes:
        raise ScheduleError(f"there are {meshes} meshes, and {len(names)} names for them")
    called = tuple(names) or tuple(f"mesh {n}" for n in range(meshes))
    many = (meshes > 8) + (meshes > 16)
    font = (11.0, 9.0, 8.0)[many]
    font = max(font, SMALLEST) if inches is not None else font
    left = max(LEFT, max(map(len, called), default=0) * 0.6 * font + 16)
    if inches is not None:
        wide = 96 * inches
        row, strip = ((24.0, 18.0), (16.0, 13.0), (12.0, 8.0))[many]
        return Scale(max(wide - left - RIGHT, 1.0) / end, row, SMALLEST, strip, left, called, wide, digits)
    needed = (digits * 0.6 * font + 3.0) / shortest
    pleasant = 1100.0 / end
    pixels = min(max(needed, min(pleasant, 34.0 / shortest)), MAX_WIDTH / end)
    row, strip = ((30.0, 30.0), (22.0, 20.0), (17.0, 14.0))[many]
    return Scale(pixels, row, font, strip, left, called)


def _timeline(shapes: list[Shape], timeline: Timeline, scale: Scale, end: float, y: float) -> float:
    for mesh, row in enumerate(timeline.rows):
        top = y + mesh * scale.row
        height = scale.row - 3
        middle = top + height / 2 + scale.font * 0.35
        shapes.append(Text(scale.left - 8, middle, scale.names[mesh], scale.font, PALE, "end"))
        shapes.append(Rect(scale.left, top, end * scale.pixels, height, IDLE))
        chunk = {s: n for n, s in enumerate(sorted({p.stage for e in row for p in e.step.parts}))}
        for e in row:
            x, width = scale.left + e.start * scale.pixels, (e.end - e.start) * scale.pixels
            gap = 0.8 if width > 4 else 0.0
            fill, second = _fill(e.step, chunk)
            note = f"{e.step}  {scale.names[mesh]}  {_number(e.start)} to {_number(e.end)}"
            shapes.append(Rect(x, top, max(width - gap, 0.2), height, fill, note, second))
            _label(shapes, e, x + (width - gap) / 2, top, height, width - gap, scale)
    return y + len(timeline.rows) * scale.row


def _fill(step: Step, chunk: dict[int, int]) -> tuple[str, str]:
    colors = [_shade(COLORS[p.kind], chunk[p.stage]) for p in step.parts]
    return colors[0], colors[1] if len(colors) > 1 else ""


def _shade(color: str, chunk: int) -> str:
    """Later chunks of a mesh are lighter."""
    mix = min(0.62, 0.42 * chunk) if chunk < 2 else min(0.72, 0.3 + 0.16 * chunk)
    parts = [int(color[n : n + 2], 16) for n in (1, 3, 5)]
    return "#" + "".join(f"{round(v + (255 - v) * mix):02x}" for v in parts)


def _label(shapes: list[Shape], e: Event, x: float, top: float, height: float, width: float, scale: Scale) -> None:
    parts, font = e.step.parts, scale.font
    if len(parts) == 2 and height >= 2 * font:
        halves = [(parts[0], top + height * 0.25), (parts[1], top + height * 0.75)]
    elif len(parts) > 1:
        halves = [(parts[0], top + height * 0.5)]
    else:
        halves = [(parts[0], top + height / 2)]
    for part, center in halves:
        text = _fitting(part, width, font, scale.digits)
        if text:
            shapes.append(Text(x, center + font * 0.35, text, font, INK, "middle"))


def _fitting(action: Action, width: float, font: float, digits: int) -> str:
    number = str(action.microbatch) if action.microbatch >= 0 else ""
    for text, room in ((f"{action.kind}{number}", digits + 1), (number, digits)):
        if text and max(len(text), room if digits else 0) * 0.6 * font <= width:
            return text
    return ""


def tick_of(least: float) -> float:
    """Return the distance between the numbers of an axis: 1, 2 or 5 times a power of ten."""
    least = max(least, 1e-12)
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= least)


def _axis(shapes: list[Shape], scale: Scale, end: float, y: float, unit: str) -> float:
    tick = tick_of(70.0 / scale.pixels)
    shapes.append(Line(((scale.left, y + 2), (scale.left + end * scale.pixels, y + 2)), GRID))
    for n in range(math.floor(end / tick + 1e-9) + 1):
        x = scale.left + n * tick * scale.pixels
        shapes.append(Line(((x, y + 2), (x, y + 6)), PALE))
        shapes.append(Text(x, y + 16, _number(n * tick) + (unit if n else ""), 9, PALE, "middle"))
    return y + 18


def _memory(shapes: list[Shape], result: Simulation, scale: Scale, end: float, y: float) -> float:
    peaks = result.peak_activations
    highest = max(max(peaks, default=0.0), 1e-9)
    told = (
        f"activations held, in microbatches (full height = {_number(highest)}, "
        f"peak of each mesh at the right, w = {result.weight_fraction:g})"
    )
    y = _lines(shapes, scale, told, y - 6, 10, PALE) - (8 if scale.wide is None else 3)
    # Of names that would lie on each other every second or third is written.
    every = math.ceil((scale.font + 1) / scale.strip) if scale.wide else 1
    for mesh in range(result.schedule.meshes):
        base = y + (mesh + 1) * scale.strip - 2
        height = scale.strip - 3
        points = [(scale.left, base)]
        level = base
        # Where one action frees what the next one takes, only the outcome is drawn.
        for time, held in {round(t, 9): h for t, h in result.memory_curve(mesh)}.items():
            x = scale.left + time * scale.pixels
            points.append((x, level))
            level = base - height * held / highest
            points.append((x, level))
        points += [(scale.left + end * scale.pixels, level), (scale.left + end * scale.pixels, base)]
        shapes.append(Line(tuple(points), AREA_EDGE, 0.8, AREA))
        if mesh % every:
            continue
        font = scale.font if scale.wide else min(scale.font, scale.strip - 3)
        shapes.append(Text(scale.left - 8, base - 2, scale.names[mesh], font, PALE, "end"))
        shapes.append(Text(scale.left + end * scale.pixels + 6, base - 2, _number(peaks[mesh]), font))
    return y + result.schedule.meshes * scale.strip


def _legend(shapes: list[Shape], timelines: Sequence[Timeline], scale: Scale, y: float) -> float:
    """Return what the colors mean, from `y` down; gives the end of it."""
    used = {p.kind for t in timelines for row in t.rows for e in row for p in e.step.parts}
    several = any(len({p.stage for e in row for p in e.step.parts}) > 1 for t in timelines for row in t.rows)
    left = scale.left if scale.wide is None else MARGIN
    x = left
    both = any(len({p.kind for p in e.step.parts}) > 1 for t in timelines for row in t.rows for e in row)
    told = [(COLORS[kind], f"{kind} {KIND_NAMES[kind]}") for kind in KINDS if kind in used]
    told += [("", "two colors: one program of both")] if both else []
    told += [("", "lighter: later stage of the mesh")] if several else []
    for color, name in told:
        wide = 16 + len(name) * 6.0 + 14
        if scale.wide is not None and x > left and x + wide > scale.wide:
            x, y = left, y + 16
        if color:
            shapes.append(Rect(x, y + 8, 12, 12, color))
        shapes.append(Text(x + 16 * bool(color), y + 18, name, 10, PALE))
        x += wide
    return y + 20


def _number(value: float) -> str:
    return f"{round(value, 4) + 0.0:g}" if abs(value) < 1e6 else f"{value:.5g}"


MAX_PNG_SIDE = 32_000


def save_png(picture: Picture, path: str | Path, zoom: float | None = None) -> None:
    """Write a PNG of the picture's size times `zoom` (2, less if very wide); needs Pillow."""
    try:
        from PIL import Image, ImageDraw, ImageFont  # not everyone has it
    except ImportError:
        raise ScheduleError("PNG pictures need Pillow; install it, or write SVG, which needs nothing") from None

    if zoom is None:
        zoom = 2.0 if picture.width <= 6000 else 1.25
    zoom = min(zoom, MAX_PNG_SIDE / max(picture.width, picture.height))
    size = (math.ceil(picture.width * zoom), math.ceil(picture.height * zoom))
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    fonts: dict[float, Any] = {}
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for shape in picture.shapes:
        if isinstance(shape, Rect):
            left, right = shape.x * zoom, (shape.x + shape.width) * zoom - 1
            for y, height, fill in shape.parts:
                box = (left, y * zoom, max(right, left), max((y + height) * zoom - 1, y * zoom))
                pen.rectangle(box, fill=fill)
        elif isinstance(shape, Line):
            points = [(x * zoom, y * zoom) for x, y in shape.points]
            if shape.fill:
                pen.polygon(points, fill=shape.fill)
            pen.line(points, fill=shape.stroke, width=max(1, round(shape.width * zoom)))
        else:
            font = fonts.get(shape.size)
            if font is None:
                font = fonts[shape.size] = ImageFont.load_default(size=shape.size * zoom)
            pen.text(
                (shape.x * zoom, shape.y * zoom), shape.text, fill=shape.fill, font=font, anchor=anchors[shape.anchor]
            )
    image.save(path, format="PNG", dpi=(96 * zoom, 96 * zoom))


_STYLE = "body{margin:8px;font-family:sans-serif}.wide{overflow-x:auto}svg{display:block}"


def to_html(picture: Picture, title: str, *, overview: Picture | None = None) -> str:
    """Return an HTML page that shows the picture at its own size, scrolled sideways where the window is narrower.

    It needs no network.

    Args:
        picture: what to draw.
        title: of the page.
        overview: shown above it, scaled to the width of the window.
    """
    small = ""
    if overview is not None:
        scaled = to_svg(overview).replace("<svg ", '<svg style="width:100%;height:auto" ', 1)
        small = f"<div>\n{scaled}</div>\n"
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title, quote=False)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f'{small}<div class="wide">\n{to_svg(picture)}</div>\n</body>\n</html>\n'
    )


def save_pdf(picture: Picture, path: str | Path) -> None:
    """Write a vector PDF of the size of the picture; needs Matplotlib.

    Args:
        picture: what to draw.
        path: the file.

    Raises:
        ScheduleError: without Matplotlib.
    """
    try:
        from matplotlib import patches  # not everyone has it
        from matplotlib.backends.backend_pdf import FigureCanvasPdf
        from matplotlib.figure import Figure
    except ImportError:
        raise ScheduleError(
            "PDF pictures need Matplotlib; install it with: pip install 'mpmd_trace[plots]', or write SVG, which needs "
            "nothing"
        ) from None

    figure = Figure((picture.width / 96, picture.height / 96))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, picture.width)
    axes.set_ylim(picture.height, 0)
    points = 72 / 96
    anchors = {"start": "left", "middle": "center", "end": "right"}
    for shape in picture.shapes:
        if isinstance(shape, Rect):
            for y, height, fill in shape.parts:
                axes.add_patch(patches.Rectangle((shape.x, y), shape.width, height, facecolor=fill, linewidth=0))
        elif isinstance(shape, Line):
            if shape.fill:
                axes.add_patch(patches.Polygon(shape.points, facecolor=shape.fill, linewidth=0))
            xs, ys = zip(*shape.points, strict=True)
            axes.plot(xs, ys, color=shape.stroke, linewidth=shape.width * points)
        else:
            axes.text(
                shape.x,
                shape.y,
                shape.text,
                fontsize=shape.size * points,
                color=shape.fill,
                ha=anchors[shape.anchor],
                va="baseline",
                weight="bold" if shape.bold else "normal",
                parse_math=False,
            )
    # The same picture gives the same bytes.
    FigureCanvasPdf(figure).print_pdf(path, metadata={"CreationDate": None})
