"""`mpmd-trace explore`: the data of the pages are those of the program, and a browser shows them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from commands import Command
from explorer_walk import CHROMIUM, Walker, browser, walk
from jax.sharding import AbstractMesh

import mpmd_trace
from mpmd_trace.report.explorer import pages
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.schedules import Costs, ScheduleWarning, get_schedule, simulate
from mpmd_trace_cli.explore import explore
from mpmd_trace_cli.inspect import dump_program

TINY = str(Path(__file__).parent.parent / "programs" / "tiny.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explore") / "pages"
    assert explore(TINY, str(out), [], measure=True, errors=True) == str(out / "index.html")
    return out


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dump") / "passes"
    dump_program(TINY, str(out), debug_info=False)
    return out


def data(folder: Path, name: str) -> Any:
    """What a page gets as `name`."""
    text = (folder / "data" / f"{name}.js").read_text()
    found = re.fullmatch(r'explorer\.have\("(\w+)", (.*)\);\n', text, re.S)
    assert found is not None and found.group(1) == name and "</script" not in text
    return json.loads(found.group(2))


def test_views_are_the_snapshots_of_dump(folder: Path, dump: Path) -> None:
    snapshots = json.loads((dump / "index.json").read_text())["passes"]
    rows = data(folder, "index")["passes"]
    assert [(r["pass"], r["spec"], r["changed"]) for r in rows] == [
        (s["index"], s["pass"], s["changed"]) for s in snapshots
    ]
    for row, snapshot in zip(rows, snapshots, strict=True):
        if not row["changed"]:
            continue
        text = (dump / snapshot["file"]).read_text()
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
    assert told["mpmd-follow-schedule"]["head"] == ["the same fragments in another order"]
    assert told["mpmd-call-inline"]["counts"] == {"split": 8}
    assert all(isinstance(node, int) for _, node in told["mpmd-call-inline"]["lists"]["split"])


def test_values_types_and_bodies_are_there(folder: Path) -> None:
    index = data(folder, "index")
    changed = [row["pass"] for row in index["passes"] if row["changed"]]
    for number in changed:
        view = data(folder, f"pass{index['same'][str(number)]}")
        known = {value for _, value in view["arguments"]}
        for node in view["nodes"]:
            assert known.issuperset(node["i"])
            known.update(node["o"])
            assert "b" not in node or node["b"] < len(index["bodies"])
        assert known == set(range(len(view["types"]))) and max(view["types"]) < len(index["types"])
    files = {file: data(folder, f"bodies{file}") for file in {body["in"][0] for body in index["bodies"]}}
    assert sorted(body["in"] for body in index["bodies"]) == [[f, at] for f in files for at in range(len(files[f]))]
    last = data(folder, f"pass{index['same'][str(changed[-1])]}")
    assert [name for name, _ in last["arguments"]] == ["ws[0]", "ws[1]", "x"]
    assert index["types"][last["types"][1]] == '!mpmd.mesh_tensor<"m1", tensor<4x4xf32>>'
    both = [["second", 0], ["second", 1]]
    [body] = {node["b"] for node in last["nodes"] if node.get("a") == both}  # shared by the microbatches
    assert index["bodies"][body]["flops"] > 2 * 4 * 4 * 4
    file, at = index["bodies"][body]["in"]
    assert "stablehlo.dot_general" in files[file][at]
    [source] = [source for source in index["bodies"][body]["sources"] if source.endswith("tiny.py:20")]
    assert index["lines"][source] == Path(TINY).read_text().splitlines()[19].strip()


def test_what_is_told_of_arguments_is_what_views_say(folder: Path) -> None:
    index = data(folder, "index")
    names = [name for name, *_ in index["ends"]]
    assert names[:4] == ["ws[0]", "ws[1]", "x", "result[0][0]"]
    for name, chunk, at, type in index["ends"]:
        rows = data(folder, f"ends{chunk}")[at]
        assert [row["pass"] for row in rows] == sorted({row["pass"] for row in rows}) and rows[-1]["type"] == type
        for row in rows:
            view = data(folder, f"pass{index['same'][str(row['pass'])]}")
            value = dict([*view["results"], *view["arguments"]])[name]
            used = [i for i, node in enumerate(view["nodes"]) if value in node["i"]]
            assert row["uses"] == len(used) and row["at"][1:] == used[:8] and view["types"][value] == row["type"]
            maker, *_ = row["at"]
            assert row["made"] is None if maker is None else value in view["nodes"][maker]["o"]


def test_passes_that_leave_the_same_share_a_file(folder: Path) -> None:
    same = data(folder, "index")["same"]
    assert {f"pass{number}.js" for number in same.values()} == {f.name for f in (folder / "data").glob("pass*.js")}
    assert len(set(same.values())) < len(same)
    assert all(first <= int(number) and same[str(first)] == first for number, first in same.items())


def test_libraries_are_as_they_were_released() -> None:
    folder = Path(pages.__file__).parent / "libraries"
    licenses = (folder / "LICENSES.txt").read_text()
    listed = re.findall(r"^(\S+\.js): (\S+) [\d.]+, [\w-]+\n  sha256 (\w+)$", licenses, re.M)
    assert {file for file, _, _ in listed} == {file.name for file in folder.glob("*.js")}
    assert {file for file, _, _ in listed} == {f"{name}.min.js" for name in (*pages.LIBRARIES, "dagre")}
    for file, library, digest in listed:
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest, file
        assert re.search(rf"^-+\n(?:.*, )?{re.escape(library)}[,\n]", licenses, re.M), library
    for said in ("Permission to use, copy, modify", "Permission is hereby granted", "Redistribution and use"):
        assert said in licenses


def test_large_bodies_are_in_files_of_their_own() -> None:
    files, places = pages.in_files(["a" * 4, "b" * 6, "c", "d" * 30, "e"], most=10)
    assert files == [["aaaa", "bbbbbb"], ["c"], ["d" * 30], ["e"]]
    assert places == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]


def test_the_plan_and_what_was_measured(folder: Path) -> None:
    plan = data(folder, "plan")
    measured = plan["measured"]
    runs = [row for row in plan["instructions"] if row[0] == "R"]
    assert plan["meshes"] == ["m0", "m1"] and len(measured) == 3
    for step in measured:
        assert sorted(at for at, _, _ in step) == list(range(len(plan["instructions"])))
        assert all(0 <= start <= end for _, start, end in step)
    order = [[(row[4], row[5]) for row in runs if row[1] == mesh and row[4] != "O"] for mesh in (0, 1)]
    assert order == [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("FB", 0), ("FB", 1)]]
    assert len(plan["costs"]) == len(plan["programs"]) and max(plan["costs"]) > 100
    programs = plan["facts"]
    assert [[p["name"], p["mesh"]] for p in programs] == plan["programs"]
    assert sum(p["runs"] for p in programs) == len(runs) and all(p["scratch"] >= 0 for p in programs)
    texts = {p["hlo"]: data(folder, p["hlo"]) for p in programs}
    assert all(text.startswith("HloModule") for text in texts.values())
    sent = [row for row in plan["instructions"] if row[0] == "T"]
    assert {tuple(row[1:3]) for row in sent} == {(0, 1), (1, 0)} and all(row[3] == 64 for row in sent)


def test_why_values_are_where_they_are(folder: Path, command: Command) -> None:
    why = data(folder, "why")
    assert list(why["ends"])[:3] == ["ws[0]", "ws[1]", "x"] and len(why["ends"]) == 8
    for name in ("ws[1]", "result[0][1]"):
        assert command("explain", TINY, "--value", name).out.strip() == why["ends"][name]


def test_why_unnamed_code_is_where_it_is(folder: Path) -> None:
    update = next(n for n, line in enumerate(Path(TINY).read_text().splitlines(), 1) if "w - 0.1 * g" in line)
    [found] = [told for at, told in data(folder, "why")["places"].items() if at.endswith(f"tiny.py:{update}")]
    assert {"m0", "m1"} <= {mesh for meshes, _ in found for mesh in meshes}
    assert all("stablehlo." in text and "mesh" in text for _, text in found)
    assert data(folder, "index")["assignment"] == {"first": "m0", "second": "m1"}


def test_a_folder_of_snapshots_and_a_module(dump: Path, command: Command, tmp_path: Path) -> None:
    assert command("explore", str(dump), "--out", str(tmp_path / "a")).status == 0
    last = [row["pass"] for row in data(tmp_path / "a", "index")["passes"]][-1]
    [module] = dump.glob(f"{last:03d}_*.mlir")
    assert command("explore", str(module), "--out", str(tmp_path / "b")).status == 0
    rows = data(tmp_path / "a", "index")
    one, other = data(tmp_path / "a", f"pass{rows['same'][str(last)]}"), data(tmp_path / "b", "pass0")
    assert [node["l"] for node in one["nodes"]] == [node["l"] for node in other["nodes"]]


def test_mistakes(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    result = command("explore", TINY, "--out", str(tmp_path / "mine"))
    assert result.status != 0 and "was not written by mpmd-trace" in result.err
    result = command("explore", str(tmp_path / "mine"), "--out", str(tmp_path / "out"))
    assert result.status != 0 and "has no snapshots" in result.err and "Traceback" not in result.err


def test_what_is_read_is_not_replaced(dump: Path, command: Command) -> None:
    for file in (dump, next(dump.glob("*.mlir"))):
        result = command("explore", str(file), "--out", str(dump))
        assert result.status == 2 and f"{file} is in {dump}, which would be replaced" in result.err
    assert list(dump.glob("*.mlir"))


if CHROMIUM is None:
    why_not = "no Chromium here"
else:
    why_not = "" if importlib.util.find_spec("playwright") else "no playwright here"
in_browser = pytest.mark.skipif(bool(why_not), reason=why_not)


@pytest.fixture(scope="module")
def walker(folder: Path) -> Iterator[Walker]:
    with browser() as chromium:
        yield Walker(chromium, folder)


@pytest.mark.nightly
@in_browser
def test_all_views_in_a_browser(walker: Walker) -> None:
    assert walker.open("") < 10  # a second, on a machine that does nothing else
    walk(walker)


@in_browser
def test_what_a_fragment_and_a_run_tell(folder: Path, walker: Walker) -> None:
    last = [row["pass"] for row in data(folder, "index")["passes"] if row["changed"]][-1]
    view = data(folder, f"pass{data(folder, 'index')['same'][str(last)]}")
    forward = next(i for i, n in enumerate(view["nodes"]) if n.get("a") == [["first", 0]])
    walker.go(f"view=program&node={forward}")
    for text in ("run 2 times in the step", "stablehlo.dot_general", "first is assigned to m0", "scratch"):
        assert text in walker.text(), text
    inlined = next(r["pass"] for r in data(folder, "index")["passes"] if r["spec"].startswith("mpmd-call-inline"))
    walker.go(f"view=passes&pass={inlined}")
    assert "8 split" in walker.text() and "first #0 on m0" in walker.text()
    # A residual, from the forward of its microbatch to its backward, in the plan and in other passes.
    backward = next(n for n in view["nodes"] if n.get("a") == [["first", 1]])
    value = next(v for v in view["nodes"][forward]["o"] if v in backward["i"])
    walker.go(f"view=values&value=%25{value}")
    walker.page.wait_for_function("document.body.dataset.told === document.body.dataset.shown")
    before = f"{inlined} mpmd-call-inline", "made by first #0 on m0"
    for text in ("made by first on m0", "freed after first(1)", *before):
        assert text in walker.text(), text
    plan = data(folder, "plan")
    second = next(i for i, row in enumerate(plan["instructions"]) if row[0] == "R" and row[1] == 1 and row[4] == "FB")
    walker.go(f"view=time&mode=measured&at={second}")
    assert "m1 waits" in walker.text() and "in the program" in walker.text()
    # Between meshes a plan may have another order than the module.
    small = """const plan = { meshes: ["a", "b"], instructions: [["R", 1], ["T", 1, 0], ["R", 0], ["R", 1]] };
      const view = { nodes: [{ k: FRAGMENT, m: "a" }, { k: TRANSFER }, { k: FRAGMENT, m: "b" },
                                { k: FRAGMENT, m: "b" }] };"""
    found = walker.page.evaluate(f"() => {{ {small} return [0, 2, 3].map((at) => nodeOf(plan, view, at)); }}")
    back = walker.page.evaluate(f"() => {{ {small} return [2, 0, 3].map((node) => runOf(plan, view, node)); }}")
    assert found == [2, 0, 3] and back == [0, 2, 3]
    plan_of = "async () => { const plan = await explorer.plan(); return"
    parts = walker.page.evaluate(f"{plan_of} made(plan, stepOf(plan, plan.measured[0])); }}")
    whole = walker.page.evaluate(f"{plan_of} stepOf(plan, plan.measured[0]).makespan; }}")
    assert sum(time for _, time in parts) == pytest.approx(whole, rel=1e-6)
    spent = walker.page.evaluate(f"{plan_of} spent(plan, simulated(plan, {{}})); }}")
    whole = walker.page.evaluate(f"{plan_of} simulated(plan, {{}}).makespan; }}")
    assert all(sum(one.values()) == pytest.approx(whole) for one in spent)
    assert not walker.told, walker.told


@in_browser
def test_memory_of_donated_arrays_is_counted_once(walker: Walker) -> None:
    """What an update donates becomes its result, as in the peak of the plan: a weight and its gradient."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        update = mpmd_trace.named_computation(lambda w, g: w - 0.1 * g, name="update")
        return update(w, jax.grad(mpmd_trace.named_computation(lambda w, x: jnp.sum(jnp.tanh(x @ w)), name="f"))(w, x))

    config = mpmd_trace.make_config({"m": AbstractMesh((1,), ("x",))}, {"f": "m", "update": "m"})
    args = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((8, 64), jnp.float32)
    actions = FragmentActions()
    for donated in ((), (0,)):
        plan = mpmd_trace.jit(step, config, donate_argnums=donated).lower(*args, hooks=[actions]).estimated.plan
        shown = pages._plan(plan, actions)
        found = walker.page.evaluate(
            "plan => memory(plan, simulate(plan, plan.programs.map(() => 1), 1, 0, 1)).map((one) => one.peak)", shown
        )
        assert found == list(plan.live_bytes().values()), plan


@in_browser
def test_the_page_simulates_schedules_as_the_library_does(walker: Walker) -> None:
    play = """async ([size, cost]) => Object.entries(await explorer.want(`schedules${size}`)).map(([name, one]) => {
      const { makespan, peak } = playSchedule(one, { ...costs({}), ...cost }); return [name, makespan, peak]; })"""
    for meshes, microbatches, cost in ((4, 8, {}), (4, 16, {"cf": 0.75, "ci": 1.5, "cw": 0.5, "cl": 0.25, "wf": 0.5})):
        found = walker.page.evaluate(play, [f"{meshes}x{microbatches}", cost])
        assert len(found) >= 20
        times = Costs(cost.get("cf", 1), cost.get("ci", 1), cost.get("cw", 1), latency=cost.get("cl", 0))
        for name, makespan, peak in found:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ScheduleWarning)
                schedule = get_schedule(name, meshes, microbatches)
            expected = simulate(schedule, times, weight_fraction=cost.get("wf", 1.0))
            assert makespan == pytest.approx(expected.makespan), name
            assert peak == pytest.approx(max(expected.peak_activations)), name
