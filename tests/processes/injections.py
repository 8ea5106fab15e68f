"""Faults at random instructions: every survivor must name the process at fault, in time, and nothing may be left.

PYTHONPATH=tests/processes python -m injections --runs 50 --seed 0
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
#: Seconds without a sign of life, and how much later an error may be on a busy machine.
TIMEOUT, LATE = 4.0, 6.0
KINDS = ("kill", "stop", "withhold", "fail", "delay", "leave", "cut", "bug")
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
) -> list[str]:
    """Run the faulty loop once; what is wrong with what the processes said.

    Who says nothing for `timeout` seconds is at fault; the others may say so `late` seconds later.  `options` are those
    of `faulty.py`.
    """
    arguments = [kind, str(victim), str(step), str(instruction), *options]
    command = [sys.executable, "-m", "mpmd_trace_cli.entry", "launch", "-n", str(processes), "--devices", "2"]
    command += ["--timeout", f"{timeout:g}", str(HERE / "faulty.py"), *arguments]
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=env, start_new_session=True) as launcher:
        try:
            out, err = launcher.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGKILL)
            return ["the launcher did not end"]
    problems = []
    survivors = [p for p in range(processes) if p != victim]
    if kind == "delay":
        done = re.findall(r"^\[(\d)\] all steps$", out, re.MULTILINE)
        return [] if len(done) == processes and launcher.returncode == 0 else [f"a delay is no fault:\n{out}{err}"]
    if launcher.returncode == 0:
        problems.append("the launcher says that all is well")
    for p in survivors:
        said = re.search(rf"^\[{p}\] error in step \d+ after ([\d.]+) s, alive=True: (.*)$", out, re.MULTILINE)
        if said is None:
            told = re.search(rf"^\[{p}\] mpmd_trace: error: .*process {victim} ", err, re.MULTILINE)
            if told is None:  # it had done its part, and was told at the end
                problems.append(f"process {p} said nothing:\n{out}{err}")
            continue
        if f"cannot go on: process {victim} " not in said[2]:
            problems.append(f"process {p} blames another one: {said[2]}")
        if float(said[1]) > timeout + late:
            problems.append(f"process {p} took {said[1]} s")
        if kind == "bug" and "internal error: AssertionError (backend/runtime.py:2, in broken)" not in said[2]:
            problems.append(f"process {p} does not say why: {said[2]}")
        if kind in ("withhold", "leave", "cut") and not WAITS.search(said[2]):
            problems.append(f"process {p} does not say what is missing: {said[2]}")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    if " ".join([str(HERE / "faulty.py"), *arguments]) in listed:
        problems.append("a process is left")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="more than %(default)g s on a busy machine")
    wanted = parser.parse_args()
    generator = random.Random(wanted.seed)
    bad = 0
    for run in range(wanted.runs):
        case = KINDS[run % len(KINDS)], generator.randrange(3), generator.randrange(1, 4), generator.randrange(40)
        options = ["across"] * (generator.random() < 0.2 and case[0] not in ("withhold", "cut"))
        options += ["measured"] * (generator.random() < 0.2)
        started = time.monotonic()
        problems = inject(*case, options=options, timeout=wanted.timeout, late=LATE / TIMEOUT * wanted.timeout)
        bad += bool(problems)
        result = "ok" if not problems else "\n  ".join(problems)
        print(f"{run}: {case} {' '.join([*options, ''])}{time.monotonic() - started:.0f} s: {result}", flush=True)
    print(f"{wanted.runs - bad} of {wanted.runs} as they should be")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
