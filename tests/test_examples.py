"""The examples run, and what they assert holds: numbers of `jax.jit`, what each mesh holds, what moves in a step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What each script prints, besides what it asserts.
SAYS = {
    "actor_learner": "reward 0.25 at first",
    "bert_lora": "length 16: loss",
    "generate": "tokens a second over two meshes",
    "llama": "m1 holds 70272 bytes of parameters and 140544 of optimiser state",
    "moe": "all-reduce",
    "nnx_transformer": "of parameters and",
    "unet": "transfers and bytes of a step: {'activations': (8, 12288), 'cotangents': (8, 12288)",
    "vit": "pp1 holds",
}
#: With a test or a command of their own: `make demo`, tests/processes.
ELSEWHERE = {"char_gpt", "elastic"}


@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_runs(name: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout


def test_every_example_is_tested_and_described() -> None:
    files = {file.stem for file in (ROOT / "examples").glob("*.py")}
    assert files == SAYS.keys() | ELSEWHERE
    text = (ROOT / "docs" / "examples.md").read_text()
    assert not {file for file in files if f"examples/{file}.py" not in text}
