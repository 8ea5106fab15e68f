"""`mpmd-trace plan`: costs of a program's own stages, and what suits them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Command, Writer, runner

from mpmd_trace import schedules

PROGRAMS = Path(__file__).parent.parent / "programs"
UNEVEN, TIED, TINY = (str(PROGRAMS / f"{name}.py") for name in ("uneven", "tied", "tiny"))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `mpmd-trace plan`."""
    return runner(capsys, "plan")


#: What was planned already; the same call says the same.
FOUND: dict[tuple[str, ...], dict[str, Any]] = {}


def planned(command: Any, *arguments: str) -> dict[str, Any]:
    if arguments not in FOUND:
        result = command(*arguments, "--json")
        assert result.status == 0, result.err
        FOUND[arguments] = json.loads(result.out)
    return FOUND[arguments]


def test_costs_are_those_of_xla(command) -> None:  # type: ignore[no-untyped-def]
    found = planned(command, UNEVEN)
    assert found["unit"] == "Mflop" and found["meshes"] == ["m0", "m1"]
    first, second = found["stages"]
    assert first["names"] == ["layer_0", "layer_1"]
    assert second["names"] == [f"layer_{i}" for i in range(2, 6)]
    matmuls = 2 * 2 * 8 * 16 * 32 / 1e6  # the two products of a small layer, for 8 rows
    assert first["forward"] == pytest.approx(2 * matmuls, rel=0.2)
    assert second["forward"] == pytest.approx(6 * matmuls, rel=0.2)
    assert first["input_grad"] == 0, "nobody wants the gradient of the batch"
    assert second["input_grad"] == pytest.approx(second["weight_grad"], rel=0.3)
    costs = [layer["forward"] for layer in found["layers"]]
    assert costs[4] / costs[3] == pytest.approx(2, rel=0.2)
    for stage, names in ((first, [0, 1]), (second, [2, 3, 4, 5])):
        assert sum(costs[i] for i in names) == pytest.approx(stage["forward"])
    assert first["activation_bytes"] > 0 and first["static_bytes"] > 0
    assert found["gather"] is None and found["once_per_step"] == found["memory"] == []


