"""Exit statuses are the same in all commands: 0 fine, 1 found something, 2 wrong call, 3 the program raised."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import Command, Writer

from mpmd_trace_cli.main import EXAMPLES, app

TINY = str(Path(__file__).parents[1] / "programs" / "tiny.py")
PROGRAM_COMMANDS = ("run", "show", "explore", "plan", "check", "explain", "bisect", "dump")


BROKEN = """
def broken(*args):
    helper()

def helper():
    raise KeyError('lost')

program = dataclasses.replace(program(), fn=broken)
"""


@pytest.fixture
def raising(written: Writer) -> str:
    """A program whose step raises when it is traced."""
    return written(Path(TINY).read_text() + BROKEN, "raising.py")


def options(name: str, tmp_path: Path) -> list[str]:
    return ["--out", str(tmp_path / "out")] if name in ("run", "explore", "dump") else []


@pytest.mark.parametrize("name", PROGRAM_COMMANDS)
def test_a_program_that_raises(name: str, raising: str, tmp_path: Path, command: Command) -> None:
    result = command(name, raising, *options(name, tmp_path))
    assert result.status == 3, result.err
    assert "raising.py" in result.err and "KeyError" in result.err and "Traceback" not in result.err


@pytest.mark.parametrize("name", PROGRAM_COMMANDS)
def test_a_file_that_is_missing(name: str, tmp_path: Path, command: Command) -> None:
    result = command(name, str(tmp_path / "none.py"), *options(name, tmp_path))
    assert result.status == 2 and "there is no file" in result.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", TINY, "--stage", "nothing"], "--stage is jaxpr, ir, mpmd or plan"),
        (["show", f"{TINY}:nothing"], "defines no 'nothing'"),
        (["bisect", TINY, "--set", "steps=0"], "there must be 1 step or more"),
        (["check", TINY, "-n", "0"], "--processes is 0"),
        (["passes", "nothing"], "there is no pass or pipeline"),
        (["schedule", "show", "nothing"], "unknown schedule"),
        (["launch", "none.py"], "there is no script none.py"),
        (["bisect", TINY, "--seconds", "-1"], "--seconds is -1"),
        (["compile", TINY, "--target", "tpu:v9:2x2"], "unknown kind of TPU"),
        (["plan", TINY, "--target", "foo"], "the target is 'foo'"),
        (["explain", TINY, "--value", "nosuch"], "nothing in the module is called or located at 'nosuch'"),
        (["explain", TINY, "--value", "%3"], "'%3' is a name in a text"),
        (["explain", "missing.mlir"], "cannot read missing.mlir: no such file"),
    ],
)
def test_a_wrong_call(arguments: list[str], text: str, command: Command) -> None:
    result = command(*arguments)
    assert result.status == 2 and text in result.err, result


def test_a_compiler_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    def missing(platform: str, **_: Any) -> None:
        raise NotImplementedError(f"topology not implemented for {platform}")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", missing)
    result = command("compile", TINY, "--target", "gpu:h100:3")
    assert result.status == 2 and "pip install jax-cuda13-plugin" in result.err, result


def test_traceback_shows_where_the_programs_exception_comes_from(raising: str, command: Command) -> None:
    result = command("--traceback", "show", raising)
    assert result.status == 3
    assert "Traceback (most recent call last)" in result.err and "in broken" in result.err and "in helper" in result.err


def test_traceback_of_an_exception_while_the_file_is_read(written: Writer, command: Command) -> None:
    file = written("def make():\n    return 1 / 0\n\n\nmake()\n", "early.py")
    short, whole = command("show", file), command("--traceback", "show", file)
    assert short.status == whole.status == 3
    assert "early.py:2" in short.err and "Traceback" not in short.err
    assert "in make" in whole.err and whole.err.endswith(short.err)


@pytest.mark.parametrize("name", [*EXAMPLES])
def test_the_examples_of_help_pages_are_calls(name: str, command: Command) -> None:
    top: Any = typer.main.get_command(app)
    for line, _ in EXAMPLES[name]:
        first, *rest = shlex.split(line)
        assert first == name
        with top.commands[name].make_context(name, rest) as context:
            assert context.params
    page = command(name, "--help")
    assert page.status == 0 and "Examples:" in page.out


def test_every_command_has_examples_and_help_tells_statuses(command: Command) -> None:
    top: Any = typer.main.get_command(app)
    assert {*EXAMPLES} == {*top.commands} - {"opt", "schedule"}
    told = command("--help").out
    assert all(f"│ {name} " in told or f"\n  {name} " in told for name in top.commands)
    assert "Exit status" in " ".join(told.split())
