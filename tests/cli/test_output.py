"""stdout is data, whatever the program prints; folders are written whole or stay as they were."""

from __future__ import annotations

import io
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
from commands import Command, runner

from mpmd_trace.diagnostics import files
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.report import files as report_files
from mpmd_trace.report.files import check_folder, write_folder
from mpmd_trace_cli.console import as_json, compiling, guard, progress
from mpmd_trace_cli.files import write_stream
from mpmd_trace_cli.run import print_losses
from mpmd_trace_cli.run_steps import compare_steps
from mpmd_trace_devtools.numbers import difference
from util import nightly

PROGRAMS = Path(__file__).parent.parent / "programs"
SPECIAL = str(PROGRAMS / "special.py")
TINY = str(PROGRAMS / "tiny.py")


def test_what_a_program_prints_is_talk(command: Command) -> None:
    result = command("show", f"{SPECIAL}:printing", "--stage", "plan")
    assert result.status == 0 and result.out.startswith("plan jit_step:")
    assert "making the program" in result.err and "tracing" in result.err


@pytest.mark.parametrize("name", ["donating", "placed", "static", "infinite"])
def test_programs_with_everything(command: Command, name: str, tmp_path: Path) -> None:
    """Donated, placed and static arguments, keys, and losses that are no numbers."""
    out = tmp_path / "out"
    result = command("run", f"{SPECIAL}:{name}", "--out", str(out), "--json")
    assert result.status == 0, result.err

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not JSON")

    report = json.loads(result.out, parse_constant=refuse)
    assert json.loads((out / "report.json").read_text(), parse_constant=refuse) == report
    assert report["gradient_error"] < 1e-6 and report["loss_error"] < 1e-6
    assert (report["losses"] == [None, None]) == (name == "infinite")
    told = result.err.rpartition("wrote ")[2]
    assert all(path.name in told for path in out.iterdir() if path.suffix)


@pytest.mark.parametrize("verb", [nightly("compare"), "plan"])
def test_other_commands_know_static_arguments(command: Command, verb: str) -> None:
    result = command(verb, f"{SPECIAL}:static", "--json")
    different = verb == "compare" and not all(p["equal"] for p in json.loads(result.out)["phases"].values())
    assert result.status == int(different), result.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_gradients", "gradients of the mpmd_trace.Program returns the gradients in a result, but it returns no"),
        ("key_gradients", "but [0] is of type array of key<fry>, which has no numbers"),
        ("missing_data", "special.py:{line}:1: error: the program raised FileNotFoundError"),
    ],
)
def test_what_a_program_gives_to_the_report(command: Command, name: str, message: str, tmp_path: Path) -> None:
    result = command("run", f"{SPECIAL}:{name}", "--out", str(tmp_path / "out"))
    line = 1 + next(i for i, t in enumerate(Path(SPECIAL).read_text().splitlines()) if "no such data" in t)
    assert result.status == (3 if "raised" in message else 1) and "Traceback" not in result.err
    assert message.format(line=line) in result.err and not (tmp_path / "out").exists()


def test_differences() -> None:
    nan, inf = math.nan, math.inf
    assert difference(np.array([1.0, nan, inf]), np.array([1.0, nan, inf])) == 0
    assert difference(np.array([1.0, nan]), np.array([1.0, 2.0])) == inf
    assert difference(np.array([1.0, 2.0]), np.array([1.0, inf])) == inf
    assert difference(np.array([inf]), np.array([-inf])) == inf
    assert difference(np.array([3.0, 4.4]), np.array([3.0, 4.0])) == pytest.approx(0.08)
    assert difference(np.array([1j]), np.array([2j])) == 0.5
    assert difference(np.zeros(0), np.zeros(0)) == 0 and difference(1e-3, 0.0) == 1e-3


def test_a_nan_is_never_equal_to_a_number() -> None:
    """Neither in a gradient that is not the first nor in a loss that is not the first."""

    class Tolerant:
        gradients = True
        gradient_tolerance = loss_tolerance = 1e9

    def steps(gradient: float, loss: float) -> dict[str, Any]:
        return {"gradients": [("a", np.ones(2)), ("b", np.array([gradient]))], "losses": [1.0, loss]}

    assert not compare_steps(Tolerant(), steps(1.0, math.nan), steps(1.0, math.nan))[0]
    problems, errors = compare_steps(Tolerant(), steps(math.nan, math.nan), steps(1.0, 2.0))
    assert len(problems) == 2 and errors["gradient_error_at"] == "b"
    assert "first in step 2: the loss is nan and should be 2, a difference of inf" in problems[1]


