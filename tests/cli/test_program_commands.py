"""`run`, `dump`, `show`, `diff` and `passes` on a tiny program; what they say and write when it is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Command, Writer

import mpmd_trace

TINY = str(Path(__file__).parent.parent / "programs" / "tiny.py")


def test_run_tells_the_measured_peak_beside_the_predicted_one(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pipeline has used more than what came before; CPUs say nothing, so devices stand in that do."""
    seen: dict[int, int] = {}

    def stands_in(device: Any) -> int | None:
        seen[device.id] = seen.get(device.id, 0) + 1
        # Of m0 plain jax.jit has used more before: nothing is known of the pipeline there.
        return 5000 if device.id < 2 else 1000 * seen[device.id]

    monkeypatch.setattr("mpmd_trace.api.step_stats.most_in_use", stands_in)
    result = command("run", TINY, "--out", str(tmp_path / "out"))
    assert result.status == 0, result.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["measured_peak_bytes_per_device"] == {"m0": None, "m1": 2000}
    predicted = report["peak_bytes_per_device"]["m1"]
    assert f"2,000 bytes on m1, predicted {predicted:,}" in re.sub(r"\s+", " ", result.err)


def test_run(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = command("run", TINY, "--out", str(out), "--set", "steps=2", "--peak-flops", "1e9")
    assert result.status == 0, result.err
    assert result.out.startswith("step  pipeline   plain jit") and len(result.out.splitlines()) == 3
    assert result.err.index("tiny computes the same as plain jax.jit") < result.err.index("  step time  ")
    assert "fragments per step" in result.err and "CPU devices share the cores" in result.err
    report = json.loads((out / "report.json").read_text())
    assert report["fragments"] >= 8 and report["transfers"] >= 4 and report["distinct_programs"] >= 4
    assert report["gradient_error"] < 1e-5 and report["loss_error"] < 1e-4
    assert report["mfu"] == pytest.approx(report["model_flops_per_second"] / (1e9 * report["devices"]))
    assert re.search(rf"MFU\W+{report['mfu']:.1%} of {report['devices']} devices", result.err)
    names = {p.name for p in out.iterdir()}
    assert {
        "losses.csv",
        "losses.svg",
        "placement.json",
        "plan.txt",
        "timeline.svg",
        "timeline.html",
        "passes",
    } <= names
    picture = (out / "timeline.svg").read_text()
    assert 'width="1248"' in picture.splitlines()[0], "fits a window"
    page = (out / "timeline.html").read_text()
    assert page.count("<svg ") == 2 and 'class="wide"' in page
    placement = json.loads((out / "placement.json").read_text())
    assert "bytes on a device of each mesh" in result.err and "cotangents" in result.err
    assert {m["mesh"]: m["peak"] for m in placement["meshes"]} == report["peak_bytes_per_device"]
    assert sum(sent["bytes"] for sent in placement["sent"]) == report["transferred_bytes"]
    index = json.loads((out / "passes" / "index.json").read_text())["passes"]
    assert all((out / "passes" / e["file"]).exists() for e in index if e["changed"])
    first = command("diff", str(out), "0", "1")  # the snapshots are a folder deeper
    assert first.status == 0 and first.out.startswith("--- 000_traced.mlir")
    trace = tmp_path / "trace.json"
    again = command("run", TINY, "--out", str(out), "--set", "steps=2", "--json", "--trace", str(trace))
    assert json.loads(again.out)["steps"] == 2, "a folder of ours is replaced"
    check_trace(json.loads(trace.read_text())["traceEvents"], report)


def test_run_says_first_whether_numbers_differ(command: Command, tmp_path: Path) -> None:
    result = command("run", TINY, "--out", str(tmp_path / "out"), "--set", "loss_tolerance=-1", "--set", "steps=1")
    assert result.status == 1 and "\ntiny differs from plain jax.jit\n  losses  " in result.err


def check_trace(events: list[dict[str, Any]], report: dict[str, Any]) -> None:
    """Three steps, one after the other, with every run and transfer; each arrow ends where its slice begins."""
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(rows.values()) == ["mesh m0", "mesh m1", "m0 -> m1", "m1 -> m0"]
    slices = [e for e in events if e["ph"] == "X"]
    runs = [e for e in slices if e["cat"] != "transfer"]
    assert len(runs) == 3 * report["fragments"] and {e["args"]["step"] for e in slices} == {0, 1, 2}
    ends = [max(e["ts"] + e["dur"] for e in slices if e["args"]["step"] == step) for step in (0, 1)]
    assert ends[0] < min(e["ts"] for e in slices if e["args"]["step"] == 1)
    forward = next(e for e in runs if e["cat"].startswith("forward") and e["tid"] == 1)
    assert forward["cat"] == "forward+full backward" and forward["args"]["microbatch"] == 0
    assert any("tiny.py:20" in place for place in forward["args"]["written in"])
    assert {e["name"] for e in events if e["ph"] == "C"} == {"memory of m0", "memory of m1"}
    assert all(e["args"]["bytes on a device"] > 0 for e in events if e["ph"] == "C")
    arrows: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event)
    for first, last in arrows.values():
        [source] = [s for s in slices if s["tid"] == first["tid"] and s["ts"] <= first["ts"] < s["ts"] + s["dur"]]
        [target] = [s for s in slices if s["tid"] == last["tid"] and s["ts"] == last["ts"]]
        assert "transfer" in (source["cat"], target["cat"]) and source["ts"] + source["dur"] <= target["ts"] + 0.002
    assert len(arrows) >= 2 * 3 * 4


