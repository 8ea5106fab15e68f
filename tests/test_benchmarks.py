"""The benchmarks run; what they measure is not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
#: The smallest sizes, and something that the output has.
RUNS = {
    "collectives": ("--only fsdp --stages 2 --json --check", '"all-gather": [8, 8]'),
    "common_passes": ("--stages 3 --microbatches 2 4 --ops 6", "call-inline "),
    "compute_bound": ("--steps 1 --rounds 1 --batch 16 --json", '"runs": 22, "transfers": 16'),
    "dispatch": ("--steps 1 --rounds 1 --json", '"runs": 64, "transfers": 48'),
    "first_step": ("--models encoder,masked,modules --sizes 2x2x2 --where", "text and passes "),
    "gpu": ("--rehearse --only equal-2", "equal-2: ok"),
    "growth": ("--only update --sizes 1,2 --json", '"knob": "depth of an update", "size": 2'),
    "overlap": ("--width 32 --json", '"runs": {"separate": 8, "separate, options": 8, "pair": 8}'),
    "parse_print": ("--ops 500 --repeat 1 --json", "{"),
    "partition": ("--sizes 2x2 --cpp-up-to 0 --repeat 1", "   2 x 2 "),
    "placement": ("--only evaluation --run --json", '"recipe": "evaluation"'),
    "planning": ("--rounds 1 --batch 16 --json", '"schedule": "1F1B"'),
    "processes": ("--processes 2 --steps 1 --rounds 1 --batch 16 --width 16 --json", '"of prediction": '),
    "published": ("--table llama-405b --json --check", '"label": "interleaved 1F1B"'),
    "schedule_search": ("--sizes 4x16 --effort 50000 --seeds 1 --check", "4x16 collectives "),
    "schedules": ("--meshes 2 --microbatches 4 --json", "{"),
    "split_backwards": ("--kinds scan --width 16 --check", "gradients (1.000, 1.000 of unrolled), 1.00 copies"),
    "transfer": ("--sizes 4K --rounds 1 --json", '"socket ms": '),
}


def test_all_are_here() -> None:
    scripts = {p.stem for p in FOLDER.glob("*.py") if "__main__" in p.read_text()}
    assert scripts == RUNS.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("script", RUNS)
def test_a_benchmark_runs(script: str) -> None:
    arguments, wanted = RUNS[script]
    command = [sys.executable, str(FOLDER / f"{script}.py"), *arguments.split()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert found.returncode == 0, found.stderr
    assert wanted in found.stdout
