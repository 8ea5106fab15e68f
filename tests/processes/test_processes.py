"""Programs over several processes, started by `mpmd-trace launch`."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doc_programs import READING_LITTLE, blocks, run
from util import nightly

HERE = Path(__file__).parent
#: Nothing here may hang: whatever takes longer, also on a busy machine, has failed.
SECONDS, PATIENCE = 1200, 600


#: The devices of processes that are started otherwise.
TWO = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}


def command(*arguments: object, timeout: float = SECONDS, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run `mpmd-trace`."""
    words = [sys.executable, "-m", "mpmd_trace_cli.entry", *map(str, arguments)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    env.update((k, str(v)) for k, v in variables.items())
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=env)


def launch(*arguments: object, **variables: object) -> subprocess.CompletedProcess[str]:
    return command("launch", *arguments, **variables)


def checks() -> list[str]:
    """Return the names of the functions of `together.py` and `together_files.py` that check something."""
    trees = [ast.parse((HERE / file).read_text(encoding="utf-8")) for file in ("together.py", "together_files.py")]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if any(isinstance(d, ast.Name) and d.id == "check" for d in f.decorator_list)]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return launch("-n", 2, "--devices", 4, "--timeout", PATIENCE, HERE / "together.py", FOLDER=folder)


@pytest.mark.parametrize("name", checks())
def test_two_processes_are_as_good_as_one(together: subprocess.CompletedProcess[str], name: str) -> None:
    passed = re.findall(rf"^\[(\d)\] passed {name}$", together.stdout, re.MULTILINE)
    assert sorted(passed) == ["0", "1"], together.stderr[-3000:]


def test_generated_plans_end_with_the_values_of_one_process() -> None:
    """Some of those that `make deadlocks` checks, on the runtime; with meshes over processes, and copies in them."""
    seeds = [4, 24, 31]
    done = launch("-n", 3, "--devices", 8, "--timeout", PATIENCE, HERE / "generated.py", *seeds)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(re.findall(r"^\[\d\] carried out (\d+)$", done.stdout, re.MULTILINE)) == ["3"] * 3


def test_nothing_else_is_printed(together: subprocess.CompletedProcess[str]) -> None:
    assert together.returncode == 0
    assert together.stderr == ""


def test_run_compares_processes_with_one(tmp_path: Path) -> None:
    program = tmp_path / "joined.py"
    tiny = (HERE.parent / "programs" / "tiny.py").read_text()
    program.write_text(f"{tiny}\n\nmpmd_trace.initialize()\n")
    done = command("run", program, "--processes", 2, "--out", tmp_path / "out", "--json", **TWO)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["gradient_error"] < 1e-6
    assert report["losses"] == pytest.approx(report["losses_plain"], rel=1e-6)
    assert (tmp_path / "out" / "timeline.svg").exists()


def test_a_signal_to_one_process_ends_run(tmp_path: Path) -> None:
    program = tmp_path / "ended.py"
    tiny = (HERE.parent / "programs" / "tiny.py").read_text()
    end = (
        "import os, signal, time\nif jax.process_index():\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(1)"
    )
    program.write_text(f"{tiny}\n\nmpmd_trace.initialize()\n{end}\n")
    done = command("run", program, "--processes", 2, "--out", tmp_path / "out", **TWO)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "process 1 was ended by SIGTERM" in done.stderr


def test_run_refuses_processes_that_have_not_joined(tmp_path: Path) -> None:
    program = HERE.parent / "programs" / "tiny.py"
    out = tmp_path / "out"
    done = command("run", program, "--processes", 2, "--out", out, **{**TWO, "JAX_NUM_CPU_DEVICES": 4})
    assert done.returncode == 1 and not out.exists()
    lines = [line for line in done.stderr.splitlines() if "2 processes of this script were started" in line]
    assert all("tiny.py" in line and "Call mpmd_trace.initialize() at the start" in line for line in lines) and lines


