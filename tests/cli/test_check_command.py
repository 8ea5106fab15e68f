"""`check`: what processes do of a program, the proof that they end, and what is told when they would not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Command, runner
from jax.sharding import AbstractMesh

import mpmd_trace_cli.check
from mpmd_trace.backend.distribution.order import Order, Receive, RunProgram, Send, distribute
from mpmd_trace_cli.check import owners_of

TINY = str(Path(__file__).parent.parent / "programs" / "tiny.py") + ":as_in_the_reference"
PROVED = "whatever the timing, even if every message waits until it is received\n"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `mpmd-trace check` on the tiny program."""
    return runner(capsys, "check", TINY)


def test_a_process_for_each_mesh(command: Command) -> None:
    result = command()
    assert (result.status, result.err) == (0, "")
    rows = [line.split() for line in result.out.splitlines()]
    assert ["0", "m0", "10", "4", "0", "2", "2"] in rows
    assert ["1", "0", "2", "128"] in rows, "two gradients of 4 x 4"
    assert result.out.endswith(f"proved: all 2 processes terminate, {PROVED}")


def test_one_process_sends_nothing(command: Command) -> None:
    result = command("--processes", "1")
    assert result.status == 0 and "sent between" not in result.out
    assert result.out.endswith(f"proved: 1 process terminates, {PROVED}")


def test_meshes_over_processes(command: Command) -> None:
    result = command("-n", "4")
    assert result.status == 0 and "m1 (with 2)" in result.out
    found = json.loads(command("-n", "4", "--json").out)
    assert found["ends"] and found["meshes"] == {"m0": [0, 1], "m1": [2, 3]}
    assert found["processes"][3] == {
        "process": 3,
        "actions": 10,
        "runs": 4,
        "collectives": 4,
        "sends": 2,
        "receives": 2,
    }
    assert {"from": 0, "to": 2, "messages": 2, "bytes": 128} in found["sent"]


def test_a_process_without_devices(command: Command) -> None:
    found = json.loads(command("-n", "3", "--json").out)
    assert found["processes"][2]["actions"] == 0 and found["meshes"] == {"m0": [0, 0], "m1": [1, 1]}


def test_what_one_process_does(command: Command) -> None:
    lines = command("--process", "0").out.splitlines()
    assert lines[0] == "run @p0_first_fwd_call0.step (first) on mesh 'm0' (forward of stage 0, microbatch 0)"
    assert "send %7 f32[4,4] from mesh 'm0' to 'm1', to process 1, tag 0" in lines


def test_wrong_numbers(command: Command) -> None:
    for arguments, message in (
        (("-n", "0"), "error: --processes is 0; it must be 1 or more"),
        (("-n", "9"), "error: --processes is 9, but the meshes have 4 devices; it is at most 4"),
        (("--process", "2"), "error: --process is 2; the processes are 0 to 1"),
        (("-n", "4", "--process", "-1"), "error: --process is -1; the processes are 0 to 3"),
    ):
        result = command(*arguments)
        assert (result.status, result.out, result.err.strip()) == (2, "", message)


def test_a_cycle(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an order in which processes receive before they send."""

    def receives_first(*arguments: Any) -> Order:
        order = distribute(*arguments)
        kinds = (Receive, RunProgram, Send)
        actions = sorted(order.actions, key=lambda a: next((i for i, k in enumerate(kinds) if isinstance(a, k)), 3))
        return dataclasses.replace(order, actions=tuple(actions))

    monkeypatch.setattr(mpmd_trace_cli.check, "distribute", receives_first)
    result = command()
    assert result.status == 1
    text = result.err
    assert "2 processes wait for each other in a cycle (without buffers):\n" in text
    assert (
        "  process 1 waits (at its action 0) to receive %7 f32[4,4] from mesh 'm0' to 'm1', from process 0, tag 0, "
        "made by @p0_first_fwd_call0.step (forward of stage 0, microbatch 0)\n    for process 0 to send it (its action "
    ) in text
    assert "(no number of buffers is enough)" in text
    found = json.loads(command("--json").out)
    assert not found["ends"] and {wait["process"] for wait in found["waits"]} == {0, 1}


def test_meshes_without_devices() -> None:
    topology = {"a": AbstractMesh((2,), ("x",)), "b": AbstractMesh((4,), ("x",))}
    assert owners_of(topology) == {"a": (0, 0), "b": (1, 1, 1, 1)}
    assert owners_of(topology, 3) == {"a": (0, 0), "b": (1, 1, 2, 2)}
