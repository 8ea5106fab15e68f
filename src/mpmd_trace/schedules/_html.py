"""HTML of schedules and simulations for notebooks: a row of colored boxes for each mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mpmd_trace.schedules._actions import COLORS, KIND_NAMES, Step

_BOX = "display:inline-block;overflow:hidden;white-space:nowrap;text-align:center;font-size:11px;color:#fff"


def _box(step: Step, style: str) -> str:
    names = " and ".join(f"{KIND_NAMES[part.kind]} of stage {part.stage}" for part in step.parts)
    color = COLORS[step.parts[0].kind]
    title = escape(f"{step}: {names}")
    return f'<span title="{title}" style="{_BOX};background:{color};{style}">{escape(str(step))}</span>'


def _page(title: str, rows: Iterable[str], below: str = "") -> str:
    lines = "".join(
        f'<div style="white-space:nowrap"><code>{mesh:>3}</code> {row}</div>' for mesh, row in enumerate(rows)
    )
    return f'<div style="overflow-x:auto"><b>{escape(title)}</b>{lines}{below}</div>'


def orders_html(title: str, orders: Iterable[Iterable[Step]]) -> str:
    """Return the order of each mesh, without times."""
    style = "min-width:30px;padding:1px 2px;margin:1px"
    return _page(title, ("".join(_box(step, style) for step in order) for order in orders))


def timeline_html(title: str, rows: Sequence[Sequence[tuple[Step, float, float]]], end: float, below: str) -> str:
    """Return the steps of each mesh, with starts and ends, on a common axis as wide as the page."""

    def row(steps: Sequence[tuple[Step, float, float]]) -> str:
        place = "position:absolute;left:{:.3f}%;width:{:.3f}%;height:20px;outline:1px solid #fff"
        boxes = (_box(s, place.format(100 * a / end, 100 * (b - a) / end)) for s, a, b in steps if end > 0)
        frame = "display:inline-block;position:relative;width:92%;height:20px;background:#eceef2;vertical-align:middle"
        return f'<span style="{frame}">{"".join(boxes)}</span>'

    return _page(title, map(row, rows), f"<div>{escape(below)}</div>")