def test_the_program_of_the_docs(tmp_path: Path) -> None:
    text = (HERE.parents[1] / "docs" / "processes.md").read_text()
    script = tmp_path / "script.py"
    script.write_text(re.findall(r"```python\n(.*?)```", text, re.S)[0])
    done = launch("-n", 2, "--devices", 1, "--log-dir", tmp_path / "logs", script)
    assert done.returncode == 0, done.stderr
    values = (tmp_path / "logs" / "0.log").read_text().split()
    assert len(values) == 3
    assert (tmp_path / "logs" / "1.log").read_text().split() == values
    assert run(script.read_text(), tmp_path).split() == values


def test_each_process_reads_its_part_of_the_data_as_in_the_docs(tmp_path: Path) -> None:
    """Also one without a device of the mesh that reads the batch."""
    pytest.importorskip("grain")
    first, grain, parts = blocks("docs/data.md")
    alone = 'jax.config.update("jax_num_cpu_devices", 2)'
    assert alone in first
    loader = grain[: grain.index("def save(")].replace(*READING_LITTLE)
    script = tmp_path / "script.py"
    script.write_text(
        "\n".join([first.replace(alone, "mt.initialize()"), loader, parts, "print(holders, iterator is None)"])
    )
    done = launch("-n", 2, "--devices", 1, script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] [0] False", "[1] [0] True"]


def test_the_launcher_needs_no_jax_and_a_script_runs_once_where_there_are_no_restarts(tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text('print("hello")\n')
    call = ["launch", "-n", "1", "--restarts", "-1", str(script)]
    code = f"import sys, mpmd_trace_cli.entry as it\ntry: it.main({call})\nfinally: assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0] hello\n", "")


def test_more_processes_than_devices(tmp_path: Path) -> None:
    """As when the devices are divided among the processes: a message, where jaxlib crashes."""
    script = tmp_path / "script.py"
    divided = 'jax.config.update("jax_num_cpu_devices", 1 // mpmd_trace.initialize())'
    script.write_text(f"import jax, mpmd_trace\n{divided}\njax.devices()\n")
    done = launch("-n", 2, script)
    assert done.returncode == 1
    assert "this process has no device (jax_num_cpu_devices is 0): start at most as many processes as" in done.stderr


