"""Shows that a change of the compiler's code changes nothing that it makes.

    make frozen [REF=HEAD] [FROZEN_ARGS="--part 1/20 --seeds 100 --only recipe --modules"]

For recipes, examples, the programs of tests, and generated programs (`tests/fuzz`), each under both placements:
hashes of the module after every pass that changed it, the specification of every pass, the exported module and the
plan, of the working tree and of a commit.  Where they differ, the first pass that does is named; exit status 1.
`--modules` looks at modules and plans alone, for a change that renames passes or their options.  `--final` looks at
the exported module and the plan alone, for one that adds, drops or moves passes.

A recipe takes some five seconds of CPU time on either side, with its part of the start, and a generated program half a
second: all cases about twenty minutes of two cores, and half as long where those of the commit are kept already.

What the code of either makes is kept case by case in `out/frozen/`: a run that was stopped goes on where it was, and a
case that was recorded for the same code is not made again, whatever `--seeds` and `--only` are.  Against the C++
partitioner, `tests/cpp_differential` compares.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.util
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACEMENTS = ("cut", "reference")
#: What is kept of a case: `passes` as [specification, hash], `module`, `plan`; or `error`.
Record = dict[str, Any]


def digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record(lower: Callable[..., Any], *, without_hooks: bool = False) -> Record:
    """Return what the compiler makes of a program; `lower(**options)` gives a new `mpmd_trace.stages.Lowered`.

    With `without_hooks`, the module and the plan are those of another run, as users have it.
    """
    passes: list[tuple[str, str]] = []

    def hook(run: Any, module: Any) -> None:
        last = passes[-1][1] if passes else ""
        passes.append((run.spec, digest(module.to_generic()) if run.changed or not last else last))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lowered = lower(hooks=[hook])
            lowered.as_text("mpmd")
            lowered = lower() if without_hooks else lowered
            return {
                "passes": passes,
                "module": digest(lowered.as_text("mpmd")),
                "plan": digest(lowered.as_text("plan")),
            }
    except Exception as error:
        return {"passes": passes, "error": f"{type(error).__name__}: {error}"}


@dataclasses.dataclass(frozen=True)
class Asked:
    """Which cases: how many generated programs, what their names contain, and which part of them all."""

    seeds: int
    only: str
    part: str

    def __contains__(self, name: str) -> bool:
        kind, number, *_ = name.split()
        part, parts = map(int, self.part.split("/"))
        is_of_part = int(digest(name), 16) % parts == part - 1
        return is_of_part and self.only in name and (kind != "fuzz" or int(number) < self.seeds)

    def cases(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        """Yield the name of each case, and the function that makes its record."""
        with_recipes = not self.only.startswith(("examples", "fuzz", "tests"))
        return ((name, make) for name, make in _all_cases(self.seeds, with_recipes) if name in self)

    def arguments(self) -> list[str]:
        """Return the arguments of this script that ask for these."""
        return [f"--{name}={value}" for name, value in dataclasses.asdict(self).items()]


def _all_cases(seeds: int, with_recipes: bool) -> Iterator[tuple[str, Callable[[], Record]]]:
    if with_recipes:  # they take seconds
        yield from _recipes()
    yield from _programs()
    for seed in range(seeds):
        for placement in PLACEMENTS:
            yield f"fuzz {seed} {placement}", functools.partial(_generated, seed, placement)


def _recipes() -> Iterator[tuple[str, Callable[[], Record]]]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import jax
    import numpy as np
    import placement as benchmark
    from jax.sharding import Mesh

    import mpmd_trace

    def run(recipe: Any, placement: str) -> Record:
        devices = iter(jax.devices())
        config = mpmd_trace.make_config(
            {name: Mesh(np.array([next(devices)]), ("x",)) for name in recipe.meshes},
            dict(recipe.names),
            pipeline_schedule=recipe.schedule,
            partitioning_options={"mpmd_infer_transfers": True},
            placement=placement,
        )
        jitted = mpmd_trace.jit(recipe.step, config, donate_argnums=recipe.donate)
        return record(lambda **options: jitted.lower(*recipe.args, **options))

    for recipe in benchmark.recipes():
        for placement in PLACEMENTS:
            yield f"recipe {recipe.name} {placement}", functools.partial(run, recipe, placement)


def _programs() -> Iterator[tuple[str, Callable[[], Record]]]:
    def run(path: Path, placement: str) -> Record:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        program = module.program() if callable(module.program) else module.program
        program = dataclasses.replace(program, config=_placed(program.config, placement))
        jitted = program.jitted()
        return record(lambda **options: jitted.lower(*program.args, **options), without_hooks=True)

    for folder in ("examples", "tests/programs"):
        for path in sorted((ROOT / folder).glob("*.py")):
            text = path.read_text()
            if "\nprogram = " in text or "\ndef program(" in text:
                for placement in PLACEMENTS:
                    yield f"{folder}/{path.name} {placement}", functools.partial(run, path, placement)


def _placed(config: Any, placement: str) -> Any:
    """Return the configuration with another placement."""
    if not hasattr(config, "options"):  # of a commit from before there was one object for all options
        return dataclasses.replace(config, placement=placement)
    return dataclasses.replace(config, options=dataclasses.replace(config.options, placement=placement))


def _generated(seed: int, placement: str) -> Record:
    from fuzz import oracles
    from fuzz.programs import Program, later_setup, later_step, random_setup, random_step
    from fuzz.source import source, tolerance

    rng, later = random.Random(seed), random.Random(f"later {seed}")
    step = later_step(random_step(rng), later)
    setup = dataclasses.replace(later_setup(random_setup(rng, step), later), placement=placement)
    subject = oracles.load(source(Program(step, setup)), tolerance(step))
    jitted = subject.jitted()
    return record(lambda **options: jitted.lower(*subject.arguments(), **options))


def _store(folder: Path, asked: Asked, share: tuple[int, int]) -> None:
    """Add the records of every `share[1]`-th case that has none yet, from the `share[0]`-th on."""
    known = _stored(folder)
    left = [case for case in list(asked.cases())[share[0] :: share[1]] if case[0] not in known]
    logging.disable(logging.WARNING)
    end = "\r" if sys.stderr.isatty() else "\n"
    with Path(folder, f"{os.getpid()}.jsonl").open("w") as file:
        for number, (name, make) in enumerate(left, 1):
            print(f"{number} of {len(left)}: {name:60}", end=end, file=sys.stderr, flush=True)
            try:
                made = make()
            except Exception as error:  # an example that needs what is not installed, for instance
                made = {"error": f"{type(error).__name__}: {error}"}
            file.write(json.dumps([name, made]) + "\n")
            file.flush()


def _stored(folder: Path) -> dict[str, Record]:
    """Return the records of a folder, by the names of their cases; without what was being written at the end."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines(keepends=True)]
    return dict(json.loads(line) for line in lines if line.endswith("\n"))


