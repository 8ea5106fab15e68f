"""The schedule commands."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from mpmd_trace.schedules import search
from mpmd_trace_cli.entry import main


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(["schedule", *arguments])
    return Result(int(stop.value.code or 0), out.getvalue(), err.getvalue())


SIZE = ("--meshes", "4", "--microbatches", "8")


def test_list() -> None:
    rows = json.loads(run("list", "--json").stdout)
    assert {"1f1b", "zb-h1", "zb-auto", "dualpipe-v"} <= {r["name"] for r in rows}
    assert "1f1b" in run("list").stdout


def test_simulate_json() -> None:
    data = json.loads(run("simulate", "1F1B", *SIZE, "--json", "--orders").stdout)
    assert (data["makespan"], data["span"]) == (33, 33)
    assert (data["bubble_makespan"], data["bubble_span"]) == (9, 9)
    assert data["bubble_rate_span"] == pytest.approx(9 / 33)
    assert data["peak_activations"] == [4, 3, 2, 1]
    assert data["orders"][3][:3] == ["3F0", "3B0", "3F1"]
    assert "orders" not in json.loads(run("simulate", "1F1B", *SIZE, "--json").stdout)


@pytest.mark.parametrize(("limit", "rate"), [("8", 0.1323), ("16", 0.0012)])
def test_simulate_zb_auto(limit: str, rate: float) -> None:
    result = run(
        "simulate",
        "zb-auto",
        "--meshes",
        "8",
        "--microbatches",
        "24",
        "--forward",
        "29.718",
        "--input-grad",
        "29.444",
        "--weight-grad",
        "19.927",
        "--latency",
        "0.527",
        "--memory-limit",
        limit,
        "--json",
    )
    data = json.loads(result.stdout)
    assert round(data["bubble_rate_span"], 4) == rate
    assert max(data["peak_activations"]) <= float(limit)


def test_simulate_everything_else() -> None:
    result = run(
        "simulate", "interleaved-1f1b", *SIZE, "--chunks", "4", "--json", "--times", "--critical-path", "--memory-curve"
    )
    data = json.loads(result.stdout)
    assert data["makespan"] == 26.25 and len(data["memory_curve"]) == 4
    assert data["critical_path"][0]["start"] == 0 and len(data["times"]) == 4
    text = run("simulate", "zb-h2", *SIZE, "--orders", "--critical-path", "--times").stdout
    assert "makespan          27" in text and "span              24" in text
    uneven = run("simulate", "gpipe", "-p", "2", "-m", "2", "--forward", "1,3", "--json")
    assert json.loads(uneven.stdout)["ideal"] == 10
    assert json.loads(run("simulate", "dualpipe-v", *SIZE, "--fused", "serial", "--json").stdout)["makespan"] == 25.5


def test_memory_limit_of_a_named_schedule() -> None:
    result = run("simulate", "gpipe", *SIZE, "--memory-limit", "4", "--json")
    assert json.loads(result.stdout)["within_memory_limit"] is False
    assert "hold more than 4 microbatches" in result.stderr
    assert run("check", "gpipe", *SIZE, "--memory-limit", "4").exit_code == 1


def test_the_search_hides_collectives_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(search.__kwdefaults__, "effort", 2_000)  # a search that does not meet its bound takes long
    size = ("--meshes", "2", "--microbatches", "8", "--collectives", "1,1,0", "--no-exact")
    assert "OVERLAP_F_B" in run("search", *size, "--orders").stdout
    assert "must be three numbers, for F, I and W" in run("search", *size, "--collectives", "1").stderr


def test_memory_limits_of_single_meshes() -> None:
    size = ("--meshes", "3", "--microbatches", "6")
    result = run("simulate", "1f1b", *size, "--memory-limit", "3,1,1", "--json")
    assert "meshes 1 hold more than 3,1,1 microbatches" in result.stderr
    data = json.loads(result.stdout)
    assert (data["memory_limit"], data["within_memory_limit"]) == ([3, 1, 1], False)
    rows = {row["name"]: row for row in json.loads(run("compare", *size, "--memory-limit", "3,2,1", "--json").stdout)}
    assert rows["1f1b"]["within_memory_limit"] and not rows["gpipe"]["within_memory_limit"]
    table = run("search", *size, "--memory-limit", "6,2,1", "--top", "50").stdout.splitlines()
    assert "over the limit" in next(line for line in table if line.startswith("gpipe "))
    assert "over the limit" not in next(line for line in table if line.startswith("1f1b "))
    for command in ("simulate", "check"):
        assert "2 memory limits for 3 meshes" in run(command, "zb-auto", *size, "--memory-limit", "3,2").stderr


def test_warning_goes_to_stderr() -> None:
    result = run("simulate", "zb-h2", "-p", "4", "-m", "5", "--json")
    assert "made for 7 microbatches or more" in result.stderr
    json.loads(result.stdout)


def test_show(tmp_path: Path) -> None:
    assert run("show", "1f1b", "-p", "2", "-m", "2").stdout.startswith("mesh ")
    csv = run("show", "zb-h1", "-p", "2", "-m", "2", "--format", "csv").stdout
    assert csv.splitlines()[0] == "0F0,0F1,0I0,0W0,0I1,0W1"
    for suffix in ("svg", "html", "pdf", "png", "json", "csv", "txt"):
        path = tmp_path / f"s.{suffix}"
        result = run("show", "zb-v", *SIZE, "--output", str(path))
        assert result.exit_code == 0 and path.stat().st_size > 100 and result.stdout == ""
    described = json.loads(run("show", "zb-v", *SIZE, "--format", "json").stdout)
    assert described["placement"] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert run("show", "zb-v", *SIZE, "--format", "png").exit_code == 2
    refused = run("show", "zb-v", *SIZE, "--output", str(tmp_path / "s.jpg"))
    assert refused.exit_code == 2 and "ends in .jpg, which is not a schedule format; use .svg, .html" in refused.stderr
    assert not (tmp_path / "s.jpg").exists()
    named = run("show", "zb-v", *SIZE, "--format", "svg", "--output", str(tmp_path / "s.jpg"))
    assert named.exit_code == 0 and (tmp_path / "s.jpg").read_text().startswith("<svg")


def test_check_table(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("0F0,0B0\n1F0,1B0\n")
    bad.write_text("0F0,0I0\n1F0,1B0\n")
    assert run("check", str(good)).exit_code == 0
    result = run("check", str(bad))
    assert result.exit_code == 1 and "weight-gradient 0W0" in result.stdout
    data = json.loads(run("check", str(bad), "--json").stdout)
    assert data["ok"] is False
    assert (data["problems"][0]["row"], data["problems"][0]["column"]) == (0, 1)
    assert json.loads(run("simulate", str(good), "--json").stdout)["makespan"] == 6
    assert run("simulate", str(bad)).exit_code == 2
    assert run("check", "zb-h2", *SIZE, "--blocking").exit_code == 1
    skip = run("check", "1f1b", *SIZE, "--edges", "0-2,1-3")
    assert skip.exit_code == 0


def test_compare() -> None:
    rows = json.loads(run("compare", "1f1b", "interleaved-1f1b/4", "zb-h1", *SIZE, "--json").stdout)
    assert [r["makespan"] for r in rows] == [33, 26.25, 27]
    assert rows[0]["gain_over_1f1b"] == 0
    text = run("compare", *SIZE).stdout
    assert "zb-v" in text and "+29.4 %" in text


def test_search(tmp_path: Path) -> None:
    path = tmp_path / "best.csv"
    result = run("search", "-p", "2", "-m", "3", "--json", "--orders", "--output", str(path))
    data = json.loads(result.stdout)
    assert data["proved"] and data["gap"] == 0 and data["result"]["makespan"] == 10
    assert run("check", str(path)).exit_code == 0
    assert "proved optimal" in run("search", "-p", "2", "-m", "3").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "zb-h9", *SIZE), "unknown schedule 'zb-h9'; did you mean"),
        (("simulate", "1f1b", "--meshes", "4"), "needs --microbatches"),
        (("simulate", "1f1b", "-p", "0", "-m", "4"), "number of meshes is 0"),
        (("simulate", "1f1b", *SIZE, "--forward", "x"), "neither a number"),
        (("simulate", "1f1b", *SIZE, "--latency", "-1"), "0 or more"),
        (("simulate", "1f1b", *SIZE, "--weight-fraction", "2"), "between 0 and 1"),
        (("simulate", "1f1b", *SIZE, "--transfers", "odd"), "unknown transfers"),
        (("simulate", "1f1b", *SIZE, "--chunks", "3"), "does not fit"),
        (("simulate", "1f1b", *SIZE, "--edges", "0+2"), "is not two stages"),
        (("simulate", "1f1b", *SIZE, "--edges", "2-0"), "wait for each other"),
        (("simulate", "dualpipe", "-p", "3", "-m", "8"), "even number of meshes"),
        (("simulate", "1f1b", "-p", "100000", "-m", "100000"), "more than this library handles"),
        (("check", "nowhere.csv"), "cannot read schedule table"),
        (("show", "1f1b", *SIZE, "--format", "gif"), "unknown format"),
        (("show", "1f1b", *SIZE, "-o", "/nowhere/x.svg"), "there is no folder /nowhere"),
        (("search", "-p", "2"), "needs --meshes and --microbatches"),
        (("search", "-p", "2", "-m", "2", "--chunks", "a"), "not a list of whole numbers"),
    ],
)
def test_bad_input_gives_one_message(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr and "Traceback" not in result.stderr
    assert result.stdout == ""


def test_actions_without_time_are_no_reason_to_stop() -> None:
    free = ("--forward", "0", "--input-grad", "0", "--weight-grad", "0")
    assert run("show", "1f1b", *SIZE, *free).stdout == "(no action takes any time)\n"
    assert "1f1b" in run("compare", "1f1b", "gpipe", *SIZE, *free).stdout
    assert [r["gain_over_1f1b"] for r in json.loads(run("compare", "1f1b", *SIZE, *free, "--json").stdout)] == [None]
    assert "best: " in run("search", "--meshes", "2", "--microbatches", "2", *free).stdout


def test_limits_and_sizes_that_make_no_sense() -> None:
    for command in ("simulate", "check", "show"):
        result = run(command, "v-half", *SIZE, "--memory-limit", "nan")
        assert (result.exit_code, result.stdout) == (2, "") and "--memory-limit 'nan' must be finite" in result.stderr
    result = run("compare")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "compare needs --meshes and --microbatches" in result.stderr
    assert run("search", "--meshes", "2", "--microbatches", "2", "--top", "0").exit_code == 2
