"""How jobs end: `ends.py KIND VICTIM FOLDER` is a process of one; without arguments, jobs that succeed, and how often.

Kinds: `late` (it comes to its end 2 s after the others), `alone` (it does not join), `exit` (with status 3, while the
others wait in JAX), `raise`, `leave` (with status 0, while they wait), `kill` (before JAX knows its devices), `save`
(it cannot save, catches that and exits with status 3, while the others wait in orbax).

PYTHONPATH=tests/processes python -m ends --runs 50
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

PROCESSES = 3


def process(kind: str, victim: int, folder: str) -> None:
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    import mpmd_trace as mt

    if kind == "alone":
        alone(victim)
        return
    mt.initialize()
    me = int(os.environ["JAX_PROCESS_ID"])
    if kind == "kill" and me == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    x = jax.numpy.full(3, me)
    assert mt.fetch(x).sum() == 3 * me
    if kind == "late":
        time.sleep(2 * (me == victim))
    elif kind == "save":
        save(me == victim, os.path.join(folder, "state"), x)
    elif me != victim:
        sync_global_devices("nobody else comes")
    elif kind == "exit":
        sys.exit(3)
    elif kind == "raise":
        raise ValueError("no more of this")


def alone(victim: int) -> None:
    import mpmd_trace as mt

    if int(os.environ["JAX_PROCESS_ID"]) == victim:
        return
    try:
        mt.initialize()
    except mt.PeerError as error:
        print(f"caught of {error.process}: {error}", flush=True)
        sys.exit(5)
    finally:
        print("finally", flush=True)


def save(fails: bool, path: str, x: Any) -> None:
    import mpmd_trace as mt
    from mpmd_trace.api import saving

    if fails:

        class Full:
            def __enter__(self) -> Full:
                return self

            def __exit__(self, *error: object) -> None: ...

            def save(self, path: str, arrays: Any) -> None:
                raise OSError(28, "No space left on device")

        saving._checkpointer = Full
    try:
        mt.save(path, {"x": x})
    except mt.MpmdError as error:
        print(f"caught: {error}", flush=True)
        sys.exit(3)


def plainly(kind: str, victim: int, folder: str = "", timeout: float = 60.0) -> list[tuple[int, str]]:
    """The status of each process of a job that no launcher has started, and what it has printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    env |= {"JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(PROCESSES)}
    env |= {"MPMD_TRACE_TIMEOUT": f"{timeout:g}"}
    command = [sys.executable, __file__, kind, str(victim), folder]
    running = [
        subprocess.Popen(command, env={**env, "JAX_PROCESS_ID": str(n)}, stdout=-1, stderr=subprocess.STDOUT, text=True)
        for n in range(PROCESSES)
    ]
    try:
        printed = [one.communicate(timeout=600)[0] for one in running]
    finally:
        for one in running:
            one.kill()
    return [(one.returncode, text) for one, text in zip(running, printed, strict=True)]


def launched(kind: str, victim: int, folder: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """The same job by `mpmd-trace launch`."""
    command = [sys.executable, "-m", "mpmd_trace_cli.entry", "launch", "-n", str(PROCESSES), "--devices", "1"]
    command += ["--timeout", f"{timeout:g}", __file__, kind, str(victim), folder]
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    wanted = parser.parse_args(arguments)
    good = 0
    for run in range(wanted.runs):
        found = plainly("late", run % (PROCESSES + 1))  # or none of them
        statuses = [status for status, _ in found]
        good += not any(statuses)
        print(f"{run}: {statuses}", *(text for status, text in found if status), flush=True)
    print(f"{good} of {wanted.runs} jobs ended with status 0 in all processes")
    sys.exit(good < wanted.runs)


if __name__ == "__main__":
    if len(sys.argv) == 4 and "JAX_PROCESS_ID" in os.environ:
        process(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1:])
