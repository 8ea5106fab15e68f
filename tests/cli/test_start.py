"""Commands that need no jax start without it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: What takes long to import.
HEAVY = ("jax", "jaxlib", "numpy", "scipy", "matplotlib", "equinox", "pydantic", "rich", "typer")


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\n"
        "from mpmd_trace_cli.entry import main\n"
        "for call in ('opt --help', 'passes', 'passes --json', 'passes mpmd-call-inline'):\n"
        "    try: main(call.split())\n"
        "    except SystemExit as stop: assert not stop.code, (call, stop.code)\n"
        f"    print(call, [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 4 and all(line.endswith(" []") for line in done.stderr.splitlines())


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


@pytest.mark.parametrize(
    ("argument", "status", "text"),
    [
        ("--version", 0, "mpmd-trace 0.1.0 (jax "),
        ("-h", 0, "Usage: mpmd-trace"),
        ("passes", 0, "mpmd-call-inline"),
        ("pases", 2, "No such command 'pases'"),
    ],
)
def test_the_package_is_the_command(argument: str, status: int, text: str) -> None:
    done = subprocess.run([sys.executable, "-m", "mpmd_trace", argument], capture_output=True, text=True, check=False)
    assert done.returncode == status and text in (done.stderr if status else done.stdout)


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


def test_shells_complete() -> None:
    offered = {"ex": "explore explain", "schedule show zb-h": "zb-h1 zb-h2", "passes mpmd-call": "mpmd-call-inline"}
    code = (
        "import os\nfrom mpmd_trace_cli.entry import main\n"
        f"for typed in {[*offered]!r}:\n"
        "    os.environ.update(COMP_WORDS=f'mpmd-trace {typed}', COMP_CWORD=str(typed.count(' ') + 1))\n"
        "    try: main([])\n"
        "    except SystemExit: print('---')\n"
    )
    env = {**os.environ, "_MPMD_TRACE_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    for (typed, wanted), told in zip(offered.items(), done.stdout.split("---")[:-1], strict=True):
        assert set(wanted.split()) <= set(told.split()), done.stderr
        assert all(word.startswith(typed.split()[-1]) for word in told.split())
