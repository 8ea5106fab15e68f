"""A walk through all views of the explorer in a headless browser: clicks, keys, sliders, links, light and dark.

    python tests/cli/explorer_walk.py PROGRAM...

writes the pages of each program, walks through them, tells how long the first view takes, and leaves screenshots in
out/explorer-walk/ for a person to look at.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OUT = Path("out/explorer-walk")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """The browser of this machine, driven by playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        # In a container there is no sandbox of its own; the pages are ours.
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


class Walker:
    """A page with an explorer's folder open; `told` is what it said on the console, and its errors."""

    def __init__(self, chromium: Any, folder: Path, place: str = "") -> None:
        self.folder = folder
        self.told: list[str] = []
        self.page = chromium.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
        self.page.on("console", lambda message: self.told.append(message.text))
        self.page.on("pageerror", lambda error: self.told.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))
        self.open(place)

    def _asked(self, url: str) -> None:
        if not url.startswith("file://"):
            self.told.append(f"asked for {url}")

    def open(self, place: str) -> float:
        """Open a link in a fresh page; gives the seconds until something is seen."""
        self.page.goto("about:blank")
        self.page.goto(f"file://{self.folder.resolve()}/index.html#{place}")
        self.page.wait_for_function("document.body.dataset.shown")
        return float(self.page.evaluate("performance.now()")) / 1000

    def does(self, act: Callable[[], Any]) -> None:
        """Do something that shows another place, and wait until it is seen."""
        before = self.page.evaluate("document.body.dataset.shown")
        act()
        self.page.wait_for_function("(n) => document.body.dataset.shown !== n", arg=before)

    def go(self, place: str) -> None:
        self.does(lambda: self.page.evaluate("(place) => { location.hash = place; }", place))

    def press(self, key: str) -> None:
        self.does(lambda: self.page.keyboard.press(key))

    def click(self, selector: str) -> None:
        self.does(lambda: self.page.locator(selector).first.click())

    @property
    def here(self) -> dict[str, str]:
        found: dict[str, str] = self.page.evaluate("place()")
        return found

    def text(self, of: str = "#side") -> str:
        return str(self.page.inner_text(of))

    def hold(self, box: str, name: str) -> None:
        """Click the middle of a box of a picture, as the page says where it is."""
        x, y = self.page.evaluate(box)
        self.does(lambda: self.page.locator(f"#{name} canvas").click(position={"x": x, "y": y}))


#: Where the first fragment with a name is, in the program.
_BOX = """async () => {
  const view = await explorer.view(current(place().pass)), boxes = [...layout(view).boxes.values()];
  const one = boxes.find((b) => view.nodes[b.i].a && view.nodes[b.i].a.length) ?? boxes[0];
  return [pictures.lanes.x()(one.column + 0.4), one.row * ROW + ROW / 2]; }"""


def _near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-3, abs=1e-5)


