"""Tables as text for terminals and as HTML for notebooks."""

from __future__ import annotations

import abc
import dataclasses
import html
from collections.abc import Sequence

_STYLE = "text-align:{};padding:2px 10px;white-space:nowrap"


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of words and numbers: the first `words` columns are aligned to the left, the others to the right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def __str__(self) -> str:
        cells = [self.head, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]

        def line(row: Sequence[str]) -> str:
            sides = [str.ljust] * self.words + [str.rjust] * (len(row) - self.words)
            return "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()

        return "\n".join([self.title, line(self.head), "  ".join("-" * w for w in widths), *map(line, self.rows)])

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            sides = ("left" if i < self.words else "right" for i in range(len(cells)))
            made = (
                f'<{tag} style="{_STYLE.format(side)}">{html.escape(cell)}</{tag}>'
                for cell, side in zip(cells, sides, strict=True)
            )
            return f"<tr>{''.join(made)}</tr>"

        title = f'<caption style="text-align:left"><b>{html.escape(self.title)}</b></caption>'
        body = "".join(row(cells, "td") for cells in self.rows)
        return f"<table>{title}<thead>{row(self.head, 'th')}</thead><tbody>{body}</tbody></table>"


def as_text(tables: Sequence[Table]) -> str:
    """Return the tables below each other; those without rows are left out."""
    return "\n\n".join(str(table) for table in tables if table.rows)


def as_html(title: str, tables: Sequence[Table]) -> str:
    """Return a heading and the tables that have rows."""
    shown = "".join(table._repr_html_() for table in tables if table.rows)
    return f"<div><p><b>{html.escape(title)}</b></p>{shown}</div>"


class Shown(abc.ABC):
    """Base class of reports: shows the tables that have rows, as text and in notebooks as HTML."""

    @property
    @abc.abstractmethod
    def tables(self) -> Sequence[Table]:
        """The tables."""

    def __str__(self) -> str:
        return as_text(self.tables)

    def _repr_html_(self) -> str:
        return as_html("", self.tables)


def in_units(count: int | float) -> str:
    """Return bytes in the largest binary unit of which there is one: `512 B`, `1.5 KiB`, `20.0 MiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
