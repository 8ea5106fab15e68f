"""`make` sets up the environment once, and again when it would not work or not be the one asked for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: Stands for an interpreter: makes environments of itself and installs nothing.
PYTHON = """#!/bin/sh
for last; do :; done
case "$*" in
  --version) echo "Python {version}" ;;
  "-c import pip"*) exit {no_pip} ;;
  -c*) exit {old} ;;
  "-m venv"*) mkdir -p "$last/bin" && cp "$0" "$last/bin/python" && cp "$last/../command" "$last/bin/mpmd-trace" ;;
  *" -r /dev/stdin pip") cat; exit {no_network} ;;
  *" -r /dev/stdin") cat ;;
  "-m pip"*) echo "$0 pip $*" ;;
  "-m pytest"*) echo "bytecode is ${{PYTHONDONTWRITEBYTECODE-kept}}" ;;
esac
"""


def _interpreter(folder: Path, name: str, version: str, old: int = 0, no_pip: int = 0, no_network: int = 0) -> None:
    (folder / name).write_text(PYTHON.format(version=version, old=old, no_pip=no_pip, no_network=no_network))
    (folder / name).chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as far as `make` is concerned."""
    here = tmp_path / "a place"
    here.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, here / name)
    _interpreter(here, "python3", "3.11.7")
    _interpreter(here, "newer", "3.12.1")
    _interpreter(here, "older", "3.9.2", old=1)
    (here / "command").write_text('#!/bin/sh\necho ran "$@"\n')
    (here / "command").chmod(0o755)
    return here


def _make(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _sets_up(folder: Path, *arguments: str) -> bool:
    done = _make(folder, "setup", *arguments)
    assert done.returncode == 0, done.stderr
    return "== setting up" in done.stdout


def test_set_up_once(folder: Path) -> None:
    assert _sets_up(folder)
    assert not _sets_up(folder)
    assert not _sets_up(folder, "PYTHON=./python3")


def test_set_up_anew(folder: Path, tmp_path: Path) -> None:
    assert _sets_up(folder)
    moved = folder.rename(tmp_path / "another place")
    assert _sets_up(moved), "what is installed points to the old place"
    assert not _sets_up(moved)
    assert _sets_up(moved, "PYTHON=./newer"), "another version is asked for"
    assert not _sets_up(moved, "PYTHON=./newer") and not _sets_up(moved)
    (moved / ".venv/bin/python").unlink()
    assert _sets_up(moved), "the interpreter is gone"
    (moved / ".venv/.installed").unlink()
    assert _sets_up(moved), "setting up was interrupted"


@pytest.mark.parametrize(("python", "what"), [("./older", "Python 3.9.2"), ("./nowhere", "not there")])
def test_no_python(folder: Path, python: str, what: str) -> None:
    assert _sets_up(folder)
    done = _make(folder, "demo", f"PYTHON={python}")
    assert done.returncode != 0
    message = f"mpmd_trace needs Python 3.11 or newer; {python} is {what}. Try: make PYTHON=python3.12 demo"
    assert message in done.stderr
    assert not _sets_up(folder), "the environment stays as it is"


def test_the_demo_installs_what_it_needs_alone(folder: Path) -> None:
    first = _make(folder, "demo").stdout
    marked = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[-7:-1] == " demo "]
    assert {line for line in first.splitlines() if " demo " in line} == set(marked)
    assert "ran run examples/char_gpt.py" in first
    assert "setting up" not in _make(folder, "demo").stdout
    assert _sets_up(folder), "tests need more"
    again = _make(folder, "demo").stdout
    assert "setting up" not in again and "ran run examples/char_gpt.py" in again


def test_tests_do_not_build_on_an_environment_of_the_demo_that_is_stale(folder: Path, tmp_path: Path) -> None:
    def is_made_anew(folder: Path, *arguments: str) -> bool:
        return "--clear" in _make(folder, "setup", *arguments).stdout

    assert _make(folder, "demo").returncode == 0
    moved = folder.rename(tmp_path / "another place")
    assert is_made_anew(moved), "it points to the old place"

    shutil.rmtree(moved / ".venv")
    assert _make(moved, "demo").returncode == 0
    assert is_made_anew(moved, "PYTHON=./newer"), "another version is asked for"

    shutil.rmtree(moved / ".venv")
    _interpreter(moved, "python3", "3.11.7", no_network=1)
    assert _make(moved, "demo").returncode != 0
    assert is_made_anew(moved, "PYTHON=./newer"), "neither was set up"

    shutil.rmtree(moved / ".venv")
    _interpreter(moved, "python3", "3.11.7")
    assert _make(moved, "demo").returncode == 0
    assert not is_made_anew(moved), "what the demo has installed stays"


def test_the_demo_does_not_start_when_a_part_of_it_was_not_installed(folder: Path) -> None:
    _interpreter(folder, "python3", "3.11.7", no_network=1)
    done = _make(folder, "demo")
    assert done.returncode != 0 and "ran run" not in done.stdout
    _interpreter(folder, "python3", "3.11.7")
    assert "ran run" in _make(folder, "demo").stdout


def test_a_pip_that_is_there_installs_and_else_that_of_the_environment(folder: Path) -> None:
    there = _make(folder, "setup").stdout
    assert "-m venv  --without-pip .venv" in there
    assert f"{folder}/python3 pip -m pip --python .venv/bin/python install" in there
    _interpreter(folder, "python3", "3.11.7", no_pip=1)
    (folder / ".venv/.installed").unlink()
    new = _make(folder, "setup").stdout
    assert "--without-pip" not in new and ".venv/bin/python pip -m pip install" in new


def test_uv_installs_where_it_is(folder: Path) -> None:
    (folder / "uv").write_text('#!/bin/sh\necho uv "$@"\n')
    (folder / "uv").chmod(0o755)
    done = _make(folder, "setup")
    assert "uv pip install --python .venv/bin/python -c constraints.txt pip -e .[test]" in done.stdout, done.stdout
    assert "-m pip" not in done.stdout


def test_processes_of_tests_need_not_compile_what_they_import(folder: Path) -> None:
    assert "bytecode is kept" in _make(folder, "pytest", PYTHONDONTWRITEBYTECODE="1").stdout