def _records(source: Path, asked: Asked, processes: int) -> dict[str, Record]:
    """Return the records of the package in `source`, made in several processes."""
    folder = ROOT / "out" / "frozen" / _code(source)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            str(p) for p in (*map(source.joinpath, ("src", "cli", "devtools")), ROOT / "tests")
        ),
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_PLATFORMS": "cpu",
        # What recipes compute for their arguments would be compiled for half a minute in each process.
        "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    script = [sys.executable, __file__, *asked.arguments(), "--store", str(folder)]
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        commands = [[*script, f"{i}/{processes}"] for i in range(processes)]
        list(pool.map(functools.partial(subprocess.run, env=environment, check=True), commands))
    return {name: made for name, made in sorted(_stored(folder).items()) if name in asked}


def _code(source: Path) -> str:
    """Return a short hash of the package in `source`, and of the programs of this tree."""
    programs = ("frozen.py", "programs/*.py", "fuzz/*.py", "../examples/*.py", "../benchmarks/**/*.py")
    paths = [p for name in ("src", "cli", "devtools") for p in sorted(source.joinpath(name).rglob("*.py"))]
    paths += [p for pattern in programs for p in sorted(Path(__file__).parent.glob(pattern))]
    return digest("".join(f"{path.name}\n{path.read_text()}" for path in paths))


def _of_commit(ref: str, asked: Asked, processes: int) -> dict[str, Record]:
    """Return the records of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", ref], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        return _records(Path(folder), asked, processes)


def difference(
    before: Record | None, after: Record | None, *, modules_only: bool = False, final_only: bool = False
) -> str | None:
    """Return in words where two records differ first; None where they do not."""
    if before is None or after is None:
        return "is there only " + ("after" if before is None else "before")
    if before.get("error") != after.get("error"):
        return f"error: {before.get('error')}\n    now: {after.get('error')}"
    old, new = (
        [tuple(run) for i, run in enumerate(passes) if not modules_only or _differs(passes, i)]
        for passes in ([] if final_only else one.get("passes", []) for one in (before, after))
    )
    for number, (one, other) in enumerate(zip(old, new, strict=False)):
        if one[1] != other[1]:
            return f"the module after pass {number} differs: {one[0]}; now: {other[0]}"
        if one[0] != other[0] and not modules_only:
            return f"pass {number}: {one[0]}; now: {other[0]}"
    if len(old) != len(new):
        more = (old if len(old) > len(new) else new)[min(len(old), len(new))][0]
        return f"{len(old)} passes, now {len(new)}: {more} is one of them only"
    for part in ("module", "plan"):
        if before.get(part) != after.get(part):
            return f"the final {part} differs" if final_only else f"the {part} without hooks differs"
    return None


def _differs(passes: list[list[str]], index: int) -> bool:
    return index == 0 or passes[index][1] != passes[index - 1][1]


def main() -> int:
    """Compare, or store the records of the package that is imported; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ref", default="HEAD", help="the commit to compare with")
    parser.add_argument("--seeds", type=int, default=200, help="how many generated programs")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N parts of the cases, all as large")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="as many at a time")
    parser.add_argument(
        "--modules", action="store_true", help="compare modules and plans, not specifications of passes"
    )
    parser.add_argument("--final", action="store_true", help="compare exported modules and plans, not passes")
    parser.add_argument("--store", nargs=2, metavar=("FOLDER", "PART/PARTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    asked = Asked(given.seeds, given.only, given.part)
    if given.store:
        part, parts = map(int, given.store[1].split("/"))
        _store(Path(given.store[0]), asked, (part, parts))
        return 0
    before, after = _of_commit(given.ref, asked, given.processes), _records(ROOT, asked, given.processes)
    differing = 0
    for name in sorted({*before, *after}):
        text = difference(before.get(name), after.get(name), modules_only=given.modules, final_only=given.final)
        if text is not None:
            differing += 1
            print(f"{name}: {text}")
    failed = sum("error" in one for one in after.values())
    print(f"{len(after)} cases, {differing} differ; {failed} are refused, in the same way as before where not shown")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
