"""`mpmd-trace plan`: costs of a program's own stages, and what suits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mpmd_trace import schedules
from mpmd_trace.cli.main import main

UNEVEN = str(Path(__file__).parent.parent / "programs" / "uneven.py")


class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs `mpmd-trace plan`."""

    def call(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as stop:
            main(["plan", *arguments])
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return call


def planned(command: Any, *arguments: str) -> dict[str, Any]:
    result = command(*arguments, "--json")
    assert result.status == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


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


def test_a_better_assignment(command) -> None:  # type: ignore[no-untyped-def]
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
    text = command(UNEVEN)
    assert text.status == 0
    assert "A better assignment:" in text.out and "'layer_5': 'm" in text.out
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
    tight = command(UNEVEN, "--memory-limit", "0.001")
    assert tight.status == 1 and "nothing fits in 0.001 MiB per device" in tight.err


@pytest.mark.parametrize("how", [("--measure",), ("--tflops", "0.001", "--gbytes", "1")])
def test_times(command, how: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    found = planned(command, UNEVEN, *how)
    assert found["unit"] == "ms"
    assert all(s["forward"] > 0 for s in found["stages"])
    assert found["best"]["step"] > 0
    assert all(0 <= o["bubble_rate_span"] <= o["bubble_rate_makespan"] <= 1 for o in found["alternatives"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--microbatches", "4,x"), "--microbatches is '4,x'; write numbers above 0"),
        (("--microbatches", "0"), "--microbatches is '0'"),
        (("--memory-limit", "-1"), "--memory-limit is -1; it must be above 0"),
        (("--tflops", "0"), "--tflops is 0"),
    ],
)
def test_wrong_calls(command, arguments: tuple[str, ...], message: str) -> None:  # type: ignore[no-untyped-def]
    result = command(UNEVEN, *arguments)
    assert result.status == 1 and message in result.err and not result.out


def test_nothing_to_schedule(command) -> None:  # type: ignore[no-untyped-def]
    result = command(f"{UNEVEN}:evaluation")
    assert result.status == 1
    assert "there is nothing to schedule" in result.err and "Traceback" not in result.err


