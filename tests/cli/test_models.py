"""Programs that take and return models: `mpmd_trace.Program(..., filter_jit=True)`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Command

MODEL = str(Path(__file__).parent.parent / "programs" / "model.py")


def test_run(command: Command, tmp_path: Path) -> None:
    result = command("run", MODEL, "--out", str(tmp_path / "out"), "--json")
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["gradient_error"] < 1e-5 and report["loss_error"] < 1e-4 and report["steps"] == 3
    assert report["losses"][0] > report["losses"][-1]
    assert report["returning_bytes"] == 0


def test_models_are_seen_by_what_is_in_them(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(
        f"import dataclasses, sys\nsys.path.insert(0, {str(Path(MODEL).parent)!r})\n"
        "import model, jax, equinox as eqx\n"
        "base = model.program()\n"
        "def step(net, opt_state, x, name):\n"
        "    net, activation = net\n"
        "    return (*base.fn(net, opt_state, x, name), activation)\n"
        "(net, *rest), advance = base.args, lambda i, args, result: ((result[0], jax.nn.relu), result[1], *args[2:])\n"
        "program = dataclasses.replace(base, fn=step, args=((net, jax.nn.relu), *rest), filter_jit=None, steps=2,"
        " advance=advance)\n"
    )
    result = command("run", str(file), "--out", str(tmp_path / "out"), "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["gradient_error"] < 1e-5


def test_what_returns_is_told_by_name(command: Command, tmp_path: Path) -> None:
    result = command("run", f"{MODEL}:moved", "--out", str(tmp_path / "out"))
    assert result.status == 0, result.err
    assert "model.layers[0].weight is taken on m0 and returned on m1" in result.err


@pytest.mark.parametrize(
    ("arguments", "found"),
    [(("show", "--stage", "mpmd"), 'mesh="m1"'), (("explain", "--value", "model.layers[0].weight"), 'is on mesh "m0"')],
)
def test_other_commands(command: Command, arguments: tuple[str, ...], found: str) -> None:
    result = command(arguments[0], MODEL, *arguments[1:])
    assert result.status == 0 and found in result.out, result


def test_another_static_argument_in_a_later_step(command: Command, tmp_path: Path) -> None:
    result = command("run", f"{MODEL}:changing", "--out", str(tmp_path / "out"))
    assert result.status == 1 and "Traceback" not in result.err
    assert "step was compiled for other arguments" in result.err and "argument 3" in result.err