def walk(walker: Walker, shot: Callable[[str], None] = lambda name: None) -> None:
    """Go through all views, and check at each step what is seen."""
    page, last = walker.page, walker.page.evaluate("current()")
    # The summary is what is seen first: figures, what to change, meshes, the largest transfers.
    walker.open("")
    told = walker.text("#view")
    for part in ("step time", "bubble", "FLOPs", "What to change", "Largest transfers"):
        assert part in told, told
    assert page.locator("#advice li").count() >= 1 and page.locator("tr[data-mesh]").count() >= 1
    shot("summary-1440")
    for width in (800, 390):
        walker.does(lambda width=width: page.set_viewport_size({"width": width, "height": 900}))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shot(f"summary-{width}")
    for view in ("time", "values", "program"):
        walker.go(f"view={view}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        shot(f"{view}-390")
    walker.does(lambda: page.set_viewport_size({"width": 1440, "height": 900}))
    walker.press("2")
    # Passes: a row, its link, keys; numbers are not broken into lines.
    assert page.evaluate("d3.max(document.querySelectorAll('td.n'), (cell) => cell.clientHeight)") < 30
    shot("passes")
    walker.does(lambda: page.locator("tbody tr:not(.still)").nth(2).click())
    chosen = walker.here["pass"]
    assert page.locator("tbody tr.on td").nth(1).inner_text() in walker.text()
    page.locator("tbody tr:not(.still)").nth(3).focus()
    walker.press("Enter")
    assert int(walker.here["pass"]) > int(chosen)
    chosen = walker.here["pass"]
    walker.click("#side a")
    assert walker.here["view"] == "program" and walker.here["pass"] == chosen
    assert page.locator("#pass").input_value() == chosen
    walker.press("j")
    assert int(walker.here["pass"]) > int(chosen)
    walker.press("k")
    assert walker.here["pass"] == chosen
    # The program: a box, what it is, and from it to the timeline and back.
    walker.go(f"view=program&pass={last}")
    walker.hold(_BOX, "lanes")
    node = walker.here["node"]
    told = walker.text()
    assert "Takes" in told and "Body" in told and "Written in" in told and "Why it is on" in told
    assert page.locator("#text .chosen").count() == 1
    shot("program")
    if page.locator("#side a:has-text('optimized HLO')").count():
        walker.click("#side a:has-text('optimized HLO')")
        assert "ENTRY" in walker.text()
    walker.click("#side a:has-text('in the timeline')")
    assert walker.here["view"] == "time" and walker.here["at"]
    shot("timeline-from-program")
    walker.click("#side a:has-text('in the program')")
    assert walker.here["node"] == node and walker.here["view"] == "program"
    # A link gives the same page again, and nothing moves when something is chosen.
    link = page.evaluate("location.hash.slice(1)")
    told = walker.text()
    walker.open(link)
    assert walker.text() == told
    walker.go(f"pass={last}&fragment={node}")
    assert walker.here["view"] == "program" and walker.text("#side h2") == told.splitlines()[0]
    walker.go(link)
    page.evaluate("$('view').scrollTop = 40; $('text').scrollTop = 0")
    scrolled = page.evaluate("$('view').scrollTop")
    walker.press("l")
    assert walker.here["node"] != node and page.evaluate("$('view').scrollTop") == scrolled
    walker.press("h")
    assert walker.here["node"] == node
    # What is around it, as a graph whose boxes are links.
    page.wait_for_selector("#around svg a")
    assert page.locator("#around rect").count() == page.locator("#around text").count() > 0
    walker.press("Escape")
    assert "node" not in walker.here
    # The picture is zoomed and moved by keys, buttons and dragging, without another page; the address keeps it.
    shown, all_of_it = page.evaluate("document.body.dataset.shown"), "pictures.lanes.x().domain()"
    page.keyboard.press("0")
    low, high = page.evaluate(all_of_it)
    page.keyboard.press("+")
    page.click("[data-zoom='+']")
    near = page.evaluate(all_of_it)
    assert low < near[0] and near[1] < high
    page.keyboard.press("ArrowLeft")
    moved = page.evaluate(all_of_it)
    assert moved[0] < near[0] and moved[1] - moved[0] == _near(near[1] - near[0])
    spot = page.locator("#lanes canvas").bounding_box()
    page.mouse.move(spot["x"] + 500, spot["y"] + 10)
    page.mouse.down()
    page.mouse.move(spot["x"] + 420, spot["y"] + 10, steps=3)
    page.mouse.up()
    dragged = page.evaluate(all_of_it)
    assert dragged[0] > moved[0] and page.evaluate("document.body.dataset.shown") == shown
    assert [float(part) for part in walker.here["seen"].split(",")] == _near([t / high for t in dragged])
    page.keyboard.press("0")
    # Two passes beside each other.
    walker.does(lambda: page.select_option("#with", index=1))
    assert f"From pass {walker.here['with']} to {last}" in walker.text()
    assert "transfers" in walker.text() or "new" in walker.text()
    shot("difference")
    # Values: by an SSA name, by a click, by finding.
    walker.click("#text a:has-text('%')")
    assert walker.here["view"] == "values" and walker.here["value"].startswith("%")
    walker.click("tbody tr[data-name]")
    assert "used by" in walker.text() and "why it is there" in walker.text() and "in the plan" in walker.text()
    shot("values")
    name = walker.here["value"]
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type(name)
    walker.press("Enter")
    assert page.locator("tbody tr[data-name]").count() >= 1 and walker.here["find"] == name
    # The step in time.
    page.evaluate("document.activeElement.blur()")
    walker.press("5")
    assert walker.here["view"] == "time"
    told = walker.text()
    assert "along the critical path" in told and "waits for meshes" in told
    walker.does(lambda: page.select_option("#mode", "planned"))
    assert "a transfer takes no time" in walker.text("#view") and "sending" not in walker.text()
    shot("timeline-planned")
    walker.does(lambda: page.select_option("#mode", "simulated"))
    told = walker.text()
    page.focus("#speed")
    page.keyboard.press("PageUp")
    page.wait_for_function("(old) => $('side').innerText !== old", arg=told)
    shot("timeline-simulated")
    # Schedules, with costs of one's own.
    page.evaluate("document.activeElement.blur()")
    walker.press("6")
    before = walker.text("#one-is")
    assert before.startswith("time 33, idle 27.3 %, peak 4")
    page.focus("#cw")
    page.keyboard.press("ArrowRight")
    assert walker.text("#one-is") != before and "cw" in walker.here
    walker.does(lambda: page.select_option("#a", "gpipe"))
    assert walker.here["a"] == "gpipe"
    page.focus("#mb")
    walker.press("ArrowRight")
    assert walker.here["mb"] == "16" and "16 microbatches" in walker.text()
    page.focus("#lim")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector("#side td.gone")
    shot("schedules")
    # Dark, and what is drawn follows.
    for scheme, paper in (("dark", "rgb(13, 17, 23)"), ("light", "rgb(255, 255, 255)")):
        walker.does(lambda scheme=scheme: page.emulate_media(color_scheme=scheme))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        shot(f"schedules-{scheme}")
    assert not walker.told, walker.told


def _shot(walker: Walker, program: str, name: str) -> None:
    walker.page.screenshot(path=OUT / f"{program}-{name}.png")


def main(programs: list[str]) -> None:
    from mpmd_trace_cli.explore import explore

    for program in programs:
        folder, name = OUT / Path(program).stem, Path(program).stem
        explore(program, str(folder), [], measure=True)
        with browser() as chromium:
            walker = Walker(chromium, folder)
            started = time.perf_counter()
            first = walker.open("")
            walk(walker, functools.partial(_shot, walker, name))
            print(f"{name}: first view after {first:.2f} s, walked in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
