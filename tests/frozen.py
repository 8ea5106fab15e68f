"""Shows that a change of the compiler's code changes nothing that it makes.

    make frozen [REF=HEAD] [FROZEN_ARGS="--seeds 100 --only recipe --modules"]

For recipes, examples, the programs of tests, and generated programs (`tests/fuzz`), each under both placements:
hashes of the module after every pass that changed it, the specification of every pass, the exported module and the
plan, of the working tree and of a commit.  Where they differ, the first pass that does is named; exit status 1.
`--modules` looks at modules and plans alone, for a change that adds, drops or renames passes or their options.

What a commit makes is kept in `out/frozen/`.  Against the C++ partitioner, `tests/cpp_differential` compares.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.util
import json
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


def record(lower: Callable[..., Any]) -> Record:
    """Return what the compiler makes of a program; `lower(**options)` gives a new `mpmd_trace.stages.Lowered`."""
    passes: list[tuple[str, str]] = []

    def hook(run: Any, module: Any) -> None:
        last = passes[-1][1] if passes else ""
        passes.append((run.spec, digest(module.to_generic()) if run.changed or not last else last))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lower(hooks=[hook]).as_text("mpmd")
            lowered = lower()
            return {
                "passes": passes,
                "module": digest(lowered.as_text("mpmd")),
                "plan": digest(lowered.as_text("plan")),
            }
    except Exception as error:
        return {"passes": passes, "error": f"{type(error).__name__}: {error}"}


def cases(seeds: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield the name of each case, and the function that makes its record."""
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
        return record(lambda **options: jitted.lower(*program.args, **options))

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


def _store(path: Path, seeds: int, only: str, share: tuple[int, int]) -> None:
    """Write the records of every `share[1]`-th case, from the `share[0]`-th on."""
    records = {}
    for number, (name, make) in enumerate(cases(seeds)):
        if number % share[1] != share[0] or only not in name:
            continue
        try:
            records[name] = make()
        except Exception as error:  # an example that needs what is not installed, for instance
            records[name] = {"error": f"{type(error).__name__}: {error}"}
    path.write_text(json.dumps(records))


def _records(source: Path, seeds: int, only: str) -> dict[str, Record]:
    """Return the records of the package in `source`, made in one process for each processor."""
    workers = os.cpu_count() or 1
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            str(p) for p in (*map(source.joinpath, ("src", "cli", "devtools")), ROOT / "tests")
        ),
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_PLATFORMS": "cpu",
    }
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        paths = [Path(folder, f"{i}.json") for i in range(workers)]
        script = [sys.executable, __file__, "--seeds", str(seeds), "--only", only]
        commands = [[*script, "--store", str(path), f"{i}/{workers}"] for i, path in enumerate(paths)]
        list(pool.map(functools.partial(subprocess.run, env=environment, check=True), commands))
        merged: dict[str, Record] = {}
        for path in paths:
            merged.update(json.loads(path.read_text()))
    return dict(sorted(merged.items()))


def _of_commit(ref: str, seeds: int, only: str) -> dict[str, Record]:
    """Return the records of a commit; they are made once."""
    git = functools.partial(subprocess.run, cwd=ROOT, check=True, capture_output=True, text=True)
    commit = git(["git", "rev-parse", f"{ref}^{{commit}}"]).stdout.strip()
    made = "".join(
        (ROOT / "tests" / name).read_text()
        for name in ("frozen.py", "fuzz/programs.py", "fuzz/source.py", "fuzz/pieces.py")
    )
    kept = ROOT / "out" / "frozen" / f"{commit[:12]}-{seeds}-{digest(only + made)}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            records = _records(Path(folder), seeds, only)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(records))
    loaded: dict[str, Record] = json.loads(kept.read_text())
    return loaded


def difference(before: Record | None, after: Record | None, *, modules_only: bool = False) -> str | None:
    """Return in words where two records differ first; None where they do not."""
    if before is None or after is None:
        return "is there only " + ("after" if before is None else "before")
    if before.get("error") != after.get("error"):
        return f"error: {before.get('error')}\n    now: {after.get('error')}"
    old, new = (
        [tuple(run) for i, run in enumerate(one.get("passes", ())) if not modules_only or _differs(one["passes"], i)]
        for one in (before, after)
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
            return f"the {part} without hooks differs"
    return None


def _differs(passes: list[list[str]], index: int) -> bool:
    return index == 0 or passes[index][1] != passes[index - 1][1]


def main() -> int:
    """Compare, or store the records of the package that is imported; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ref", default="HEAD", help="the commit to compare with")
    parser.add_argument("--seeds", type=int, default=1000, help="how many generated programs")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument(
        "--modules", action="store_true", help="compare modules and plans, not specifications of passes"
    )
    parser.add_argument("--store", nargs=2, metavar=("FILE", "PART/PARTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.store:
        part, parts = map(int, given.store[1].split("/"))
        _store(Path(given.store[0]), given.seeds, given.only, (part, parts))
        return 0
    before, after = _of_commit(given.ref, given.seeds, given.only), _records(ROOT, given.seeds, given.only)
    differing = 0
    for name in sorted({*before, *after}):
        text = difference(before.get(name), after.get(name), modules_only=given.modules)
        if text is not None:
            differing += 1
            print(f"{name}: {text}")
    failed = sum("error" in one for one in after.values())
    print(f"{len(after)} cases, {differing} differ; {failed} are refused, in the same way as before where not shown")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
