"""Pictures as HTML (no dependency), PNG (Pillow) and PDF (Matplotlib)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._picture import Line, Picture, Rect, to_svg

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
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
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