def test_a_better_assignment(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    found = planned(command, UNEVEN)
    best, now = found["best"], found["now"]
    assert now["schedule"] == "1f1b" and now["assignment"] == "as assigned"
    assert best["assignment"] == "balanced" and best["step"] < 0.8 * now["step"]
    two = [o for o in [best, *found["alternatives"]] if o["stages"] == 2 and o["assignment"] == "balanced"]
    expected = {f"layer_{i}": "m0" if i < 4 else "m1" for i in range(6)}
    assert two and all(o["name_to_mesh_assignment"] == expected for o in two)
    names = {o["schedule"] for o in [best, *found["alternatives"]]}
    library = {n for n in schedules.schedule_names() if n not in ("none", "dualpipe")}
    assert names >= {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v", "v-min"} and names <= library
    usable = [o for o in [best, *found["alternatives"]] if o["in_order"]]
    steps = [round(o["step"], 9) for o in usable]
    assert steps == sorted(steps)
    page = (PROGRAMS.parents[1] / "docs" / "choosing.md").read_text()
    (tmp_path / "six.py").write_text(re.findall(r"```python\n(.*?)```", page, re.S)[0])
    text = command(str(tmp_path / "six.py"))
    assert text.status == 0, text.err
    assert "To have the best of these:" in text.out and "'layer_5': 'm" in text.out
    printed = [" ".join(line.split()[:4]) for line in text.out.splitlines()]
    shown = re.findall(r"\n    ((?:stage|schedule|1f1b|One|To have) .*)", page)
    assert len(shown) == 5 and all(" ".join(line.split()[:4]) in printed for line in shown), text.out
    assert "best" in text.out and "now" in text.out
    assert "counted operations" in text.err
    # What it promises, its own choice of stages gives: the same program with them has nothing to move.
    again = planned(command, f"{UNEVEN}:balanced")
    one = next(o for o in again["alternatives"] + [again["best"]] if o["schedule"] == "1f1b")
    other = next(o for o in two if o["schedule"] == "1f1b")
    assert one["assignment"] == "as assigned"
    assert one["step"] == pytest.approx(other["step"], rel=0.1)


def test_microbatches_and_memory(command) -> None:  # type: ignore[no-untyped-def]
    found = planned(command, UNEVEN, "--microbatches", "2,8")
    rows = [found["best"], *found["alternatives"]]
    assert {r["microbatches"] for r in rows} == {2, 8}
    # With a single row in the table, the best of each number is there, too.
    text = command(UNEVEN, "--microbatches", "2,8", "--rows", "1").out
    for count in (2, 8):
        best = next(r for r in rows if r["microbatches"] == count)
        assert re.search(rf"^{best['schedule']} +{best['stages']} +{best['assignment']} +{count} ", text, re.M), text

    def peak(row: dict[str, Any]) -> int:
        return int(max(row["peak_bytes"].values()))

    def gpipe(count: int) -> dict[str, Any]:
        return next(r for r in rows if r["schedule"] == "gpipe" and r["microbatches"] == count)

    assert gpipe(8)["step"] < gpipe(2)["step"]
    usable = sorted(peak(r) for r in rows if r["in_order"])
    limit = (usable[0] + usable[-1]) / 2
    limited = planned(command, UNEVEN, "--microbatches", "2,8", "--memory-limit", f"{limit / 2**20:.9f}")
    assert limited["best"]["fits"] and peak(limited["best"]) <= limit + 1
    assert limited["best"]["step"] >= found["best"]["step"]
    tight = command(UNEVEN, "--memory-limit", "0.01")
    assert tight.status == 1 and "nothing fits in 0.01 MiB per device" in tight.err
    assert "remat='auto' recomputes activations" in " ".join(tight.err.split())
    least = min(max(r["peak_bytes"].values()) for r in planned(command, UNEVEN)["alternatives"] if r["in_order"])
    found_least = re.search(r"with ([\d.]+) MiB on mesh 'm[01]', ([\d.]+) MiB too much", tight.err)
    assert found_least, tight.err
    assert float(found_least[1]) * 2**20 <= 1.1 * least
    assert float(found_least[2]) == pytest.approx(float(found_least[1]) - 0.01, abs=0.01)


def test_times_of_a_stated_machine(command) -> None:  # type: ignore[no-untyped-def]
    machine = ("--tflops", "0.001", "--gbytes", "1")
    found = planned(command, TINY, *machine)
    assert found["unit"] == "ms" and found["links"] is None
    assert all(s["forward"] > 0 for s in found["stages"])
    assert all(0 <= o["bubble_rate_span"] <= o["bubble_rate_makespan"] <= 1 for o in found["alternatives"])
    link = ("--latency-us", "100", "--link-gbytes", "0.01")
    one = planned(command, TINY, *machine, *link, "--link", "m1:m0=7,1", "--link", "m0:m1=8,1")
    assert [s["time"] for s in one["sends"]] == pytest.approx([0.008 + 0.000064, 0.007 + 0.000064])
    slow = planned(command, TINY, *machine, *link)
    assert [(s["from"], s["to"], s["bytes"]) for s in slow["sends"]] == [(0, 1, 64), (1, 0, 64)]
    assert [s["time"] for s in slow["sends"]] == pytest.approx([0.1 + 0.0064] * 2)
    assert slow["now"]["step"] > found["now"]["step"]
    blocking = planned(command, TINY, *machine, *link, "--transfers", "blocking")
    assert blocking["links"]["transfers"] == "blocking" and blocking["now"]["step"] > slow["now"]["step"]


def test_times_of_this_machine(command, tmp_path) -> None:  # type: ignore[no-untyped-def]
    saved = tmp_path / "best.csv"
    result = command(UNEVEN, "--measure", "--json", "--save", str(saved))
    found = json.loads(result.out)
    assert found["unit"] == "ms" and found["measured_step"] > 0
    assert all(s["forward"] > 0 for s in found["stages"]) and all(s["time"] > 0 for s in found["sends"])
    assert {(one["from"], one["to"]) for one in found["links"]["single"]} == {("m0", "m1"), ("m1", "m0")}
    best = schedules.load_csv(saved)
    assert best.meshes == 2 and best.stages == found["best"]["stages"]
    assert best.microbatches == found["best"]["microbatches"]


def test_the_best_and_the_own_schedule_are_checked(command) -> None:  # type: ignore[no-untyped-def]
    found = planned(command, UNEVEN)
    assert found["best"]["checked"] is not None and found["now"]["checked"] == ""
    assert sum(o["checked"] is not None for o in found["alternatives"]) <= 5


def test_shared_parameters(command) -> None:  # type: ignore[no-untyped-def]
    text = command(TIED, "--tflops", "0.01", "--latency-us", "1", "--link-gbytes", "1")
    assert text.status == 0
    assert re.search(r"1 to 0 +m1 to m0 +0\.1 +0\.0", text.out), text.out
    assert "Once in a step, values of arguments: 2 (1.0 KiB per device)." in text.out
    # The gradient of the table.
    assert "Once in a step, values of sums and the like: 1 (1.0 KiB per device)." in text.out
    assert "Transfers are async; every link: 1 us, 1 GB/s." in text.out


#: Weights and momentum are sharded over the axis of the batch; `limited` has no memory for copies of them.
SHARDED = """
import dataclasses, jax, jax.numpy as jnp, mpmd_trace, pipelines
from jax.sharding import NamedSharding, PartitionSpec as P

def step(ws, momentum, batch):
    loss = pipelines.loss_of(lambda w, x: x + jnp.tanh(x @ w))
    value, grads = mpmd_trace.value_and_grad(loss, microbatches=2)(ws, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda w, m: w - 0.1 * m, ws, momentum), momentum, value

meshes = pipelines.topology(axis="data")
config = pipelines.config(topology=meshes, pipeline_schedule="1F1B")
columns = [NamedSharding(mesh, P(None, "data")) for mesh in meshes.values()]
ws = [jnp.eye(16), jnp.eye(16)]
args = ws, [jnp.zeros_like(w) for w in ws], jnp.ones((64, 16))
places = columns, columns, NamedSharding(meshes["m0"], P("data"))
program = mpmd_trace.Program(step, args, config, in_shardings=places)
limited = dataclasses.replace(program, config=config.with_options(device_memory=1000))
"""


def test_sharded_weights(command, capsys, written) -> None:  # type: ignore[no-untyped-def]
    """What is held, gathered, summed and why, per mesh; `explain` says the same."""
    source = written(SHARDED, "sharded.py")
    found = planned(command, source)
    weight, half = 4 * 16 * 16, 4 * 16 * 8
    for held in found["placement"]["meshes"]:
        assert (held["parameters"], held["state"], held["gradients"]) == (half, half, weight)
        assert held["activations"] > 0 and held["peak"] > 2 * half + 2 * weight
    assert [held["hoisted"] for held in found["placement"]["meshes"]] == [0, weight]  # at the peak
    for kind in ("all-gather", "all-reduce"):
        assert [mesh[kind]["runs"] for mesh in found["collectives"].values()] == [1, 1]
    assert found["collectives"]["m0"]["all-gather"]["bytes"] == weight
    assert [(c["gather"], c["made_bytes"]) for c in found["gather"]] == [
        ("step", weight),
        ("phase", weight),
        ("microbatch", 4 * weight),
    ]
    assert sum("with a gather) is computed once per step" in text for text in found["once_per_step"]) == 2
    assert sum("sums over devices are finished once per step" in text for text in found["once_per_step"]) == 2
    explain = runner(capsys, "explain")
    told = json.loads(explain(source, "--json").out)
    assert told["collectives"] == found["collectives"]
    first, last = told["meshes"]
    assert first == found["placement"]["meshes"][0]
    # As it runs, with a forward and its backward in one program, the last mesh keeps less.
    apart = found["placement"]["meshes"][1]
    assert last["activations"] < apart["activations"] and last["peak"] < apart["peak"]
    assert {**apart, **{column: last[column] for column in ("activations", "temporary", "peak")}} == last
    assert told["once_per_step"] == found["once_per_step"]
    left = json.loads(explain(f"{source}:limited", "--json").out)
    assert any("stays with the microbatches: of the limit 0 bytes are left" in text for text in left["once_per_step"])
    assert left["collectives"]["m1"]["all-gather"]["runs"] == 2 and left["meshes"][1]["hoisted"] == 0


def test_no_backwards(command) -> None:  # type: ignore[no-untyped-def]
    found = planned(command, f"{TIED}:inference", "--microbatches", "4,8")
    assert found["now"]["schedule"] == "forward"
    assert all(s["input_grad"] == s["weight_grad"] == s["activation_bytes"] == 0 for s in found["stages"])
    rows = [found["best"], *found["alternatives"]]
    assert {r["stages"] for r in rows} == {2, 4, 6} and {r["microbatches"] for r in rows} == {4, 8}
    assert found["best"]["microbatches"] == 8
    text = command(f"{TIED}:inference")
    assert "zb-h1" not in text.out and "-0.0%" not in text.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--microbatches", "4,x"), "--microbatches is '4,x'; write numbers above 0"),
        (("--microbatches", "0"), "--microbatches is '0'"),
        (("--memory-limit", "-1"), "--memory-limit is -1; it must be above 0"),
        (("--tflops", "0"), "--tflops is 0"),
        (("--rows", "0"), "--rows is 0; it must be above 0"),
        (("--latency-us", "-1"), "--latency-us is -1; it must be 0 or more"),
        (("--link-gbytes", "0"), "--link-gbytes is 0"),
        (("--collective-gbytes", "1"), "--collective-gbytes is for times; give the speed of a device"),
        (("--link-gbytes", "1"), "transfers take seconds, but the work of the program is counted in operations"),
        (("--transfers", "now"), "--transfers is 'now'; it is one of async, exposed, blocking"),
        (("--link", "m0:m1=3"), "--link is 'm0:m1=3'; write two meshes, microseconds and GB/s, as in m0:m1=20"),
        (("--link", "m0:m7=3,4"), "the topology has no mesh 'm7'; it has m0, m1"),
        (("--link", "m0:m0=3,4"), "--link is 'm0:m0=3,4', but within the mesh 'm0' nothing is sent"),
        (("--measure", "--tflops", "1"), "choose one"),
    ],
)
def test_wrong_calls(command, arguments: tuple[str, ...], message: str) -> None:  # type: ignore[no-untyped-def]
    result = command(UNEVEN, *arguments)
    assert result.status == 2 and message in result.err and not result.out


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("evaluation", "the program has no numbered microbatches, so one mesh works at a time"),
        ("unnamed", "the program has no named computations, so there is nothing to divide into stages"),
        ("one_name", "the program has one stage: there is one named computation, 'all', and it cannot be divided"),
        ("one_mesh", "the topology has one mesh, so there is nothing to divide"),
    ],
)
def test_nothing_to_plan(command, program: str, message: str) -> None:  # type: ignore[no-untyped-def]
    result = command(f"{UNEVEN}:{program}")
    assert result.status == 1 and not result.out
    assert message in result.err and "Traceback" not in result.err


