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
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from fuzz.programs import Program, later_setup, later_step, over_processes, random_setup, random_step, shrink
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


class Checker(Protocol):
    """What checks programs."""

    def check(self, program: Program, oracles: list[str], seconds: float = SECONDS) -> Outcome: ...


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


class Job:
    """Several processes that check programs together; started again when one of them was at fault."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._launcher: subprocess.Popen[bytes] | None = None
        self._said: Any = None
        self._folder = Path()
        self._count = 0

    def check(self, program: Program, oracles: list[str], seconds: float = SECONDS) -> Outcome:
        """What the processes say about the program."""
        launcher = self._launcher or self._start(seconds)
        alone = dataclasses.replace(program, setup=dataclasses.replace(program.setup, processes=()))
        request = {"text": source(program), "alone": source(alone), "rtol": tolerance(program.step)}
        written = self._folder / "request"
        written.write_text(json.dumps(request))
        os.rename(written, self._folder / f"{self._count}.json")
        answers = [self._folder / f"{self._count}.{p}.answer" for p in range(self.processes)]
        self._count += 1
        end = time.monotonic() + seconds
        while not all(a.exists() for a in answers) and launcher.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        found = [Outcome(**json.loads(a.read_text())) for a in answers if a.exists()]
        bad = next((one for one in found if one.kind not in ("same", "refused")), None)
        if len(found) == self.processes and bad is None:
            if len({one.kind for one in found}) == 1:
                return found[0]
            bad = Outcome("finding", f"processes: not all of them refuse it: {found}")
        if bad is None:
            self._said.seek(0)
            kind = "hang" if launcher.poll() is None else "crash"
            bad = Outcome(kind, f"{len(found)} of {self.processes} processes answered", self._said.read()[-6000:])
        self.close()
        return bad

    def _start(self, seconds: float) -> subprocess.Popen[bytes]:
        self._folder, self._count = Path(tempfile.mkdtemp(prefix="fuzz")), 0
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the processes)
        launch = ["-m", "mpmd_trace_cli.entry", "launch", "-n", self.processes, "--devices", 8]
        launch += ["--timeout", seconds / 2]
        self._launcher = subprocess.Popen(
            [sys.executable, *map(str, [*launch, HERE / "several.py", self._folder, os.getpid()])],
            stdout=self._said,
            stderr=self._said,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("JAX_")},
                "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0",
            },
        )
        return self._launcher

    def close(self) -> None:
        """End the processes."""
        if self._launcher is not None:
            shutil.rmtree(self._folder)
            self._launcher.terminate()
            self._launcher.wait()
            self._said.close()
            self._launcher = None


def reduced(worker: Checker, program: Program, oracles: list[str], outcome: Outcome, seconds: float) -> Program:
    """A small program with the same outcome."""
    left = ATTEMPTS if outcome.kind != "hang" else 10

    def fails(smaller: Program) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and worker.check(smaller, oracles, seconds).signature == outcome.signature

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
    known_oracles = "run, text, interpret, cpp, engines, processes (comma separated)"
    parser.add_argument("--oracles", default="run,text,processes", help=known_oracles)
    parser.add_argument("--processes", type=int, default=2, help="how many of them the last of these starts")
    parser.add_argument(
        "--share", type=float, default=0.05, help="of the programs, how many they run; all, without other oracles"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="a program that takes longer hangs")
    parser.add_argument("--engine", default="python", help="python or cpp")
    parser.add_argument("--found", type=Path, default=HERE / "found", help="where test files are written")
    options = parser.parse_args()
    oracles, end = options.oracles.split(","), time.monotonic() + 60 * options.minutes
    both = not {"cpp", "engines"}.isdisjoint(oracles)
    if both:
        options.engine = "cpp"  # asks for what both know
    here = [name for name in oracles if name != "processes"]
    share = 0.0 if "processes" not in oracles else options.share if here else 1.0
    worker, job, counts = Worker(), Job(options.processes), collections.Counter[str]()
    known: collections.Counter[str] = collections.Counter()
    print(f"make fuzz SEED={options.seed}: {options.oracles}, engine {options.engine}", flush=True)
    seed, told, spread = options.seed, time.monotonic(), 0
    while time.monotonic() < end and counts.total() < options.programs:
        rng = random.Random(seed)
        later = random.Random(f"later {seed}")
        step = random_step(rng)
        step = later_step(step, later) if options.engine == "python" else step
        for _ in range(SETUPS_PER_STEP):
            setup = random_setup(rng, step, options.engine)
            setup = later_setup(setup, later) if options.engine == "python" else setup
            if both:
                setup = dataclasses.replace(setup, engine="python")
            program = Program(step, setup)
            checker: Checker = worker
            outcome = worker.check(program, here, options.seconds) if here else Outcome("same")
            others = random.Random(f"{seed} {counts.total()}")
            if outcome.kind == "same" and others.random() < share:
                checker = job
                program = Program(step, over_processes(setup, others, options.processes))
                outcome = job.check(program, oracles, options.seconds)
                spread += 1
            counts[outcome.kind] += 1
            if outcome.kind == "same":
                continue
            known[outcome.signature] += 1
            if known[outcome.signature] > 1 or outcome.kind in ("refused", "reference"):
                continue
            print(f"\nseed {seed}: {outcome.kind}: {outcome.text[:2500]}\n{outcome.trace[-1500:]}", flush=True)
            if outcome.kind != "invalid":
                program = reduced(checker, program, oracles if checker is job else here, outcome, options.seconds)
                print(f"  -> {write(options.found, program, seed, outcome, oracles)}: {program}", flush=True)
        seed += 1
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"seed {seed}: {dict(counts)}", flush=True)
    worker.close()
    job.close()
    for signature, count in known.most_common():
        print(f"{count:6} {signature}")
    ran = f"{counts.total()} programs ({spread} over processes)"
    print(f"seeds {options.seed} to {seed - 1}, {ran}: {dict(counts)}", flush=True)
    return int(any(counts[kind] for kind in ("finding", "crash", "hang", "invalid")))


if __name__ == "__main__":
    sys.exit(main())
