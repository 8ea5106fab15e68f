"""Every mistake in a program is told once, with its place in the user's file and what to do; nothing is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import Command, Writer

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError

WRONG = Path(__file__).parent.parent / "programs" / "wrong.py"


#: Program -> (a piece of the line that the error must point to, what is wrong, what to do).
MISTAKES = {
    "unknown_mesh": ("make_config(", "'layers_1' is assigned to the mesh 'c', which the topology lacks", "Known: 'a'"),
    "unknown_name": ("jax.vmap(named)", "'layers_1' is not assigned to a mesh", "Did you mean 'layers_1' by 'layer_1'"),
    "no_transfers": ("jax.vmap(named)", "no mesh has all operands of this op", "set mpmd_infer_transfers"),
    "cycle": ("jax.vmap(named)", "stage 0 runs twice on mesh 'a' for the same microbatch", "Give"),
    "no_devices": ("make_config(", "the mesh 'b' has no devices: its shape is {'x': 0}", "Make it of devices in"),
    "undivided": ("x.reshape(", "cannot reshape array of shape (8, 4)", ""),
    "wrong_mesh": ("mpmd_trace.Program(", "is on devices 2, 3, and the program wants it on mesh 'a'", "move it with"),
    "donated_again": ("advance=lambda i, args, result: args)", "were donated to an earlier call", "Use what that call"),
    "no_array": ("def step(", "argument parameters.activation is not an array but a custom_jvp: relu.", "static"),
    "unknown_option": ("make_config(", "no partitioning option 'mpmd_infer_transfer'", "did you mean"),
    "unknown_schedule": ("make_config(", "unknown schedule '1F2B'", "did you mean 1f1b"),
    "few_arguments": ("mpmd_trace.Program(", "do not fit the step 'step'", "missing a required argument: 'x'"),
    "no_tuple": ("mpmd_trace.Program(", "args is the tuple of the step's arguments, not of type", ""),
    "no_steps": ("mpmd_trace.Program(", "steps is 0", "1 or more"),
    "no_config": ("mpmd_trace.Program(", "it is not None", "config is made by mpmd_trace.make_config"),
    "few_next_arguments": ("advance=lambda", "do not fit the step 'step'", "missing a required argument: 'x'"),
    "no_next_tuple": ("advance=lambda", "returns: of type MLP", "but they are a tuple"),
    "few_parameters_of_advance": (
        "mpmd_trace.Program(",
        "advance is called as advance(i, args, result), and this one cannot be: too many positional arguments",
        "",
    ),
    "batches_of_an_iterator": ("advance=lambda", "something else when it is called again (args[1])", "from a list"),
    "no_number": ("loss=lambda", "not a value of type MLP", "returns one number of a result"),
    "no_tolerance": ("mpmd_trace.Program(", "loss_tolerance is a number, not of type str", ""),
    "deleted_argument": ("mpmd_trace.Program(", "the step does not run: RuntimeError: Array has been deleted", ""),
    "abstract_argument": ("mpmd_trace.Program(", "the step does not run: TypeError: Argument", "ShapeDtypeStruct"),
    "donates_no_number": ("mpmd_trace.Program(", "donate_argnums are positions of arguments", "one int or several"),
    "raising_callback": ("ValueError(", "a callback of the program raised ValueError: no luck", ""),
    "raising_loss": ("result[7]", "the program raised IndexError: tuple index out of range", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(command: Command, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, message, remedy = MISTAKES[name]
    monkeypatch.chdir(WRONG.parent)
    out = tmp_path / "out"
    result = command("run", f"wrong.py:{name}", "--out", str(out))
    assert result.status == (3 if " raised " in message or "does not run" in message or name == "undivided" else 1)
    assert result.out == "" and not out.exists()
    assert "Traceback" not in result.err
    errors = [line for line in result.err.splitlines() if ": error: " in line]
    assert 1 <= len(errors) <= 3, result.err
    assert message in result.err and remedy in result.err, result.err
    place = re.match(r"wrong\.py:(\d+)(:[1-9]\d*)?: error: ", errors[0])
    assert place, errors[0]
    lines = WRONG.read_text().splitlines()
    # Where a call takes several lines Python versions name another one of them.
    near = "\n".join(lines[int(place[1]) - 1 : int(place[1]) + 1])
    assert code in near, f"line {place[1]} is {near}"


@pytest.mark.parametrize("verb", ["dump", "show", "plan", "compare", "explain"])
def test_the_other_commands(command: Command, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(WRONG.parent)
    more = {"dump": ["--out", str(tmp_path / "out")], "explain": ["--value", "input 0"]}.get(verb, [])
    for name in ("unknown_name", "no_steps", "undivided"):
        result = command(verb, f"wrong.py:{name}", *more)
        assert result.status == (3 if name == "undivided" else 1) and result.out == "" and "Traceback" not in result.err
        assert re.search(r"^wrong\.py:\d+(:\d+)?: error: ", result.err, re.MULTILINE), result.err
    assert not (tmp_path / "out").exists()


def test_many_of_a_kind_are_told_shortly() -> None:
    places = [Diagnostic("error", f"argument {i} (x[{i}]) is gone") for i in range(9)]
    other = Diagnostic("error", "the mesh 'a' has no devices", op="a" * 5000 + "\nb")
    lines = list(MpmdError([*places, other], pass_name="p").brief())
    assert [line for line in lines if "is gone" in line] == [f"error: argument {i} (x[{i}]) is gone" for i in range(3)]
    assert "(and 6 more like some of these)" in lines and lines[-1] == "(in the pass p)"
    cut = next(line for line in lines if "no devices" in line)
    assert len(cut) < 600 and cut.endswith("...\n  b")


# Files.


def test_files_of_the_user_are_left_alone(command: Command, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(WRONG.read_text())
    for verb in ("run", "dump"):
        for out in (mine, mine / "inside", mine / "far" / "inside"):
            result = command(verb, str(mine), "--out", str(out))
            assert result.status == 2 and "is a file" in result.err and "Traceback" not in result.err
            assert "trace" not in result.err, "it is told before the work"
    assert mine.read_text() == WRONG.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nowhere.py", "error: there is no file nowhere.py"),
        ("nowhere", "error: there is no module 'nowhere'; a program is FILE.py, FILE.py:name or package.module:name"),
        ("nowhere.at.all:program", "error: there is no module 'nowhere.at.all'"),
        ("..bad:program", "error: there is no"),
        ("{folder}", "{folder} is a folder; name a Python file in it"),
        ("models", "error: models is a folder; name a Python file in it"),
        ("v1.2:program", "error: v1.2 is a folder; name a Python file in it"),
        ("packaged", "error: packaged should define `program = mpmd_trace.Program(fn, args, config)`; it has none"),
        ("os:path", "error: 'path' of os is of type module, not an mpmd_trace.Program"),
        ("os:nothing", "error: os defines no 'nothing'"),
    ],
)
def test_programs_that_are_not_there(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, message: str
) -> None:
    for folder in ("models", "v1.2", "packaged"):
        (tmp_path / folder).mkdir()
    (tmp_path / "packaged" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    result = command("show", where.format(folder=tmp_path))
    assert result.status == 2 and result.out == ""
    assert message.format(folder=tmp_path) in result.err and "Traceback" not in result.err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("steps=x", "--set steps=x: 'x' is not a whole number"),
        ("steps=0", "--set steps=0: there must be 1 step or more"),
        ("stepps=3", "--set stepps=3 sets nothing; write FIELD=NUMBER, where FIELD is one of steps, gradient_tol"),
        ("steps", "--set steps sets nothing"),
        ("loss_tolerance=low", "--set loss_tolerance=low: 'low' is not a number"),
        ("where=5", "--set where=5 sets nothing"),
    ],
)
def test_settings(command: Command, setting: str, message: str, tmp_path: Path) -> None:
    result = command("run", str(WRONG), "--set", setting, "--out", str(tmp_path / "out"))
    assert result.status == 2 and message in result.err and not (tmp_path / "out").exists()


def test_texts_that_cannot_be_read(command: Command, tmp_path: Path) -> None:
    binary, ours = tmp_path / "code.mlirbc", tmp_path / "good.mlir"
    binary.write_bytes(b"module {}\n\xec\x00")
    ours.write_text("module {}\n")
    calls = {
        "opt": lambda file: ["opt", file],
        "reduce": lambda file: ["reduce", file, "--check", "true"],
        "explain": lambda file: ["explain", file, "--value", "x"],
    }
    for name, call in calls.items():
        if name != "explain":  # which knows texts by .mlir
            result = command(*call(str(binary)))
            assert result.status == 2 and not result.out
            assert "is not a text of MLIR: byte 0xec in line 2 is not UTF-8" in result.err
        result = command(*call(str(tmp_path / "none.mlir")))
        assert result.status == 2 and f"cannot read {tmp_path / 'none.mlir'}: no such file" in result.err
    for name in ("opt", "reduce"):
        for target, message in ((tmp_path, "it is a folder"), (tmp_path / "no" / "x", "there is no folder")):
            result = command(*calls[name](str(ours)), "-o", str(target))
            assert result.status == 2 and f"cannot write {target}: {message}" in result.err
            assert not result.out and "ops" not in result.err, "it is told before the work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["code.mlirbc", "good.mlir"]


@pytest.mark.parametrize(
    ("check", "timeout", "message"),
    [
        ("no-such-command-at-all", "9", "no-such-command-at-all (there is no such command)"),
        ("false", "9", "false (its exit status is 1)"),
        ("sleep 9 #", "0.2", "(it takes longer than 0.2 s)"),
        ("true", "-1", "--timeout is -1; it is seconds, or 0 for no limit"),
    ],
)
def test_checks_that_fail(command: Command, check: str, timeout: str, message: str, written: Writer) -> None:
    result = command("reduce", written("module {}\n"), "--check", check, "--timeout", timeout)
    assert result.status == 2 and message in result.err and not result.out
