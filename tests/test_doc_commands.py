"""Command lines in README and docs are calls that the command line knows; some run."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from doc_programs import ROOT, blocks
from mpmd_trace.passes import registry
from mpmd_trace_cli.main import app
from mpmd_trace_cli.opt import main as opt
from mpmd_trace_cli.opt_flags import parse_arguments

PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
#: On a line of its own, perhaps after an indentation or a path, and in backticks.
_LINES = re.compile(r"^ *(?:\.venv/bin/)?mpmd-trace (?!launch has)(.+)$|`mpmd-trace ([^`\n]+)`", re.MULTILINE)
#: Not calls as they stand: a pass that the reader writes, and one for any pass.
PLACEHOLDERS = ("-mpmd-my-pass", "-PASS[")
#: What stands for a number.
NUMBERS = dict.fromkeys(("C", "G", "K", "L", "N", "SECONDS", "T", "U", "X"), "1")


def lines(page: str) -> list[str]:
    return [first or second for first, second in _LINES.findall((ROOT / page).read_text())]


def calls(line: str) -> list[list[str]]:
    """The calls that a line means: `[a]` is there, of `a | b` each one, of `FILE|-` the first."""
    variants = [""]
    for before, bracket, after in re.findall(r"([^\[\]]*)(\[([^\[\]]*)\])?", line):
        inside = after.split(" | ") if bracket else [""]
        variants = [v + before + i for v in variants for i in inside]
    result = []
    for variant in variants:
        words = shlex.split(variant.replace("...", ""), comments=True)
        words = words[: next((i for i, word in enumerate(words) if word in ("<", ">", "2>&1")), len(words))]
        result.append([NUMBERS.get(word, re.split(r"(?<=[\w.])\|", word)[0]) for word in words])
    return result


@functools.cache
def commands() -> Any:
    return typer.main.get_command(app)


def problem(words: list[str]) -> str | None:
    """What is wrong: an unknown command or option, or a value that is none."""
    group = commands()
    if words[0].startswith("-"):  # before the command
        known = {option for parameter in group.params for option in parameter.opts}
        return None if words[0] in known and words[1:] == ["COMMAND"] else "no option"
    try:
        if words[0] == "opt":
            parse_arguments(words[1:])
            return None
        command, rest = group, words
        while rest and hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        if rest:  # else it is only named
            command.make_context(command.name, [*rest])
    except Exception as error:
        return repr(error)
    return None


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that docs/passes.md writes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "balance.py").write_text(blocks("docs/passes.md")[0])
    monkeypatch.setattr(registry, "PASSES", dict(registry.PASSES))


@pytest.mark.usefixtures("plugin")
def test_command_lines_are_calls() -> None:
    seen = 0
    for page in PAGES:
        for line in lines(page):
            if any(placeholder in line for placeholder in PLACEHOLDERS):
                continue
            for words in calls(line):
                seen += 1
                wrong = problem(words) and problem([*words, "FILE"])  # text leaves the file out where it is clear
                assert not wrong, f"{page}: mpmd-trace {line}: {wrong}"
    assert seen > 100


WRONG = ["plan FILE --gigabytes G", "planned FILE", "check FILE -n many", "schedule shown", "opt x -no-pass", "run A B"]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_calls_are_seen(wrong: str) -> None:
    assert all(problem(words) and problem([*words, "FILE"]) for words in calls(wrong))


def test_calls_of_a_line() -> None:
    assert calls("show FILE|- [--a | --b T] [-o x.mlir] # text") == [
        ["show", "FILE", "--a", "-o", "x.mlir"],
        ["show", "FILE", "--b", "1", "-o", "x.mlir"],
    ]


MODULE = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


@pytest.mark.usefixtures("plugin")
def test_calls_without_a_program_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step.mlir").write_text(MODULE)
    ran = 0
    for page in PAGES:
        for line in lines(page):
            words = calls(line)[0]
            if words[0] == "opt" and ("step.mlir" in words or line.endswith("< step.mlir")):
                monkeypatch.setattr("sys.stdin", io.StringIO(MODULE))
                assert opt(words[1:]) == 0, line
                assert "func.func" in capsys.readouterr().out
                ran += 1
            elif words[0] in ("passes", "schedule") and len(words) > 1 and not re.search(r" [A-Z[]| search", line):
                with contextlib.suppress(SystemExit):
                    commands().main(words, prog_name="mpmd-trace", standalone_mode=False)
                assert len(capsys.readouterr().out) > 100, line
                ran += 1
    assert ran > 6


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^ *|`)make ([a-z][\w-]*)", (ROOT / page).read_text(), re.MULTILINE)
        assert {*named} <= targets, page
