"""Curves of losses as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from mpmd_trace.schedules._picture import GRID, INK, PALE, Line, Picture, Shape, Text, tick_of, to_svg

WIDTH, HEIGHT = 691.0, 403.0
LEFT, RIGHT, TOP, BOTTOM = 72.0, 16.0, 64.0, 52.0
#: Color and thickness of lines. The first is thick, so that equal curves are both visible.
STYLES = (("#bed0e1", 8.0), ("#222222", 2.0))


def curves_svg(curves: Mapping[str, Sequence[float]], *, title: str) -> str:
    """Return a picture with one line per curve of losses over steps, which has gaps where a loss is not finite."""
    steps = max(map(len, curves.values()))
    finite = [value for values in curves.values() for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    tick = tick_of((high - low) / 6 or abs(high) / 10 or 0.1)
    first, last = math.floor(low / tick), math.ceil(high / tick)
    last += first == last
    digits = min(8, max(6, 1 + math.floor(math.log10(max(-first, last)))))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(step: int) -> float:
        return LEFT + width * (step - 0.5) / steps

    def y(value: float) -> float:
        return TOP + height * (last - value / tick) / (last - first)

    shapes: list[Shape] = [Text(LEFT + width / 2, 20, title, 14, INK, "middle", True)]
    for n in range(first, last + 1):
        shapes.append(Line(((LEFT, y(n * tick)), (LEFT + width, y(n * tick))), GRID))
        shapes.append(Text(LEFT - 8, y(n * tick) + 4, f"{n * tick:.{digits}g}", 12, PALE, "end"))
    every = max(1, round(tick_of(steps / 10)))
    for step in range(every, steps + 1, every) if steps > 1 else [1]:
        shapes.append(Line(((x(step), TOP), (x(step), TOP + height + 4)), GRID))
        shapes.append(Text(x(step), TOP + height + 18, str(step), 12, PALE, "middle"))
    shapes.append(Line(((LEFT, TOP), (LEFT, TOP + height), (LEFT + width, TOP + height)), PALE))
    shapes.append(Text(LEFT + width / 2, HEIGHT - 10, "step", 13, INK, "middle"))
    shapes.append(Text(16, TOP - 12, "loss", 13, INK))
    for n, ((name, values), (color, thickness)) in enumerate(
        zip(curves.items(), itertools.cycle(STYLES), strict=False)
    ):
        points = enumerate(values, 1)
        for drawn, part in itertools.groupby(points, lambda point: math.isfinite(point[1])):
            if drawn:
                line = [(x(step), y(value)) for step, value in part]
                if len(line) == 1:
                    line = [(line[0][0] + by, line[0][1]) for by in (-thickness / 2, thickness / 2)]
                shapes.append(Line(tuple(line), color, thickness))
        left = LEFT + width / 2 * n
        shapes.append(Line(((left, 38), (left + 28, 38)), color, thickness))
        shapes.append(Text(left + 36, 42, name, 12, INK))
    return to_svg(Picture(WIDTH, HEIGHT, tuple(shapes)))
