"""Fuzzing for minutes or hours: `make fuzz MINUTES=10 SEED=1`.

Programs of consecutive seeds run in a worker process.  One that ends it is a crash, one that takes too long is a hang;
what fails is made smaller while it fails in the same way, and written as a test file of its own.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import random
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz.programs import Program, random_setup, random_step, shrink
from fuzz.source import source, tolerance

HERE = Path(__file__).resolve().parent

#: A program that takes longer hangs; most take one or two.
SECONDS = 180
#: A worker keeps what JAX compiled; a new one starts after so many programs.
PROGRAMS_PER_WORKER = 100
SETUPS_PER_STEP = 3
#: How many smaller programs are tried for one finding.
ATTEMPTS = 120


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program; `text` says why, `trace` where."""

    kind: str
    text: str = ""
    trace: str = ""

    @property
    def signature(self) -> str:
        """What outcomes of one cause have in common."""
        first = re.sub(r"\S+:\d+(:\d+)?: error: ", "", " ".join(self.text.strip().splitlines()[:2]))
        first = re.sub(r"""'[^']*'|"[^"]*"|\[[^]]*\]|@\S+""", "_", first)
        return f"{self.kind} {re.sub(r'0x[0-9a-f]+|[0-9.e+-]*[0-9]', '#', first)[:110]}"


class Worker:
    """A process that checks programs; started again when it ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors: Any = None
        self._count = 0

    def check(self, program: Program, oracles: list[str], seconds: float = SECONDS) -> Outcome:
        """What the oracles say about the program, also when it takes the process with it."""
        if self._count % PROGRAMS_PER_WORKER == 0:
            self.close()
        self._count += 1
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        request = {"text": source(program), "rtol": tolerance(program.step), "oracles": oracles, "seconds": seconds}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], seconds + 10)
        line = process.stdout.readline() if ready else ""
        if line:
            return Outcome(**json.loads(line))
        if not ready:
            process.kill()
        status = process.wait()
        self._errors.seek(0)
        said = self._errors.read()[-6000:]
        self.close()
        _, timeout, stacks = said.rpartition("Timeout (")
        if ready and not timeout:
            return Outcome("crash", f"status {status}", said)
        frames = re.findall(r'File "(?:.*/)?([\w<>.]+)", line \d+ in (\w+)', stacks)
        where = " < ".join(f"{file}:{name}" for file, name in frames[:4])
        return Outcome("hang", f"more than {seconds:.0f} s in {where}", said)

    def _start(self) -> subprocess.Popen[str]:
        tests = HERE.parent
        path = [str(tests), str(tests / "cpp_differential"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "fuzz.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path),
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": "8",
                "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0",
            },
        )
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._errors.close()
            self._process = None


def reduced(worker: Worker, program: Program, oracles: list[str], outcome: Outcome) -> Program:
    """A small program with the same outcome."""
    left = ATTEMPTS if outcome.kind != "hang" else 10

    def fails(smaller: Program) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and worker.check(smaller, oracles).signature == outcome.signature

    return shrink(program, fails)


def write(folder: Path, program: Program, seed: int, outcome: Outcome, oracles: list[str]) -> Path:
    """The program as a test file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"test_seed_{seed}.py"
    first = re.sub(r'[\\"]', "'", outcome.text.strip().partition("\n")[0])[:100]
    path.write_text(source(program, f"Found by `make fuzz SEED={seed}` ({', '.join(oracles)}): {first}", test=True))
    return path


def main() -> int:
    """Fuzz; the exit status says whether something was found."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--programs", type=int, default=10**9, help="end after so many, too")
    parser.add_argument("--oracles", default="run,text", help="run, text, interpret, cpp (comma separated)")
    parser.add_argument("--engine", default="python", help="python or cpp")
    parser.add_argument("--found", type=Path, default=HERE / "found", help="where test files are written")
    options = parser.parse_args()
    oracles, end = options.oracles.split(","), time.monotonic() + 60 * options.minutes
    if "cpp" in oracles:
        options.engine = "cpp"  # asks for what both know
    worker, counts = Worker(), collections.Counter[str]()
    known: collections.Counter[str] = collections.Counter()
    print(f"make fuzz SEED={options.seed}: {options.oracles}, engine {options.engine}", flush=True)
    seed, told = options.seed, time.monotonic()
    while time.monotonic() < end and counts.total() < options.programs:
        rng = random.Random(seed)
        step = random_step(rng)
        for _ in range(SETUPS_PER_STEP):
            setup = random_setup(rng, step, options.engine)
            if "cpp" in oracles:
                setup = dataclasses.replace(setup, engine="python")
            program = Program(step, setup)
            outcome = worker.check(program, oracles)
            counts[outcome.kind] += 1
            if outcome.kind == "same":
                continue
            known[outcome.signature] += 1
            if known[outcome.signature] > 1 or outcome.kind in ("refused", "reference"):
                continue
            print(f"\nseed {seed}: {outcome.kind}: {outcome.text[:2500]}\n{outcome.trace[-1500:]}", flush=True)
            if outcome.kind != "invalid":
                program = reduced(worker, program, oracles, outcome)
                print(f"  -> {write(options.found, program, seed, outcome, oracles)}: {program}", flush=True)
        seed += 1
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"seed {seed}: {dict(counts)}", flush=True)
    worker.close()
    for signature, count in known.most_common():
        print(f"{count:6} {signature}")
    print(f"seeds {options.seed} to {seed - 1}, {counts.total()} programs: {dict(counts)}", flush=True)
    return int(any(counts[kind] for kind in ("finding", "crash", "hang", "invalid")))


if __name__ == "__main__":
    sys.exit(main())
