"""Faults at random instructions: every survivor must name the process at fault, in time, and nothing may be left.

PYTHONPATH=tests/processes python -m injections --runs 50 --seed 0
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
#: Seconds without a sign of life, and how much later an error may be on a busy machine.
TIMEOUT, LATE = 4.0, 6.0
KINDS = ("kill", "stop", "withhold", "fail", "delay", "leave", "cut", "bug")
#: Others, in which `faulty.py` is killed elsewhere, or has other trouble.
ELSEWHERE = ("start", "compile", "save", "restore", "end", "disk", "strangers")
HARMLESS = ("delay", "strangers")
WAITS = re.compile(
    r"receive %\d+ .* from mesh 'm\d' to 'm\d', from process \d, tag \d+ \(0x[0-9a-f]+\), instruction \d"
    r"|run @\S+ .* on mesh 'm\d', with processes \d, \d, instruction \d"
    r"|did not come to the (start of a measurement|timeline)"
)


def inject(
    kind: str,
    victim: int,
    step: int,
    instruction: int,
    processes: int = 3,
    options: Sequence[str] = (),
    timeout: float = TIMEOUT,
    late: float = LATE,
    plain: bool = False,
) -> list[str]:
    """Run the faulty loop once; what is wrong with what the processes said.

    Who says nothing for `timeout` seconds is at fault; the others may say so `late` seconds later.  `options` are those
    of `faulty.py`, `plain` is without a launcher.
    """
    arguments = [kind, str(victim), str(step), str(instruction), *options]
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "kept")
        os.mkdir(folder)
        run = _plainly if plain else _launched
        try:
            statuses, out, err = run(arguments, processes, victim, timeout, folder)
        except subprocess.TimeoutExpired:
            return ["the job did not end"]
        problems = _kept(os.path.join(folder, "state"), step) if kind in ("save", "restore", "disk") else []
    survivors = [p for p in range(processes) if p != victim]
    done = re.findall(r"^\[(\d)\] all steps$", out, re.MULTILINE)
    if kind in HARMLESS or (kind == "disk" and len(done) == processes):  # which wrote nothing
        well = len(done) == processes and not any(statuses)
        return [*problems, *([] if well else [f"nothing has failed, but {statuses}:\n{out}{err}"])]
    if any(status < 1 for p, status in enumerate(statuses) if p != victim or not plain):
        problems.append(f"statuses {statuses}")
    for p in survivors:
        said = re.search(
            rf"^\[{p}\] error in step (?P<step>-?\d+) after (?P<time>[\d.]+) s, alive=True: (?P<text>.*)$",
            out,
            re.MULTILINE,
        )
        if said is None:
            told = re.search(rf"^\[{p}\] (mpmd_trace: )?error: process {p} .*: process {victim} ", err, re.MULTILINE)
            if told is None:  # it had done its part, and was told at the end
                problems.append(f"process {p} said nothing:\n{out}{err}")
            continue
        if f"cannot go on: process {victim} " not in said["text"]:
            problems.append(f"process {p} blames another one: {said['text']}")
        if said["step"] != "-1" and float(said["time"]) > timeout + late:
            problems.append(f"process {p} took {said['time']} s")
        if kind == "bug" and "internal error: AssertionError (backend/runtime.py:2, in broken)" not in said["text"]:
            problems.append(f"process {p} does not say why: {said['text']}")
        if kind in ("withhold", "leave") and not WAITS.search(said["text"]):
            problems.append(f"process {p} does not say what is missing: {said['text']}")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    if " ".join([str(HERE / "faulty.py"), *arguments]) in listed:
        problems.append("a process is left")
    return problems


def _environment(folder: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("JAX_")} | {"FAULTY_FOLDER": folder}


def _launched(
    arguments: Sequence[str], processes: int, victim: int, timeout: float, folder: str
) -> tuple[list[int], str, str]:
    """Run the job with `mpmd-trace launch`; its status, and what all have printed."""
    command = [sys.executable, "-m", "mpmd_trace_cli.entry", "launch", "-n", str(processes), "--devices", "2"]
    command += ["--timeout", f"{timeout:g}", str(HERE / "faulty.py"), *arguments]
    env = _environment(folder)
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=env, start_new_session=True) as launcher:
        try:
            out, err = launcher.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGKILL)
            raise
    return [launcher.returncode], out, err


def _plainly(
    arguments: Sequence[str], processes: int, victim: int, timeout: float, folder: str
) -> tuple[list[int], str, str]:
    """Run the job without a launcher; the status of each process, and what all have printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    env = _environment(folder) | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "PYTHONUNBUFFERED": "1"}
    env |= {"MPMD_TRACE_TIMEOUT": f"{timeout:g}"}
    env |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)}
    command = [sys.executable, str(HERE / "faulty.py"), *arguments]
    running = [
        subprocess.Popen(command, env=env | {"JAX_PROCESS_ID": str(p)}, stdout=-1, stderr=-1, text=True)
        for p in range(processes)
    ]
    printed = {}
    try:
        for p in sorted(range(processes), key=lambda p: p == victim):
            if p == victim and arguments[0] == "stop":
                running[p].kill()
            printed[p] = running[p].communicate(timeout=600)
    finally:
        for process in running:
            process.kill()
            process.wait()
    marked = [
        "".join(f"[{p}] {line}\n" for p in range(processes) for line in printed[p][way].splitlines()) for way in (0, 1)
    ]
    return [process.returncode for process in running], marked[0], marked[1]


def _kept(path: str, step: int) -> list[str]:
    """What is wrong with the last complete checkpoint: it must be that of the step with trouble, or the one before."""
    import jax
    import numpy as np

    import mpmd_trace as mt

    try:
        here = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
        numbers = mt.restore(path, {"ws": [jax.ShapeDtypeStruct((8, 8), np.float32, sharding=here)] * 3, "step": 0})
    except Exception as error:
        return [f"no checkpoint: {error}"]
    return [] if numbers["step"] >= step - 1 else [f"the checkpoint is of step {numbers['step']}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="more than %(default)g s on a busy machine")
    wanted = parser.parse_args()
    generator = random.Random(wanted.seed)
    bad = 0
    for run in range(wanted.runs):
        kinds = (*KINDS, *ELSEWHERE)
        case = kinds[run % len(kinds)], generator.randrange(3), generator.randrange(1, 4), generator.randrange(40)
        options = ["across"] * (generator.random() < 0.2 and case[0] not in ("withhold", "cut"))
        options += ["measured"] * (generator.random() < 0.2 and case[0] in KINDS)
        plain = generator.random() < 0.5
        started = time.monotonic()
        problems = inject(
            *case, options=options, timeout=wanted.timeout, late=LATE / TIMEOUT * wanted.timeout, plain=plain
        )
        bad += bool(problems)
        result = "ok" if not problems else "\n  ".join(problems)
        options += ["plain"] * plain
        print(f"{run}: {case} {' '.join([*options, ''])}{time.monotonic() - started:.0f} s: {result}", flush=True)
    print(f"{wanted.runs - bad} of {wanted.runs} as they should be")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
