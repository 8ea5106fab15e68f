"""How jobs end: `ends.py KIND VICTIM FOLDER` is a process of one; without arguments, jobs that succeed, and how often.

Kinds: `late` (it comes to its end 2 s after the others), `alone` (it does not join), `tardy` (it joins when the others
have given it up, and end), `exit` (with status 3, while the
others wait in JAX), `system` (the same without `sys.exit`), `raise`, `leave` (with status 0, while they wait), `kill`
(before JAX knows its devices), `save` (it cannot save, catches that and exits with status 3, while the others wait in
orbax), `tensors` (it cannot write safetensors, likewise).

PYTHONPATH=tests/processes python -m ends --runs 50 [--faults]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

PROCESSES = 3
#: The status of the victim, and what the others say of it.
FAULTS = {
    "exit": (3, "ended with status 3"),
    "system": (3, "ended with status 3"),
    "raise": (1, "ended with ValueError: no more of this"),
    "leave": (0, r"has ended, and process \d has waited in \S+ in \w+ for [\d.]+ s"),
    "kill": (-9, r"has ended without an error message \(it crashed, or was killed\)"),
    "save": (3, r"failed to save to \S+state: OSError: \[Errno 28\] No space left on device"),
    "tensors": (3, r"failed to save to \S+state: MpmdError: error: cannot save to \S+state: No space left on device"),
}
if sys.version_info < (3, 12):  # which does not tell
    del FAULTS["system"]


def process(kind: str, victim: int, folder: str) -> None:
    if kind in ("alone", "tardy"):
        alone(victim, folder, kind == "tardy")
        return

    import jax  # here: who does not come needs nothing
    from jax.experimental.multihost_utils import sync_global_devices

    import mpmd_trace as mt

    me = int(os.environ["JAX_PROCESS_ID"])
    say(folder, f"begins.{me}")
    until_said(folder, "begins", PROCESSES)
    mt.initialize()
    if kind == "kill" and me == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    x = jax.numpy.full(3, me)
    assert mt.fetch(x).sum() == 3 * me
    if kind == "late":
        time.sleep(2 * (me == victim))
    elif kind == "save":
        save(me == victim, os.path.join(folder, "state"), x)
    elif kind == "tensors":
        save_tensors(me == victim, os.path.join(folder, "state"), x)
    elif me != victim:
        sync_global_devices("nobody else comes")
    elif kind == "exit":
        sys.exit(3)
    elif kind == "system":
        raise SystemExit(3)
    elif kind == "raise":
        raise ValueError("no more of this")


def alone(victim: int, folder: str, comes: bool) -> None:
    import mpmd_trace as mt

    me = int(os.environ["JAX_PROCESS_ID"])
    if me != victim:
        say(folder, f"begins.{me}")
    elif not comes:
        return
    until_said(folder, "gave up" if me == victim else "begins", PROCESSES - 1)
    try:
        mt.initialize()
    except mt.errors.PeerError as error:
        print(f"caught of {error.process}: {error}", flush=True)
        if comes and me != victim:
            sys._at_the_very_end = _Slow()  # type: ignore[attr-defined]
            say(folder, f"gave up.{me}")
        sys.exit(5)
    finally:
        print("finally", flush=True)


def say(folder: str, what: str) -> None:
    open(os.path.join(folder, what), "w").close()


def until_said(folder: str, what: str, times: int) -> None:
    """Wait, so that what comes then is not early or late only because a process took longer to start."""
    while sum(name.startswith(what) for name in os.listdir(folder)) < times:
        time.sleep(0.01)


class _Slow:
    """Goes while Python is finalized, and takes its time."""

    def __del__(self, sleep: Any = time.sleep) -> None:
        sleep(10.0)


def save(fails: bool, path: str, x: Any) -> None:
    import mpmd_trace as mt
    from mpmd_trace.api.checkpoints import saving

    if fails:

        class Full:
            def __enter__(self) -> Full:
                return self

            def __exit__(self, *error: object) -> None: ...

            def save(self, path: str, arrays: Any) -> None:
                raise OSError(28, "No space left on device")

        saving.checkpointer_of_job = Full  # type: ignore[assignment]
    try:
        mt.save(path, {"x": x})
    except mt.MpmdError as error:
        print(f"caught: {error}", flush=True)
        sys.exit(3)


def save_tensors(fails: bool, path: str, x: Any) -> None:
    import mpmd_trace as mt
    from mpmd_trace.api.checkpoints import save_safetensors

    def write(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    if fails:
        save_safetensors.write = write  # type: ignore[assignment]
    try:
        mt.checkpoint.save_safetensors(path, {"x": x})
    except mt.MpmdError as error:
        print(f"caught: {error}", flush=True)
        sys.exit(3)


def plainly(kind: str, victim: int, folder: str, timeout: float = 60.0) -> list[tuple[int, str]]:
    """The status of each process of a job that no launcher has started, and what it has printed, in an empty folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
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


def faulty(kind: str, victim: int, *, by_launcher: bool, timeout: float = 12.0) -> list[str]:
    """Run a job with a fault; what is wrong with how it ends."""
    status, why = FAULTS[kind]
    with tempfile.TemporaryDirectory() as folder:
        if by_launcher:
            done = launched(kind, victim, folder, timeout)
            texts = [done.stdout + done.stderr] * PROCESSES
            wanted = 128 - status if status < 0 else status or 1  # that of the others, who cannot go on
            problems = [f"status {done.returncode}"] if done.returncode != wanted else []
        else:
            found = plainly(kind, victim, folder, timeout)
            texts = [text for _, text in found]
            problems = [f"process {victim} has status {found[victim][0]}"] if found[victim][0] != status else []
            problems += [f"process {p} has status {s}" for p, (s, _) in enumerate(found) if p != victim and s < 1]
    for p in set(range(PROCESSES)) - {victim}:
        if not re.search(rf"error: process {p} cannot go on: process {victim} {why}", texts[p]):
            problems.append(f"process {p} does not say why it ends")
    if kind in ("exit", "system", "raise", "leave") and not all(
        f in "".join(texts) for f in ("multihost_utils.py", "ends.py")
    ):
        problems.append("nobody says where it waits")
    return [*problems, *dict.fromkeys(texts)] if problems else []


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--faults", action="store_true", help="jobs that fail, with and without launcher")
    wanted = parser.parse_args(arguments)
    good = 0
    for run in range(wanted.runs):
        if wanted.faults:
            kind, victim, by_launcher = list(FAULTS)[run % len(FAULTS)], run // len(FAULTS) % PROCESSES, run % 2 == 0
            problems = faulty(kind, victim, by_launcher=by_launcher)
            name = f"{kind} {victim} {'launched' if by_launcher else 'plain'}"
        else:
            with tempfile.TemporaryDirectory() as folder:
                found = plainly("late", run % (PROCESSES + 1), folder)  # or none of them
            problems = [f"status {status}: {text}" for status, text in found if status]
            name = "success"
        good += not problems
        print(f"{run}: {name}: {'ok' if not problems else ' '.join(problems)}", flush=True)
    print(f"{good} of {wanted.runs} jobs ended as they should")
    sys.exit(good < wanted.runs)


if __name__ == "__main__":
    if len(sys.argv) == 4 and "JAX_PROCESS_ID" in os.environ:
        process(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1:])