def test_compile(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "new" / "tiny.mpmd"
    result = command("compile", TINY, "-o", str(file), "--json")
    assert result.status == 0, result.err
    found = json.loads(result.out)
    assert found["bytes"] == file.stat().st_size and f"wrote {file}" in result.err
    loaded = mpmd_trace.load(file)
    assert len(loaded.program.plan.programs) == found["programs"]
    assert list(loaded.program.topology) == found["meshes"]


@pytest.mark.parametrize("action", ["run", "plan"])
def test_a_forward_merged_with_its_backward(command: Command, action: str, tmp_path: Path) -> None:
    """`run` draws the two as one block; `plan` looks at them apart, as every schedule needs to."""
    more = ("--out", str(tmp_path / "out")) if action == "run" else ()
    found = json.loads(command(action, f"{TINY}:merged", *more, "--json").out)
    if action == "run":
        assert found["fragments"] == 10, "two forwards, backwards and blocks of both; zeros and update on each mesh"
        assert found["loss_error"] < 1e-5
        assert "OVERLAP" in (tmp_path / "out" / "timeline.svg").read_text()
    else:
        second = found["stages"][1]
        assert second["forward"] > 0 and second["input_grad"] > 0 and second["weight_grad"] > 0


def test_dump_and_diff(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "dump"
    result = command("dump", TINY, "--out", str(out), "--json", "--tree")
    assert result.status == 0, result.err
    # As -mlir-print-ir-tree-dir: a folder for each function, with the passes that changed it.
    [tree] = (out / "tree").iterdir()
    assert tree.name == "builtin_module_jit_step"
    assert {"func_func_main", "func_func_loss"} <= {folder.name for folder in tree.iterdir()}
    loss = {file.name: file.read_text() for file in (tree / "func_func_loss").iterdir()}
    assert "000_traced.mlir" in loss and not any("follow-schedule" in name for name in loss)
    assert all("@loss" in text and "@main(" not in text for text in loss.values())
    assert len(set(loss.values())) == len(loss) and any("mpmd.fragment" in text for text in loss.values())
    passes = json.loads(result.out)["passes"]
    changed = [e for e in passes if e["changed"]]
    assert {"index", "pass", "changed", "milliseconds", "ops", "file", "sha256"} <= changed[0].keys()
    scheduled = next(e for e in changed if e["pass"].startswith("mpmd-follow-schedule"))
    before = changed[changed.index(scheduled) - 1]
    diff = command("diff", str(out), str(before["index"]), "mpmd-follow-schedule")
    assert diff.status == 0 and diff.out.startswith(f"--- {before['file']}")
    missing = command("diff", str(out), "999", "1")
    assert missing.status == 2 and f"there is no pass 999; the last one is {passes[-1]['index']}" in missing.err
    wrong = command("diff", str(out), "no-such-pass", "1")
    assert wrong.status == 2 and "no snapshot is called 'no-such-pass'; there are\n  000_traced" in wrong.err
    several = command("diff", str(out), "mpmd", "1")
    assert re.search(r"error: \d+ snapshots are called 'mpmd'; choose one of\n  ", several.err)
    assert "traced" not in several.err
    # A pass that changed nothing leaves the module of the one before it.
    idle = next(e for e in passes if not e["changed"] and e["index"] > changed[0]["index"])
    last = [e for e in changed if e["index"] < idle["index"]][-1]
    same = command("diff", str(out), str(idle["index"]), str(last["index"]))
    assert same.status == 0 and same.out == ""
    assert f"({idle['index']}) changed nothing: this is {last['file']}" in same.err
    assert "are the same" in same.err
    nothing = command("diff", str(tmp_path), "0", "1")
    assert nothing.status == 2 and "has no snapshots; write some with mpmd-trace dump" in nothing.err


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("jaxpr", "mpmd_trace.named_computation[first]"),
        ("ir", "mpmd.named_computation"),
        ("mpmd", "mpmd.fragment_call"),
        ("plan", "transfer"),
    ],
)
def test_show(command: Command, stage: str, text: str) -> None:
    result = command("show", TINY, "--stage", stage)
    assert (result.status, result.err) == (0, "")
    assert text in result.out


def test_passes(command: Command) -> None:
    entries = json.loads(command("passes", "--json").out)
    assert all(e["name"] and e["summary"] and e["kind"] in ("pass", "pipeline") for e in entries)
    assert "mpmd-call-inline" in {e["name"] for e in entries}
    one = command("passes", "mpmd-pipeline-scheduler")
    assert one.out.startswith("mpmd-pipeline-scheduler\n") and "must-happen-before=1F1B" in one.out
    wrong = command("passes", "mpmd-call-inlin")
    assert wrong.status == 2 and "mpmd-call-inline" in wrong.err
    unknown = command("passes", "zzz")
    assert unknown.status == 2 and "'zzz'; mpmd-trace passes lists them" in unknown.err


