"""What notebooks and `print` show of configurations, programs, memory, placement and errors."""

from __future__ import annotations

import re
import sys
import traceback
import types
from typing import Any

import jax
import pytest

import mpmd_trace
from mpmd_trace import MpmdError, schedules
from mpmd_trace.backend.collectives import Collective, Collectives, CollectivesReport
from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.diagnostics.tables import Table, in_units
from pipelines import Weights, accumulate, batch, config, loss, topology, weights


@pytest.fixture(scope="module")
def lowered() -> Any:
    return mpmd_trace.jit(accumulate, config()).lower(weights(), batch())


def cells(page: str) -> list[list[str]]:
    """The cells of each row of all tables in a page."""
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_sizes_have_units() -> None:
    sizes = [in_units(n) for n in (0, 1023, 1536, 20 << 20, 3 << 30, 5 << 40)]
    assert sizes == ["0 B", "1023 B", "1.5 KiB", "20.0 MiB", "3.0 GiB", "5.0 TiB"]


def test_a_table_aligns_words_left_and_numbers_right_and_escapes() -> None:
    table = Table("t", ["name", "n"], [["a<b", "1"], ["long name", "1,000"]])
    assert str(table).splitlines() == [
        "t",
        "name           n",
        "---------  -----",
        "a<b            1",
        "long name  1,000",
    ]
    assert "a&lt;b" in table._repr_html_() and cells(table._repr_html_())[0] == ["name", "n"]


def test_a_configuration_lists_meshes_names_and_options() -> None:
    cfg = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B", remat="auto")
    page = cfg._repr_html_()
    rows = cells(page)
    assert [row[0] for row in rows[1:3]] == ["m0", "m1"] and [row[3] for row in rows[1:3]] == ["f0", "f1"]
    assert "1F1B" in page and ["remat", "auto"] in rows


def test_memory_prints_as_a_table_and_is_a_mapping(lowered: Any) -> None:
    memory = lowered.compile().memory_analysis()
    assert isinstance(memory, dict) and set(memory) == set(topology())
    for line, (mesh, one) in zip(str(memory).splitlines()[3:], memory.items(), strict=True):
        assert line.split()[0] == mesh and in_units(one.peak) in line
    assert cells(memory._repr_html_())[1][:2] == ["m0", in_units(memory["m0"].peak)]
    with pytest.warns(DeprecationWarning, match=r"table is memory_analysis\(\).tables\[0\]"):
        assert str(memory.table) == str(memory)


def test_collectives_print_as_a_table_and_are_a_mapping(lowered: Any) -> None:
    found = lowered.compile().collectives()
    assert isinstance(found, dict) and set(found) == set(topology())
    kinds = {mesh: Collectives({"all-gather": Collective(2, 3, 4096, 1024)}) for mesh in found}
    title, head, _, *rows = str(CollectivesReport(kinds)).splitlines()
    assert (title, head.split()[:2]) == ("collectives of a device in a step", ["mesh", "collective"])
    assert [row.split() for row in rows] == [[mesh, "all-gather", "2", "3", "4,096", "25%"] for mesh in found]
    assert cells(CollectivesReport(kinds)._repr_html_())[1] == rows[0].split()
    assert str(CollectivesReport(dict.fromkeys(found, Collectives()))).splitlines()[3:] == ["none"]


def test_placement_prints_as_tables(lowered: Any) -> None:
    report = lowered.placement_report()
    text = str(report)
    for held in report.meshes:
        assert re.search(rf"^{held.mesh} .*{held.peak:,}$", text, re.M)
    for cause, (count, size) in report.causes.items():
        assert re.search(rf"^{cause} .* {count:,} +{size:,}$", text, re.M)
    assert "not where it is used" not in text  # empty tables are left out


def test_lowered_and_compiled_programs_show_what_meshes_hold_and_send(lowered: Any) -> None:
    compiled = lowered.compile()
    first, second = lowered._repr_html_(), compiled._repr_html_()
    assert "Lowered: accumulate" in first and "bytes on a device" in first and "sent from mesh to mesh" in first
    assert "Compiled: accumulate" in second and "memory of a device" in second and "sent from mesh to mesh" in second
    [sent] = {tuple(row) for row in cells(second) if row[0] == "activations"}
    assert list(sent) in cells(first)


def test_schedules_show_each_action_once() -> None:
    schedule = schedules.get_schedule("1f1b", 3, 4)
    page = schedule._repr_html_()
    assert page.count("<span title=") == sum(map(len, schedule.orders))
    simulation = schedules.simulate(schedule)
    drawn = simulation._repr_html_()
    assert f"bubble {simulation.bubble_rate_makespan:.1%}" in drawn
    spans = [float(left) + float(width) for left, width in re.findall(r"left:([\d.]+)%;width:([\d.]+)%", drawn)]
    assert len(spans) == sum(map(len, schedule.orders)) and max(spans) == pytest.approx(100, abs=0.01)


def test_errors_in_notebooks_are_as_short_as_on_the_command_line() -> None:
    def fails() -> None:
        mpmd_trace.jit(loss, config({}))(weights(), batch())

    with pytest.raises(MpmdError) as error:
        fails()
    shown = error.value._render_traceback_()
    assert shown[0].startswith("FrontendError in ") and "test_displays.py:" in shown[0]
    assert shown[1].strip() == "mpmd_trace.jit(loss, config({}))(weights(), batch())"
    assert shown[3:] == list(error.value.brief()) and not any("Traceback" in line for line in shown)


def test_other_errors_in_notebooks_show_the_users_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of this package and of JAX are marked as IPython wants them, and there alone."""

    def step(ws: Weights, x: jax.Array) -> jax.Array:
        return loss(ws, x.reshape(3, 3))

    def shown() -> list[str]:
        with pytest.raises(TypeError, match="cannot reshape") as error:
            mpmd_trace.jit(step, config())(weights(), batch())
        frames = [frame for frame, _ in traceback.walk_tb(error.tb)]
        return [f.f_code.co_name for f in frames if not f.f_locals.get("__tracebackhide__")]

    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert "explained" in shown()
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    assert set(shown()) == {"shown", "step"}


def test_many_alike_problems_are_cut_short() -> None:
    error = MpmdError([Diagnostic("error", f"argument {i} is gone") for i in range(50)])
    lines = list(error.brief())
    assert len(lines) == 4 and lines[-1] == "(and 47 more like these)"
    assert error._render_traceback_()[0] == "MpmdError"
    assert str(error).count("\n") == 49  # all of them are in the text
