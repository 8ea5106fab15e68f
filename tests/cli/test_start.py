"""Commands that need no jax start without it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: What takes long to import.
HEAVY = ("jax", "jaxlib", "numpy", "scipy", "matplotlib", "equinox", "pydantic", "rich", "typer")


def _loaded(arguments: list[str]) -> list[str]:
    code = (
        "import sys\n"
        "from mpmd_trace_cli.entry import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    found: list[str] = eval(done.stderr)
    return found


@pytest.mark.parametrize(
    "arguments", [["opt", "--help"], ["passes"], ["passes", "--json"], ["passes", "mpmd-call-inline"]]
)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    assert _loaded(arguments) == []


def test_interrupts_are_caught_before_anything_is_imported() -> None:
    code = (
        "import os, sys, __future__\nbefore = set(sys.modules)\nimport mpmd_trace_cli.entry\n"
        "assert set(sys.modules) - before == {'mpmd_trace_cli', 'mpmd_trace_cli.entry'}\n"
        "def interrupt(event, arguments):\n"
        "    if event == 'import': raise KeyboardInterrupt\n"
        "sys.addaudithook(interrupt)\nmpmd_trace_cli.entry.main(['opt', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("option", ["--version", "-h"])
def test_options_of_all_commands(option: str) -> None:
    done = subprocess.run([sys.executable, "-m", "mpmd_trace", option], capture_output=True, text=True, check=True)
    assert ("mpmd-trace 0.1.0 (jax " if option == "--version" else "Usage: mpmd-trace") in done.stdout


def test_parsing_needs_no_jax() -> None:
    code = "import sys, mpmd_trace\nprint(mpmd_trace.compiler.parse('module {}'))\nassert 'jax' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_step_of_one_process_needs_nothing_of_several() -> None:
    code = (
        "import sys, jax, numpy as np, mpmd_trace\n"
        "mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('x',))\n"
        "config = mpmd_trace.make_config({'a': mesh}, {'f': 'a'})\n"
        "step = mpmd_trace.jit(mpmd_trace.named_computation(lambda x: x + 1, name='f'), config)\n"
        "assert step(np.ones(3, np.float32)).tolist() == [2, 2, 2]\n"
        "print(*(name for name in sys.modules if 'backend.distribution' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "mpmd_trace", "passes", "--json"], capture_output=True, check=True)
    assert b'"mpmd-call-inline"' in done.stdout
    wrong = subprocess.run([sys.executable, "-m", "mpmd_trace", "pases"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "No such command 'pases'" in wrong.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ex", "explore explain"), ("schedule show zb-h", "zb-h1 zb-h2"), ("passes mpmd-call", "mpmd-call-inline")],
)
def test_shells_complete(typed: str, offered: str) -> None:
    words = {"COMP_WORDS": f"mpmd-trace {typed}", "COMP_CWORD": str(typed.count(" ") + 1)}
    asked = {"_MPMD_TRACE_COMPLETE": "complete_bash", **words}
    code = "from mpmd_trace_cli.entry import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **asked}
    )
    assert set(offered.split()) <= set(done.stdout.split()), done.stderr
    assert all(word.startswith(typed.split()[-1]) for word in done.stdout.split())
