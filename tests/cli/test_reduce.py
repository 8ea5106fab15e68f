"""`reduce`: small modules that are still interesting."""

from __future__ import annotations

import pathlib

import pytest

from dialect_module import BASE
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.verifier import verify
from mpmd_trace_cli.entry import main
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


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["reduce", *arguments])
    return int(stop.value.code or 0)


def test_command(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "a b.mlir", tmp_path / "small.mlir"
    source.write_text(BASE)
    assert _run(str(source), "--check", "grep -q stablehlo.add", "-o", str(target)) == 0
    out, err = capsys.readouterr()
    assert out == "" and "runs of the check" in err and "round 1" in err
    assert "stablehlo.add" in target.read_text() and "mpmd.call" not in target.read_text()
    assert _run(str(target), "--check", "test $(grep -c stablehlo.add {}) -ge 1 && true") == 0
    assert "stablehlo.add" in capsys.readouterr().out
    other = tmp_path / "never.mlir"
    assert _run(str(source), "--check", "false", "-o", str(other)) == 2
    assert "not interesting to begin with" in capsys.readouterr().err and not other.exists()
    source.write_text("func.func @f(")
    assert _run(str(source), "--check", "true") == 1
    assert "a b.mlir:1:13: error:" in capsys.readouterr().err


def test_checks_that_hang_fail(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.mlir"
    source.write_text("module {}")
    assert _run(str(source), "--check", "sleep 20", "--timeout", "0.2") == 2
    assert "not interesting" in capsys.readouterr().err