@pytest.mark.filterwarnings("default::mpmd_trace.MpmdWarning")
def test_warnings_look_like_errors(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(TINY).parent)
    result = command("show", f"{TINY}:spare_name")
    assert result.status == 0
    assert re.search(r"^tiny.py:\d+: warning: the name 'thrd' is assigned to mesh 'm1' but occurs", result.err, re.M)


def test_folders_of_others_are_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    result = command("dump", TINY, "--out", str(tmp_path))
    assert result.status == 2 and "Traceback" not in result.err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_failing_run_keeps_the_folder_of_the_last_one(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("dump", TINY, "--out", str(out), "--debug-info").status == 0
    assert "tiny.py" in (out / "000_traced.mlir").read_text()
    before = sorted((p.name, p.stat().st_mtime_ns) for p in out.iterdir())
    assert command("dump", f"{TINY}:unknown_name", "--out", str(out)).status == 1
    assert sorted((p.name, p.stat().st_mtime_ns) for p in out.iterdir()) == before


MOVES = """
import jax.numpy as jnp
import mpmd_trace
from tests.programs.tiny import program as tiny

def step(w, x):
    first = mpmd_trace.named_computation(lambda w, x: x @ w, name="first")(w, x)
    return mpmd_trace.named_computation(lambda w, y: w + y, name="second")(w, first), first

def made(wanted=()):
    config = mpmd_trace.make_config(
        dict(tiny().config.topology), {"first": "m0", "second": "m1"}, output_mesh_assignment=wanted,
        partitioning_options={"mpmd_infer_transfers": True},
    )
    args = (jnp.eye(4), jnp.ones((4, 4)))
    return mpmd_trace.Program(step, args, config, steps=2, advance=lambda i, args, result: (result[0], args[1]))

moves, stays = made(), made((mpmd_trace.MeshOfInput(0), None))
"""


def test_state_that_moves_back(command: Command, written: Writer, tmp_path: Path) -> None:
    """`run` says what leaves on another mesh than the one where the next step takes it, and what keeps it there."""
    file = written(MOVES, "moves.py")
    found = command("run", f"{file}:moves", "--out", str(tmp_path / "a"), "--json")
    assert found.status == 0, found.err
    size = json.loads(found.out)["returning_bytes"]
    assert size and size % 64 == 0, "a float32[4,4], on each device of the mesh"
    assert f"so the next step moves them back: 1 ({size} bytes)\n" in found.err
    assert "  w is taken on m0 and returned on m1\n" in found.err
    assert "mpmd_trace.MeshOfInput" in found.err
    found = command("run", f"{file}:stays", "--out", str(tmp_path / "b"), "--json")
    assert json.loads(found.out)["returning_bytes"] == 0 and "moves them back" not in found.err
    assert "it shares a mesh with a result" in command("explain", f"{file}:stays", "--value", "input 0").out


def test_compare_goes_on_and_tells_of_the_order_of_operands(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of the C++ partitioner stands ours, with another text after the first phase."""
    from mpmd_trace.passes.partition import partition_as
    from mpmd_trace_cli import compare

    def other(text: str, request: Any, *, phases: Any) -> Any:
        found = partition_as(text, request, phases=phases)
        if phases == "import":
            for function in found.module.functions:
                for op in function.body:
                    op.attrs.pop("call_counter", None)
        return found

    monkeypatch.setattr(compare, "partition_with_cpp", other)
    out = tmp_path / "out"
    result = command("compare", f"{TINY}:as_in_the_reference", "--no-execute", "--lines", "5", "--out", str(out))
    assert result.status == 1, result.err
    verdicts = [line.partition(";")[0].split() for line in result.err.splitlines() if "; " in line and "C++" in line]
    assert verdicts == [["import", "different"], ["optimize", "equal"], ["all", "equal"]]
    assert len(result.out.splitlines()) == 5 and "more lines" in result.err
    assert "call_counter" in (out / "import.diff").read_text()
    monkeypatch.setattr(compare, "with_sorted_operands", lambda module: "")
    result = command("compare", f"{TINY}:as_in_the_reference", "--no-execute", "--json")
    assert result.status == 0
    assert "import    equal but for the order of operands;" in result.err
    assert json.loads(result.out)["phases"]["import"]["equal_but_for_operand_order"] is True


def test_what_a_pass_did_in_things(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "dump"
    assert command("dump", TINY, "--out", str(out)).status == 0
    [scheduled] = out.glob("*_mpmd-follow-schedule.changes")
    assert scheduled.read_text() == "the same fragments in another order\n"
    [inlined] = out.glob("*_mpmd-call-inline.changes")
    assert "split: 8\n" in inlined.read_text() and "+1 transfers m0 -> m1" in inlined.read_text()
    number = scheduled.name.partition("_")[0]
    found = command("diff", str(out), str(int(number) - 1), number, "--things")
    assert found.out == scheduled.read_text()
