"""How processes join a job: what their variables mean, and where the coordination service is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import pytest

from mpmd_trace.api import processes
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.jax_compat.coordination_service import NotStarted, ServiceProcess
from mpmd_trace.jax_compat.distributed import _Call

VARIABLES = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "2"}


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What `initialize` asks JAX for, which it does not get here."""
    calls: list[tuple[object, ...]] = []

    class Stopped(Exception): ...

    def join(*given: object, local_device_ids: object, **rest: object) -> None:
        calls.append((*given, local_device_ids))
        raise Stopped

    from mpmd_trace.jax_compat import distributed

    ours = ("JAX_COORD", "JAX_NUM_PROC", "JAX_PROC", "JAX_LOCAL_DEVICE_IDS", "MPMD_TRACE_")
    theirs = ("SLURM", "OMPI", "LOCAL_RANK", "TORCHELASTIC_", "MASTER_", "WORLD_SIZE", "RANK")
    for name in [n for n in os.environ if n.startswith((*ours, *theirs))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(distributed, "backends_are_initialized", lambda: False)
    monkeypatch.setattr(distributed, "join", join)
    return calls


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, ("10.0.0.1:29500", 4, 2, None)),
        # torchrun listens at the port itself, and has a process for each device
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_RANK": "1"}, ("10.0.0.1:29501", 4, 2, [1])),
        ({"LOCAL_RANK": "1", "JAX_LOCAL_DEVICE_IDS": "0,1"}, ("10.0.0.1:29500", 4, 2, None)),
        ({"MASTER_ADDR": "fd00::1", "JAX_COORDINATOR_PORT": "1234"}, ("[fd00::1]:1234", 4, 2, None)),
        # those of JAX say more
        (
            {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "0", "LOCAL_RANK": "1"},
            ("h:1", 3, 0, None),
        ),
    ],
)
def test_variables_of_torchrun(
    more: Mapping[str, str],
    wanted: tuple[object, ...],
    joined: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**VARIABLES, **more}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match=r"^$"):
        processes.initialize()
    assert joined == [wanted]


def test_a_platform_on_which_no_arrays_go_between_processes(
    joined: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as macOS: an error at once, not when the first program is compiled."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "jax.experimental.transfer", None)
    monkeypatch.delattr(jax.experimental, "transfer", raising=False)
    with pytest.raises(MpmdError, match="in jaxlib for Linux only; use one process"):
        processes.initialize()
    assert joined == []


def test_torchrun_with_one_process_or_without_all_variables(
    joined: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert processes.initialize() == 1
    monkeypatch.setenv("WORLD_SIZE", "four")
    with pytest.raises(MpmdError, match=r"the environment variable WORLD_SIZE must be a number .*, not 'four'"):
        processes.initialize()
    monkeypatch.delenv("RANK")  # as where a script sets the others for all processes
    assert processes.initialize() == 1
    assert joined == []


@pytest.mark.skipif(not hasattr(signal, "SIGRTMAX"), reason="no such signals")
def test_a_thread_that_is_left_in_cpp_does_not_come_back() -> None:
    """When the others come after all while Python is finalized, that would end the process with SIGABRT."""
    source, sink = os.pipe()
    is_back = threading.Event()

    def wait() -> None:
        os.read(source, 1)
        is_back.set()

    call = _Call(wait)
    assert not call.is_done(0.1)
    call.park()
    os.write(sink, b"x")
    assert not is_back.wait(0.5)


def _is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not list its connections")
def test_the_service_outlives_process_0_while_others_are_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = (
        "from mpmd_trace.jax_compat.coordination_service import ServiceProcess as S; "
        f"s = S('127.0.0.1:{port}', 2, recoverable=True); print(s._process.pid, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as first:
        assert first.stdout is not None
        pid = int(first.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as other:
            first.send_signal(signal.SIGKILL)
            first.wait()
            os.kill(pid, signal.SIGTERM)  # what clusters send to all processes of a job
            time.sleep(1.0)
            assert _is_running(pid)
            other.sendall(b"hello")
        until = time.monotonic() + 60.0
        while _is_running(pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert not _is_running(pid)


def test_an_address_that_is_taken_is_an_error_of_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotStarted) as caught:
            ServiceProcess(f"127.0.0.1:{port}", 2)
        assert (caught.value.address, caught.value.why) == (f"127.0.0.1:{port}", "")
        env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": "0"}
        done = subprocess.run(
            [sys.executable, "-c", "import mpmd_trace; mpmd_trace.initialize()"],
            env={**env, **variables, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert f"process 0 cannot listen at 127.0.0.1:{port}, the address of the coordinator" in done.stderr


def test_a_service_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its process finds jaxlib where this one does, here a broken one."""
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").write_text("raise ImportError('no GLIBC')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotStarted) as caught:
        ServiceProcess("127.0.0.1:0", 2)
    assert caught.value.why == "ImportError: no GLIBC"


def test_a_service_that_ends_is_no_zombie_and_one_that_goes_on_no_leak() -> None:
    code = """
import os, signal, time
from mpmd_trace.jax_compat.coordination_service import ServiceProcess
first, second = ServiceProcess("127.0.0.1:0", 2), ServiceProcess("127.0.0.1:0", 2)
pid = first._process.pid
del first
os.kill(pid, signal.SIGKILL)
until = time.monotonic() + 60
while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
    time.sleep(0.01)
print(os.path.exists(f"/proc/{pid}"))
"""
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