def test_a_difference_that_may_be_rounding_says_how_to_accept_it() -> None:
    class Strict:
        gradients = None
        loss_tolerance = 1e-4

    def compared(*losses: float) -> list[str]:
        two = ({"gradients": [], "losses": each} for each in (losses, [2.0] * len(losses)))
        return compare_steps(Strict(), *two)[0]

    assert compared(2.0) == []
    assert "may be rounding: loss_tolerance= of the Program accepts more" in compared(2.01)[0]
    assert "rounding" not in compared(3.0)[0]
    [first] = compared(2.0, 2.01, 4.0, 2.02)
    assert "first in step 2: the loss is 2.01 and should be 2, a difference of 5.00e-03" in first
    assert "later losses differ by up to 1.00e+00" in first


@pytest.mark.parametrize("columns", [40, 79, 120])
def test_counts_fit_into_a_narrow_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress() as shown:
        shown.add_task("trace and passes", total=12, completed=10, info="tiny")
        compiling(shown)(3, 53, "p2_inferred.stage_1.of_microbatch_7")
    err = capsys.readouterr().err
    assert "10/12" in err and "3/53" in err and "tiny" in err and "p2_inferred" in err
    assert max(map(len, err.splitlines())) <= columns


def test_json_has_no_nan() -> None:
    assert json.loads(as_json({"a": [1.5, math.nan], "b": (-math.inf, "NaN"), "c": True})) == {
        "a": [1.5, None],
        "b": [None, "NaN"],
        "c": True,
    }


def test_curves_without_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    print_losses({"losses": [3.0, math.nan, math.inf, 1.0], "losses_plain": [3.0, math.nan, math.inf, 1.0]})
    lines = capsys.readouterr().out.splitlines()
    assert "nan" in lines[2] and "inf" in lines[3] and lines[4].endswith(" o")


# Folders.


def test_links_stay(tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to("far")
    for text in ("a", "b"):
        write_folder(str(link), [("file", text)])
        assert link.is_symlink() and (tmp_path / "far" / "file").read_text() == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["far", "out"]


def test_the_folder_where_we_are_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "out" / "inside"
    inside.mkdir(parents=True)
    (tmp_path / "out" / report_files.MARKER).touch()
    monkeypatch.chdir(inside)
    for folder in (".", ".."):
        with pytest.raises(FileExistsError, match="is where you are and cannot be replaced; choose a folder inside"):
            check_folder(folder)
    check_folder("new")


def test_folders_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: Path(path).name == "out")
        with pytest.raises(FileExistsError, match="is a mount point and cannot be replaced"):
            check_folder(str(tmp_path / "out"))
    with pytest.raises(MpmdError, match=r"cannot write in /proc: .*; choose another folder"):
        check_folder("/proc/far/out")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a place where nobody can write")
@pytest.mark.parametrize(
    "call",
    [("run", "--out", "/proc/out"), ("run", "--processes", "2", "--out", "/proc/out"), ("compile", "-o", "/proc/a")],
)
def test_commands_check_the_place_before_the_work(call: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    result = runner(capsys)(call[0], "there_is_no_such_program.py", *call[1:])
    assert (result.status, result.out) == (2, "") and "error: cannot write in /proc: " in result.err


def test_what_was_there_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_folder(str(out), [("file", "old")])
    rename = os.rename

    def failing(a: str, b: str) -> None:
        if Path(b) == out and not a.endswith(".old"):
            raise OSError(16, "Device or resource busy", a)
        rename(a, b)

    monkeypatch.setattr(os, "rename", failing)
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    with pytest.raises(OSError, match="busy"):
        write_folder(str(out), [("file", "new")])
    assert (out / "file").read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_any_trouble_with_files_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard(Path("/dev/null/x").stat) == 2
    assert capsys.readouterr().err == "error: /dev/null/x: not a directory\n"
    assert guard(Path("a" * 999).stat) == 2
    assert capsys.readouterr().err.endswith("a: file name too long\n")


PASSES = [sys.executable, "-m", "mpmd_trace_cli.entry", "passes"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(PASSES, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and done.stderr == "error: no space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of files")
def test_a_disk_that_has_room_for_the_beginning(tmp_path: Path) -> None:
    script = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)); sys.argv[1:] = ['passes']"
    )
    call = [sys.executable, "-c", f"{script}; runpy.run_module('mpmd_trace_cli.entry', run_name='__main__')"]
    for unbuffered in ("", "1"):
        with (tmp_path / "out").open("w") as out:
            environment = os.environ | {"PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(call, stdout=out, stderr=subprocess.PIPE, text=True, check=False, env=environment)
        assert done.returncode == 2 and done.stderr == "error: file too large\n"


def test_a_stream_that_takes_a_part_at_a_time() -> None:
    taken = bytearray()

    class Slow(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            taken.extend(data[:3])
            return min(len(data), 3)

    write_stream(io.TextIOWrapper(cast(BinaryIO, Slow()), "utf-8", write_through=True), "a → b, and more\n")
    assert taken.decode() == "a → b, and more\n"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX closes the streams")
@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        ("passes >&-", 2, "error: bad file descriptor\n"),
        ("passes <&-", 0, ""),
        ("opt - <&-", 2, "error: bad file descriptor\n"),
    ],
)
def test_streams_that_are_closed(call: str, status: int, message: str) -> None:
    command = f"{shlex.join(PASSES[:-1])} {call}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == status and done.stderr == message


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="there is no /dev/stdout")
def test_the_name_of_an_open_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("before\n")
    call = [*PASSES[:-1], "opt", "-", "-o", "/dev/stdout"]
    with (tmp_path / "out").open("a") as out:
        subprocess.run(call, input="module {}", stdout=out, text=True, check=True)
    assert (tmp_path / "out").read_text() == "before\nmodule {\n}\n"
    assert subprocess.run(call, input="module {}", capture_output=True, text=True, check=True).stdout == "module {\n}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", TINY, "--save"),
        ("compile", TINY, "-o"),
        ("bisect", TINY, "-o"),
        ("schedule", "search", "--meshes", "2", "--microbatches", "4", "-o"),
    ],
)
def test_where_nothing_can_be_written_is_told_before_the_work(
    command: Command, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file" / "x.csv")
    for path in (tmp_path, tmp_path / "file" / "x.csv", tmp_path / "link"):
        result = command(*arguments, str(path))
        assert result.status == 2 and result.out == ""
        assert len(result.err.splitlines()) == 1 and result.err.startswith(f"error: cannot write {path}: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bisect", TINY, "--tolerance", "nan"), "--tolerance is nan; it must be a number from 0 on"),
        (("schedule", "show", "1f1b", "-p", "2", "-m", "2", "--width", "nan"), "--width is nan; it must be a number"),
        (("explore", TINY, "--serve", "--port", "99999"), "65535"),
        (("launch", "--devices", "0", TINY), "--devices is the number of CPU devices of each process, at least 1"),
        (("launch", "--timeout", "inf", TINY), "--timeout is a positive number of seconds, not inf"),
    ],
)
def test_numbers_out_of_range(command: Command, arguments: tuple[str, ...], message: str) -> None:
    result = command(*arguments)
    assert result.status == 2 and result.out == ""
    assert message in " ".join(result.err.replace("│", " ").split()) and "Traceback" not in result.err


