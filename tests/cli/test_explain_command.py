"""`explain` on MLIR text and on programs."""

from __future__ import annotations

import json
import pathlib

import pytest

from mpmd_trace_cli.entry import main

TEXT = """func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
  %0 = mpmd.assign {origin = "o"} %a : (tensor<4xf32>) -> !mpmd.mesh_tensor<"m", tensor<4xf32>>
  %1 = mpmd.unassign %0 : (!mpmd.mesh_tensor<"m", tensor<4xf32>>) -> tensor<4xf32>
  %2 = stablehlo.add %1, %b : tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""
PROGRAM = pathlib.Path(__file__).parent.parent / "programs" / "tiny.py"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["explain", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_text(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(TEXT)
    status, out, err = run(capsys, str(source), "--value", "in.mlir:5")
    assert (status, err) == (0, "") and out.startswith("'stablehlo.add'") and 'on mesh "m"' in out
    status, out, _ = run(capsys, str(source), "--value", "input 1", "--json")
    found = json.loads(out)
    assert status == 0 and found["placements"][0]["meshes"] == ["m"]


def test_what_is_not_there(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(TEXT)
    status, out, err = run(capsys, str(source), "--value", "in.mlir:55")
    assert (status, out) == (1, "") and "nothing in the module" in err
    source.write_text("module {}")
    status, out, err = run(capsys, str(source), "--value", "x")
    assert (status, out) == (1, "") and "no function" in err


def test_program(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, str(PROGRAM), "--value", "input 0")
    assert status == 0, err
    assert "is on mesh" in out or "needed" in out


def test_what_a_program_holds_and_moves(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, str(PROGRAM))
    assert status == 0, err
    assert "bytes on a device of each mesh" in out and "activations" in out and "cotangents" in out
    status, out, _ = run(capsys, str(PROGRAM), "--json")
    found = json.loads(out)
    assert status == 0 and [held["mesh"] for held in found["meshes"]] == ["m0", "m1"]
    assert found["moves"]["activations"]["count"] == sum(
        sent["times"] for sent in found["sent"] if sent["cause"] == "activations"
    )
    status, out, err = run(capsys, "-")
    assert (status, out) == (1, "") and "--value 'input 0'" in err


def test_named_computations(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, str(PROGRAM), "--value", "second")
    assert status == 0, err
    assert out.startswith('named computation "second"') and 'is on mesh "m1"' in out
    assert "tiny.py:" in out
    status, out, err = run(capsys, str(PROGRAM), "--value", "secnd")
    assert (status, out) == (1, "") and "did you mean second" in err
    status, out, err = run(capsys, str(PROGRAM), "--value", "input 99")
    assert (status, out) == (1, "")
    assert "there is no input 99; inputs are counted from 0, and there are 3 (@main)" in err


def test_computations_without_a_mesh(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.mlir"
    named = 'mpmd.named_computation<"f"> (%1) (%x: tensor<4xf32>) {\n    mpmd.return %x : tensor<4xf32>\n  }'
    source.write_text(TEXT.replace("stablehlo.add %1, %b : t", f"{named} : (tensor<4xf32>) -> t"))
    status, out, err = run(capsys, str(source), "--value", "f")
    assert (status, out) == (1, "")
    assert "the named computation 'f' has no mesh yet" in err and "assignment=f@MESH" in err
