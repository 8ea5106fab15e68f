"""`reduce`: small modules that are still interesting."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from commands import Command, Writer

from dialect_module import BASE
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace_cli.reduce import reduce_file
from mpmd_trace_devtools.reduce import count_ops, reduce


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["stablehlo.add"], 6),
        (["mpmd.call"], 5),
        (['memory_kind = "device"'], 3),
        (['memory_kind="pinned_host"', "mpmd.for"], 4),
        (["mpmd.fragment_call"], 5),
        (["mpmd.reduce<none>", "mpmd.broadcast"], 8),
        (["@plain"], 5),
    ],
)
def test_what_is_left(words: list[str], most: int) -> None:
    tried: list[str] = []

    def interesting(text: str) -> bool:
        tried.append(text)
        return all(word in text for word in words)

    module = parse(BASE)
    result = reduce(module, interesting)
    assert count_ops(result.module) <= most, result.text
    assert all(word in result.text for word in words)
    assert verify(result.module) == [] and str(parse(result.text)) == result.text
    assert str(module) == str(parse(BASE))  # the input is as it was
    for text in tried:
        parse(text)  # every candidate is valid
    assert len(tried) == len(set(tried)) == result.tried


def test_nothing_interesting() -> None:
    with pytest.raises(MpmdError, match="not interesting to begin with"):
        reduce(parse(BASE), lambda text: False)


def test_command(command: Command, written: Writer, tmp_path: pathlib.Path) -> None:
    source, target, other = written(BASE, "a b.mlir"), tmp_path / "small.mlir", tmp_path / "never.mlir"
    status, out, err = command("reduce", source, "--check", "grep -q stablehlo.add", "-o", str(target))
    assert (status, out) == (0, "") and "runs of the check" in err and "round 1" in err
    assert "stablehlo.add" in target.read_text() and "mpmd.call" not in target.read_text()
    again = command("reduce", str(target), "--check", "test $(grep -c stablehlo.add {}) -ge 1 && true")
    assert again.status == 0 and "stablehlo.add" in again.out
    boring = command("reduce", source, "--check", "false", "-o", str(other))
    assert boring.status == 2 and "not interesting to begin with" in boring.err and not other.exists()
    wrong = command("reduce", written("func.func @f(", "a b.mlir"), "--check", "true")
    assert wrong.status == 1 and "a b.mlir:1:13: error:" in wrong.err


@pytest.mark.skipif(sys.platform == "win32", reason="the check is for a shell of POSIX")
def test_a_check_that_takes_too_long_is_killed(command: Command, written: Writer, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    result = command("reduce", written(BASE), "--check", f"cat {gate} | cat; true", "--timeout", "0.5")
    assert result.status == 2 and "it takes longer than 0.5 s" in result.err
    with pytest.raises(OSError, match="No such device or address"):  # nobody reads it anymore
        os.open(gate, os.O_WRONLY | os.O_NONBLOCK)


def test_what_is_found_before_ctrl_c_is_written(
    written: Writer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = 3

    def failure(check: str, path: str, timeout: float) -> str:
        nonlocal left
        if "stablehlo.add" not in pathlib.Path(path).read_text():
            return "it is gone"
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr("mpmd_trace_cli.reduce._failure", failure)
    target = tmp_path / "small.mlir"
    source = written(BASE)
    with pytest.raises(KeyboardInterrupt):
        reduce_file(source, "never called", str(target), 0, False)
    before, after = count_ops(parse(BASE)), count_ops(parse(target.read_text()))
    assert f"{before} -> {after} ops so far" in capsys.readouterr().err
    assert after < before and "stablehlo.add" in target.read_text()
    target.unlink()
    with pytest.raises(KeyboardInterrupt):  # the check has not succeeded yet: nothing is written
        reduce_file(source, "never called", str(target), 0, False)
    assert not target.exists()
