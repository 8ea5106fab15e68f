"""`mpmd-trace explore`: the data of the pages are those of the program, and a browser shows them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import Command, runner

from mpmd_trace_cli.explore import explore

TINY = str(Path(__file__).parent.parent / "programs" / "tiny.py")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return runner(capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explore") / "pages"
    assert explore(TINY, str(out), [], measure=True, errors=True) == str(out / "index.html")
    return out


def data(folder: Path, name: str) -> Any:
    """What a page gets as `name`."""
    text = (folder / "data" / f"{name}.js").read_text()
    found = re.fullmatch(r'explorer\.have\("(\w+)", (.*)\);\n', text, re.S)
    assert found is not None and found.group(1) == name and "</script" not in text
    return json.loads(found.group(2))


def test_views_are_the_snapshots_of_dump(folder: Path, command: Command, tmp_path: Path) -> None:
    assert command("dump", TINY, "--out", str(tmp_path / "dump")).status == 0
    snapshots = json.loads((tmp_path / "dump" / "index.json").read_text())["passes"]
    rows = data(folder, "index")["passes"]
    assert [(r["pass"], r["spec"], r["changed"]) for r in rows] == [
        (s["index"], s["pass"], s["changed"]) for s in snapshots
    ]
    for row, snapshot in zip(rows, snapshots, strict=True):
        if not row["changed"]:
            continue
        text = (tmp_path / "dump" / snapshot["file"]).read_text()
        main = text[text.index("@main") :].partition("\n  }\n")[0]
        assert row["transfers"] == main.count("mpmd.transfer"), row["spec"]
        assert row["fragments"] == len(re.findall(r"mpmd\.fragment(?:_call)?<", main)), row["spec"]
        assert row["ops"] == sum(snapshot["ops"].values())


def test_errors_after_each_pass(folder: Path) -> None:
    index = data(folder, "index")
    assert 1e-4 < index["tolerance"] < 1e-3
    for row in index["passes"]:
        assert row["changed"] == ("error" in row) and row.get("error", 0) < 1e-6
        assert row.get("error_at", "result").startswith("result")


def test_what_passes_did_to_things(folder: Path) -> None:
    told = {row["spec"].partition("{")[0]: row.get("changes") for row in data(folder, "index")["passes"]}
    assert told["mpmd-pipeline-scheduler"]["head"] == ["the same fragments in another order"]
    assert told["mpmd-call-inline"]["counts"] == {"split": 8}
    assert all(isinstance(node, int) for _, node in told["mpmd-call-inline"]["lists"]["split"])


def test_values_types_and_bodies_are_there(folder: Path) -> None:
    index = data(folder, "index")
    changed = [row["pass"] for row in index["passes"] if row["changed"]]
    chunks: dict[int, list[str]] = {}
    for number in changed:
        view = data(folder, f"pass{number}")
        known = {value for _, value in view["arguments"]}
        for node in view["nodes"]:
            assert known.issuperset(node["i"])
            known.update(node["o"])
            if "b" in node:
                chunk = node["b"] // index["chunk"]
                texts = chunks.setdefault(chunk, data(folder, f"bodies{chunk}"))
                assert texts[node["b"] % index["chunk"]]
        assert known == set(range(len(view["types"]))) and max(view["types"]) < len(index["types"])
    last = data(folder, f"pass{changed[-1]}")
    assert [name for name, _ in last["arguments"]] == ["ws[0]", "ws[1]", "x"]
    assert index["types"][last["types"][1]] == '!mpmd.mesh_tensor<"m1", tensor<4x4xf32>>'
    [body] = {node["b"] for node in last["nodes"] if node.get("a") == [["second", 0]]}  # shared by the microbatches
    assert index["bodies"][body]["flops"] > 2 * 4 * 4 * 4
    assert any(source.endswith("tiny.py:20") for source in index["bodies"][body]["sources"])


def test_the_plan_and_what_was_measured(folder: Path) -> None:
    index = data(folder, "index")
    plan, measured = index["plan"], index["measured"]
    runs = [row for row in plan["instructions"] if row[0] == "R"]
    assert plan["meshes"] == ["m0", "m1"] and len(measured) == 3
    for step in measured:
        assert sorted(at for at, _, _ in step) == list(range(len(plan["instructions"])))
        assert all(0 <= start <= end for _, start, end in step)
    assert sorted(row[4] for row in runs).count("F") == 4
    order = [(row[4], row[5]) for row in runs if row[1] == 1 and row[4] != "O"]
    assert order == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]
    assert len(index["costs"]) == len(plan["programs"]) and max(index["costs"]) > 100
    programs = index["programs"]
    assert [[p["name"], p["mesh"]] for p in programs] == plan["programs"]
    assert sum(p["runs"] for p in programs) == len(runs) and all(p["scratch"] >= 0 for p in programs)
    texts = {p["hlo"]: data(folder, p["hlo"]) for p in programs}
    assert all(text.startswith("HloModule") for text in texts.values())
    sent = [row for row in plan["instructions"] if row[0] == "T"]
    assert {tuple(row[1:3]) for row in sent} == {(0, 1), (1, 0)} and all(row[3] == 64 for row in sent)


def test_why_values_are_where_they_are(folder: Path, command: Command) -> None:
    why = data(folder, "why")
    assert list(why)[:3] == ["ws[0]", "ws[1]", "x"] and len(why) == 8
    for name in ("ws[1]", "result[0][1]"):
        assert command("explain", TINY, "--value", name).out.strip() == why[name]


def test_schedules_are_simulated_at_unit_cost(folder: Path) -> None:
    found = data(folder, "schedules")
    assert found["1f1b/4/8"]["makespan"] == 33 and found["1f1b/4/8"]["peak"] == 4
    assert found["gpipe/2/4"]["rows"][0][0] == ["0F0", 0, 1]


def test_a_folder_of_snapshots_and_a_module(command: Command, tmp_path: Path) -> None:
    assert command("dump", TINY, "--out", str(tmp_path / "dump")).status == 0
    assert command("explore", str(tmp_path / "dump"), "--out", str(tmp_path / "a")).status == 0
    last = [row["pass"] for row in data(tmp_path / "a", "index")["passes"]][-1]
    [module] = (tmp_path / "dump").glob(f"{last:03d}_*.mlir")
    assert command("explore", str(module), "--out", str(tmp_path / "b")).status == 0
    one, other = data(tmp_path / "a", f"pass{last}"), data(tmp_path / "b", "pass0")
    assert [node["l"] for node in one["nodes"]] == [node["l"] for node in other["nodes"]]


def test_mistakes(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    result = command("explore", TINY, "--out", str(tmp_path / "mine"))
    assert result.status != 0 and "was not written by mpmd-trace" in result.err
    result = command("explore", str(tmp_path / "mine"), "--out", str(tmp_path / "out"))
    assert result.status != 0 and "has no snapshots" in result.err and "Traceback" not in result.err


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize(
    ("place", "texts"),
    [
        ("view=passes", ["mpmd-call-inline", "the program after it", ">error<"]),
        ("view=program&node=FORWARD", ["Gives, and to whom", "stablehlo.dot_general", "run 2 times in", "scratch"]),
        ("view=program&node=FORWARD&hlo=1", ["Optimised HLO", "ENTRY", "in the timeline"]),
        ("view=program&pass=1", ["loss", "stablehlo"]),
        ("view=values&value=ws%5B0%5D", ["used by", "mpmd-infer-mesh-finalize", "why it is there"]),
        ("view=time&mode=simulated", ["from the first start to the last end", "critical path"]),
        ("view=time&at=SECOND", ["Measured: when each program and transfer ran", "waits", "in the program"]),
        ("view=schedules&meshes=4&mb=8", ["zb-h1", "27"]),
    ],
)
def test_a_browser_shows_it(folder: Path, place: str, texts: list[str], tmp_path: Path) -> None:
    assert CHROMIUM is not None
    last = [row["pass"] for row in data(folder, "index")["passes"] if row["changed"]][-1]
    forward = next(i for i, n in enumerate(data(folder, f"pass{last}")["nodes"]) if n.get("a") == [["second", 0]])
    instructions = data(folder, "index")["plan"]["instructions"]
    second = next(i for i, row in enumerate(instructions) if row[0] == "R" and row[1] == 1 and row[4] == "F")
    place = place.replace("FORWARD", str(forward)).replace("SECOND", str(second))
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"),
            *("--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom"),
            f"file://{folder}/index.html#{place}",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not told, told
    for text in texts:
        assert text in done.stdout, text