def test_meshes_that_share_devices_take_turns(command: Command) -> None:
    """Times and peaks are the sums of what they are on devices of their own; `explain` tells, too."""
    apart, found = planned(command, TINY), planned(command, f"{TINY}:sharing")
    own, other = apart["now"], found["now"]
    assert own["schedule"] == other["schedule"] == "1f1b"
    assert other["peak_bytes"]["m0"] == other["peak_bytes"]["m1"]
    assert other["peak_bytes"]["m0"] == pytest.approx(sum(own["peak_bytes"].values()), rel=0.2)
    assert other["step"] > 1.2 * own["step"]
    assert found["placement"]["sharing_devices"] == [["m0", "m1"]] and not apart["placement"]["sharing_devices"]
    result = command(f"{TINY}:sharing")
    assert "m0, m1 share their devices: the peak is that of all together" in result.err


def test_machines_that_are_not_there(command: Command) -> None:
    real, found = planned(command, TINY), planned(command, f"{TINY}:abstract")
    assert found["meshes"] == real["meshes"]
    assert found["stages"][0]["forward"] == pytest.approx(real["stages"][0]["forward"], rel=0.2)
    peaks = [[mesh["peak"] for mesh in one["placement"]["meshes"]] for one in (real, found)]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.3)
    result = command(f"{TINY}:abstract", "--memory-limit", "0.0001")
    assert result.status == 1 and "MiB" in result.err
    result = command(f"{TINY}:abstract", "--measure")
    assert result.status == 2 and "abstract meshes have no devices" in result.err


def test_numbers_of_microbatches_divide_the_batch(command: Command) -> None:
    result = command(TINY, "--microbatches", "2,3,4", "--json")
    assert result.status == 0 and "not tried: 3 microbatches, since the batch has 8 rows" in result.err
    found = json.loads(result.out)
    assert {option["microbatches"] for option in [found["best"], *found["alternatives"]]} == {2, 4}
    assert "tries other numbers" not in result.err
    result = command(TINY)
    assert result.status == 0 and "2 microbatches, as in the program; --microbatches 4 tries other" in result.err
    result = command(TINY, "--microbatches", "3,5")
    assert result.status == 2 and "--microbatches is '3,5', but the batch has 8 rows" in result.err


def test_rows_of_microbatches_divide_among_the_devices(command: Command, written: Writer) -> None:
    file = written(SHARDED, "sharded.py")
    result = command(file, "--microbatches", "2,4,64", "--json")
    assert "not tried: 64 microbatches, since the batch has 64 rows, split over 2 devices" in result.err
    found = json.loads(result.out)
    assert {option["microbatches"] for option in [found["best"], *found["alternatives"]]} == {2, 4}
    refused = command(file, "--microbatches", "64")
    assert refused.status == 2 and "choose a number that divides the rows of each device" in refused.err
