"""What the scripts here have in common: `examples/elastic.py` in four processes, once to the end, once without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
PROCESSES, VICTIM = 4, 2
#: Seconds that the example may take.
TIMEOUT = 900.0

#: Starts the processes with these arguments; the exit statuses, and all that was printed.
Start = Callable[[Sequence[str]], tuple[Sequence[int], str]]


def verify(name: str, start: Start, *, of_killed: Sequence[int]) -> NoReturn:
    """Start the example twice, and exit with status 1 where it does not end as it should.

    Args:
        name: of the launcher.
        start: see above.
        of_killed: the exit statuses where process 2 is killed, sorted.
    """
    failed = False
    for more, wanted in (([], None), (["--kill", str(VICTIM)], of_killed)):
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            statuses, text = start(["examples/elastic.py", "--folder", folder, *more])
        if wanted is None:
            wrong = [f"statuses {statuses}"] * any(statuses)
            wrong += ["it has not come to its end"] * (f"step 20 of 20 on {PROCESSES} processes" not in text)
            wrong += ["a process says that others have failed"] * ("cannot go on" in text)
        else:
            wrong = [f"statuses {statuses}"] * (sorted(statuses) != list(wanted))
            for process in set(range(PROCESSES)) - {VICTIM}:
                if not re.search(
                    rf"process {process} cannot go on: process {VICTIM} has ended without an error message", text
                ):
                    wrong.append(f"process {process} does not say who is at fault")
        wrong += [f"process {pid} is left" for pid in left(folder)]
        took = time.monotonic() - started
        print(f"{' '.join([name, *more])}: {took:.0f} s: {', '.join(wrong) or 'ok'}", flush=True)
        if wrong:
            failed = True
            print(text)
    sys.exit(failed)


def left(folder: str) -> list[str]:
    """Return the processes that work in a folder, some seconds later."""
    until = time.monotonic() + 10.0
    while True:
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        result = [line.split()[0] for line in listed.splitlines() if f" --folder {folder}" in line]
        if not result or time.monotonic() > until:
            return result
        time.sleep(0.2)


def environment(**more: str) -> dict[str, str]:
    """One CPU device for each process, and nothing of another launcher."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "SLURM_", "OMPI_", "MPMD_TRACE_"))}
    return {**kept, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **more}


def run(command: Sequence[str], env: Mapping[str, str]) -> tuple[list[int], str]:
    """Run a command in the root of the repository."""
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=-1, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT, check=False
    )
    return [done.returncode], done.stdout


def each(environments: Sequence[Mapping[str, str]]) -> Start:
    """Start a process with each of the environments, without a launcher."""

    def start(arguments: Sequence[str]) -> tuple[list[int], str]:
        command = [sys.executable, *arguments]
        running = [
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=-1, stderr=subprocess.STDOUT, text=True)
            for env in environments
        ]
        try:
            text = "".join(process.communicate(timeout=TIMEOUT)[0] for process in running)
        finally:
            for process in running:
                process.kill()
        return [process.returncode for process in running], text

    return start


def skip(reason: str) -> NoReturn:
    print(f"{Path(sys.argv[0]).stem}: skipped: {reason}")
    sys.exit(0)
