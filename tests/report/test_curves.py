"""Curves of losses: where the lines lie."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from mpmd_trace.report.curves import curves_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*curves: list[float]) -> tuple[list[list[tuple[float, float]]], dict[str, tuple[float, float]]]:
    """The points of the lines of curves, and the places of texts."""
    picture = ET.fromstring(curves_svg({f"curve {i}": c for i, c in enumerate(curves)}, title="a < b"))
    lines = []
    for line in picture.iter(f"{SVG}polyline"):
        points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
        if line.attrib["stroke"] in ("#bed0e1", "#222222") and points[0][1] > 40:
            lines.append(points)
    texts = {str(t.text): (float(t.attrib["x"]), float(t.attrib["y"])) for t in picture.iter(f"{SVG}text")}
    return lines, texts  # type: ignore[return-value]


def test_values_lie_where_the_axis_says() -> None:
    [wide, thin], texts = drawn([30.0, 20.0, 10.0], [30.0, 10.0, 20.0])
    assert {"a < b", "curve 0", "curve 1", "step", "loss"} <= texts.keys()
    assert [y for _, y in wide] == [thin[0][1], thin[2][1], thin[1][1]]
    assert [x for x, _ in wide] == [texts[str(step)][0] for step in (1, 2, 3)]
    for (_, y), value in zip(wide, ("30", "20", "10"), strict=True):
        assert texts[value][1] - y == pytest.approx(4)


def test_close_losses_have_different_numbers_at_the_axis() -> None:
    [wide, _], texts = drawn([2.302585, 2.302582, 2.30258], [2.302585])
    for (_, y), value in zip(wide, ("2.302585", "2.302582", "2.30258"), strict=True):
        assert texts[value][1] - y == pytest.approx(4)


def test_title_and_legend_do_not_overlap() -> None:
    _, texts = drawn([1.0], [1.0])
    assert texts["a < b"][1] + 14 < texts["curve 0"][1] == texts["curve 1"][1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_gap(bad: float) -> None:
    lines, _ = drawn([4.0, 3.0, bad, 2.0, bad, 1.0, 1.0])
    assert [len(line) for line in lines] == [2, 2, 2]  # a value by itself is a dot


@pytest.mark.parametrize("values", [[3.25], [0.0, 0.0], [math.nan], [1e9, 1e-9], [-1e-8, 2e-8], [2.0] * 1000])
def test_any_losses_have_a_picture(values: list[float]) -> None:
    lines, texts = drawn(values)
    inside = [40 < y < 360 and 60 < x < 691 for line in lines for x, y in line]
    assert all(inside) and bool(inside) == math.isfinite(values[0]) and 5 < len(texts) < 40
