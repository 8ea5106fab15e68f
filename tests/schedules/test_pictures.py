"""Text grids, SVG, PNG and traces."""

from __future__ import annotations

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from mpmd_trace.schedules import (
    Costs,
    Event,
    ScheduleError,
    Timeline,
    chrome_trace,
    draw,
    get_schedule,
    grid,
    path_report,
    report,
    save_pdf,
    save_png,
    simulate,
    to_html,
    to_svg,
)
from mpmd_trace.schedules._picture import AREA, Text
from util import nightly


def test_grid() -> None:
    text = grid(simulate(get_schedule("1f1b", 2, 3)))
    assert text == (
        "mesh 0           4           8\n"
        "0    F0 F1 ......B0--- F2 B1--- ...B2---\n"
        "1    ...F0 B0--- F1 B1--- F2 B2--- ......\n"
    )


def test_grid_names_stages_where_a_mesh_has_several() -> None:
    text = grid(simulate(get_schedule("dualpipe-v", 2, 4)))
    assert "0F0" in text and "&" in text


def test_grid_panels() -> None:
    text = grid(simulate(get_schedule("1f1b", 4, 8)), 40)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert text.count("mesh") == 3


@pytest.mark.parametrize(
    ("name", "meshes", "microbatches"), [("zb-h1", 4, 8), ("dualpipe-v", 4, 8), nightly("1f1b", 32, 128)]
)
def test_svg(name: str, meshes: int, microbatches: int) -> None:
    schedule = get_schedule(name, meshes, microbatches)
    svg = to_svg(draw(simulate(schedule)))
    root = ET.fromstring(svg)
    titles = [e for e in root.iter() if e.tag.endswith("title")]
    assert len(titles) == len(schedule)
    assert ("two colors: one program of both" in svg) == (name == "dualpipe-v")
    assert sum(e.get("fill") == AREA for e in root.iter()) == schedule.meshes, "activations held"
    width = float(root.get("width") or 0)
    texts = [e for e in root.iter() if e.tag.endswith("text")]
    assert len(texts) >= len(schedule) and all(0 <= float(t.get("x") or -1) < width for t in texts)
    assert svg == to_svg(draw(simulate(schedule)))


def test_png_is_reproducible(tmp_path: Path) -> None:
    result = simulate(get_schedule("zb-v", 4, 8))
    for name in ("a.png", "b.png"):
        save_png(draw(result), tmp_path / name)
    data = (tmp_path / "a.png").read_bytes()
    assert data.startswith(b"\x89PNG") and data == (tmp_path / "b.png").read_bytes()


def test_pdf_is_reproducible_and_as_wide_as_asked(tmp_path: Path) -> None:
    result = simulate(get_schedule("dualpipe-v", 2, 4))  # with fused actions
    for name, width in (("a.pdf", None), ("b.pdf", None), ("c.pdf", 3.0)):
        save_pdf(draw(result, width=width), tmp_path / name)
    a, b, c = ((tmp_path / f"{name}.pdf").read_bytes() for name in "abc")
    assert a.startswith(b"%PDF") and a == b
    boxes = [re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", data) for data in (a, c)]
    wide, narrow = (float(box.group(1)) for box in boxes if box is not None)
    assert wide == pytest.approx(draw(result).width * 0.75, abs=0.01) and narrow == pytest.approx(216)


@pytest.mark.parametrize(
    ("name", "meshes", "microbatches", "width"),
    [("interleaved-1f1b", 8, 16, 6.5), ("1f1b", 32, 128, 6.5), ("zb-h1", 4, 8, 3.3)],
)
def test_letters_on_a_page_can_be_read(name: str, meshes: int, microbatches: int, width: float) -> None:
    names = [f"stage{n}" for n in range(meshes)]
    picture = draw(simulate(get_schedule(name, meshes, microbatches)), width=width, names=names)
    assert picture.width == math.ceil(96 * width)
    boxes = []
    for text in (shape for shape in picture.shapes if isinstance(shape, Text)):
        assert text.size >= 8.9, text  # 6.7 points
        wide = 0.6 * text.size * len(text.text)
        left = text.x - wide * {"start": 0, "middle": 0.5, "end": 1}[text.anchor]
        assert left >= -1 and left + wide <= picture.width + 1, text
        boxes.append((left, text.y - 0.75 * text.size, left + wide, text.y, text.text))
    assert {"stage0", f"stage{meshes - 1}"} <= {box[4] for box in boxes}
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)


def test_pictures_that_cannot_be() -> None:
    result = simulate(get_schedule("1f1b", 4, 4))
    with pytest.raises(ScheduleError, match=r"2 to 300 inches wide, not 0\.5"):
        draw(result, width=0.5)
    with pytest.raises(ScheduleError, match="there are 4 meshes, and 2 names for them"):
        draw(result, names=["a", "b"])


def test_html_is_a_page_of_its_own() -> None:
    picture = draw(simulate(get_schedule("1f1b", 2, 2)))
    page = to_html(picture, "a < b")
    assert page.startswith("<!doctype html>") and to_svg(picture) in page and "<title>a &lt; b</title>" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    small = draw(simulate(get_schedule("1f1b", 2, 2)), width=6)
    both = to_html(picture, "a < b", overview=small)
    assert both.index('<svg style="width:100%') < both.index(to_svg(picture)), "the overview fits the window, on top"


def test_plan_beside_measurement() -> None:
    plan = simulate(get_schedule("1f1b", 2, 2), Costs(2, 2, 2))
    events = [Event(e.mesh, e.step, 1.1 * e.start + 3, 1.1 * e.end + 3) for row in plan.timeline.rows for e in row]
    measured = Timeline.from_events("measured", events, " ms")
    svg = to_svg(draw(plan, measured))
    assert "1f1b beside measured" in svg and "measured: makespan 19.8 ms" in svg


def test_trace() -> None:
    schedule = get_schedule("interleaved-1f1b", 2, 4)
    data = json.loads(chrome_trace(simulate(schedule)))
    phases = [e["ph"] for e in data["traceEvents"]]
    assert phases.count("X") == len(schedule)
    assert phases.count("s") == phases.count("f") > 0 and "C" in phases


def test_arrows_of_a_trace_leave_from_what_they_carry() -> None:
    """A viewer takes the slice that contains the time of an arrow: its end is already the next one's."""
    result = simulate(get_schedule("1f1b", 4, 8))
    events = json.loads(chrome_trace(result))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]

    def at(event: dict[str, Any]) -> tuple[int, int, str]:
        [found] = [s for s in slices if s["tid"] == event["tid"] and s["ts"] <= event["ts"] < s["ts"] + s["dur"]]
        return found["args"]["stage"][0], found["args"]["microbatch"][0], found["cat"]

    begins, ends = ([at(e) for e in events if e["ph"] == phase] for phase in "sf")
    assert len(begins) == 2 * 3 * 8
    for (stage, microbatch, kind), (next_stage, same, next_kind) in zip(begins, ends, strict=True):
        assert (microbatch, kind) == (same, next_kind)
        assert next_stage - stage == (1 if kind == "forward" else -1)


def test_reports() -> None:
    result = simulate(get_schedule("1f1b", 4, 8))
    assert "bubble (makespan) 9  = 27.27 %" in report(result)
    assert "bubble (span)     9" in report(result)
    assert path_report(result).startswith("critical path: F 11, B 22\n")