@pytest.mark.parametrize("logs", [False, True])
def test_a_job_whose_output_nobody_reads_does_not_hang(tmp_path: Path, logs: bool) -> None:
    script = tmp_path / "talk.py"
    script.write_text('for i in range(20000):\n    print(i, "x" * 100)\n')
    options = ["--log-dir", str(tmp_path / "logs")] if logs else []
    words = [sys.executable, "-m", "mpmd_trace_cli.entry", "launch", "-n", "2", *options, str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(timeout=SECONDS)
    if logs:  # it goes on for them
        assert process.returncode == 0, said
        assert all((tmp_path / "logs" / f"{n}.log").read_bytes().count(b"\n") == 20000 for n in (0, 1))
    else:  # as without the launcher
        assert process.returncode == 1 and b"] BrokenPipeError: " in said


@pytest.mark.parametrize("status", [nightly(0), 3])
def test_who_ends_too_early_is_noticed_at_once_and_keeps_its_status(tmp_path: Path, status: int) -> None:
    script = tmp_path / "early.py"
    script.write_text(
        f"""
import atexit, os, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh
import mpmd_trace as mt

if os.environ["JAX_PROCESS_ID"] == "1":
    atexit.register(time.sleep, 2.0)  # the last that it does: the others end with 1 before that, if they may
mt.initialize(timeout=200)
meshes = {{f"m{{i}}": Mesh(np.array([d]), ("x",)) for i, d in enumerate(jax.devices())}}

def step(x):
    for i in range(3):
        x = mt.named_computation(jnp.tanh, name=f"f{{i}}")(x)
    return x

step = mt.jit(step, mt.make_config(meshes, {{f"f{{i}}": f"m{{i}}" for i in range(3)}}))
x = np.ones((4, 4), np.float32)
for number in range(3):
    if number == 2 and jax.process_index() == 1:
        sys.exit({status})
    try:
        jax.block_until_ready(step(x))
    except mt.errors.PeerError as error:
        print(f"told of {{error.process}}: {{error}}".replace("\\n", " | "), flush=True)
        if {status}:
            raise
"""
    )
    done = launch("-n", 3, "--devices", 1, script)
    said = done.stdout + done.stderr
    why = f"ended with status {status}" if status else "has ended, and process 2 has waited to receive"
    # One that waits for the value gets an error; the other one, which does not, may hear of it then or at its end.
    assert f"[2] told of 1: error: process 2 cannot go on: process 1 {why}" in done.stdout, said
    assert f"error: process 0 cannot go on: process 1 {why}" in said, said
    assert "no sign of life" not in said and "for 200 s" not in said, "it was waited for"
    if status:
        assert "process 1 exited with status 3" in done.stderr and done.returncode == status, said
    else:
        assert "[1] mpmd_trace: error: process 1 cannot go on" in done.stderr and done.returncode in (0, 1), said


@pytest.mark.nightly
def test_what_is_fetched_slowly_comes_after_the_end_of_its_sender(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        """
import time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh
import mpmd_trace as mt
from mpmd_trace.backend.distribution import peers, transport

mt.initialize()
peers._AFTER_THE_END = 0.1
is_ready = transport._Arrival.is_ready

def slow(arrival):
    until = begun.setdefault(arrival, time.monotonic()) + 2.0
    return time.monotonic() > until and is_ready(arrival)

begun = {}
transport._Arrival.is_ready = slow
meshes = {f"m{i}": Mesh(np.array([d]), ("x",)) for i, d in enumerate(jax.devices())}

def step(x):
    made = mt.named_computation(lambda x: jnp.full((1000,), x), name="f0")(x)
    return mt.named_computation(lambda y: y + 1, name="f1")(made)

mt.jit(step, mt.make_config(meshes, {"f0": "m0", "f1": "m1"}))(np.float32(1))
"""
    )
    done = launch("-n", 2, "--devices", 1, script)
    assert (done.returncode, done.stderr) == (0, "")


def _launched(tmp_path: Path, code: str, *arguments: str) -> subprocess.Popen[bytes]:
    script = tmp_path / "script.py"
    script.write_text(code)
    words = [sys.executable, "-m", "mpmd_trace_cli.entry", "launch", *arguments, str(script)]
    # Below `nohup`, or in the background of a script, every process ignores hangups or interrupts. A `preexec_fn` would
    # fork, of which JAX warns.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        return subprocess.Popen(words, stdout=-1, stderr=-1, start_new_session=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_full_disk_for_logs_does_not_end_the_job(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "0.log").symlink_to("/dev/full")
    code = "for i in range(5): print('line', i)"
    with _launched(tmp_path, code, "-n", "2", "--log-dir", str(tmp_path / "logs")) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert out.count(b"[0] line") == out.count(b"[1] line") == 5
    assert err.count(b"0.log: No space left on device; process 0 goes on without a log") == 1
    assert (tmp_path / "logs" / "1.log").read_text().count("line") == 5


@pytest.mark.nightly
def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    code = "import sys\nfor _ in range(300): sys.stdout.write('x' * (1 << 20))\nprint('end')"
    size = most = 0
    with _launched(tmp_path, code, "-n", "1") as process:
        assert process.stdout is not None
        while part := process.stdout.read(1 << 20):
            size += part.count(b"x")
            last = part
            with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                most = max([most, *(int(line.split()[1]) for line in status if line.startswith("VmHWM"))])
    assert process.returncode == 0 and last.endswith(b"end\n")
    assert size == 300 << 20
    assert 0 < most < 600 << 10, f"{most >> 10} MiB; jaxlib alone takes 200"


@pytest.mark.parametrize(
    ("number", "is_early"), [(signal.SIGHUP, False), (signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_signals_end_all_processes_also_while_they_start(
    tmp_path: Path, number: signal.Signals, is_early: bool
) -> None:
    code = f"import os, time\nopen({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w').close()\ntime.sleep(600)"
    with _launched(tmp_path, code, "-n", "2") as process:
        until = time.monotonic() + (1.0 if is_early else SECONDS)  # while it loads jaxlib, or later
        while time.monotonic() < until and len(list(tmp_path.glob("*.pid"))) < 2:
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    assert is_early or process.returncode == 128 + number, err
    assert process.returncode != 0
    assert not [p for p in tmp_path.glob("*.pid") if os.path.exists(f"/proc/{p.stem}")], err