# Programs that are not what they seem.


def test_programs_that_cannot_be_imported(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    (tmp_path / "broken").mkdir()
    texts = {
        "syntax.py": ("def f(:\n", "syntax.py:1:7: error: cannot read the program: invalid syntax"),
        "raises.py": ("x = 1\nx / 0\n", "raises.py:2:1: error: the program raised ZeroDivisionError"),
        "empty.py": ("x = 1\n", "should define `program = mpmd_trace.Program(fn, args, config)`"),
        "quits.py": ("import sys\nsys.exit(0)\n", "quits.py:2:1: error: the program ended itself with sys.exit(0)"),
        "needs.py": ("\ndef program(width, *, depth): ...\n", "needs.py:2: error: 'program' makes the program and is"),
        "zero.py": ("x\0 = 1\n", "zero.py:1:1: error: cannot read the program: source code"),
        "pack/rel.py": ("from . import x\n", "name it as pack.rel:program"),
        "broken/__init__.py": ("x = 1\nimport no_such_library\n", ""),
        "notes.txt": ("x", "notes.txt is not a Python file"),
    }
    for name, (text, message) in texts.items():
        (tmp_path / name).write_text(text)
        if message:
            result = command("show", name)
            status = {"needs.py": 1, "notes.txt": 2, "empty.py": 2}.get(name, 3)
            assert result.status == status and message in result.err and "Traceback" not in result.err, result.err
            assert result.out == ""
    result = command("show", "broken.steps:program")
    assert "broken/__init__.py:2:1: error: the program raised ModuleNotFoundError" in result.err
    result = command("show", "needs.py")
    assert "missing a required argument: 'width'; give them defaults" in result.err


def test_the_innermost_place_of_the_user(command: Command, tmp_path: Path) -> None:
    (tmp_path / "helper_of_ours.py").write_text("def f():\n    return 1 / 0\n")
    (tmp_path / "main.py").write_text("import helper_of_ours\nhelper_of_ours.f()\n")
    result = command("show", str(tmp_path / "main.py"))
    assert result.status == 3 and "helper_of_ours.py:2:1: error: the program raised ZeroDivisionError" in result.err


def test_control_c(tmp_path: Path) -> None:
    """It ends at once, whatever runs in other threads, and writes nothing."""
    (tmp_path / "program.py").write_text(
        "import os, signal, threading, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs behind ignore it\n"
        "threading.Thread(target=time.sleep, args=(1200,)).start()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(1200)\n"
    )
    call = [sys.executable, "-m", "mpmd_trace_cli.entry", "run", str(tmp_path / "program.py")]
    call += ["--out", str(tmp_path / "out")]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not (tmp_path / "out").exists()
