"""The examples run, and what they assert holds: numbers of `jax.jit`, what each mesh holds, what moves in a step."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from util import nightly

ROOT = Path(__file__).parents[1]
#: What each script prints, besides what it asserts.
SAYS = {
    "actor_learner": "reward 0.25 at first",
    "bert_lora": "length 16: loss",
    "generate": "tokens a second over two meshes",
    "llama": "m1 holds 70272 bytes of parameters and 140544 of optimizer state",
    "moe": "all-reduce",
    "nnx_transformer": "of parameters and",
    "unet": "transfers and bytes of a step: {'activations': (8, 12288), 'cotangents': (8, 12288)",
    "vit": "pp1 holds",
}
#: With a test or a command of their own: below and `make demo`, tests/processes.
ELSEWHERE = {"char_gpt", "elastic"}


#: Run every time; the others, whose models have tests of their own, in `make nightly`.
EACH_TIME = {"generate"}


def here(code: str) -> str:
    """Return what code prints that uses examples with four devices, in this process, which has eight."""
    update, devices = jax.config.update, jax.devices()[:4]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.syspath_prepend(str(ROOT / "examples"))
        patch.setattr(jax, "devices", lambda: devices)
        patch.setattr(jax.config, "update", lambda key, *value: key == "jax_num_cpu_devices" or update(key, *value))
        exec(code, {})
    return printed.getvalue()


@pytest.mark.parametrize("name", [name if name in EACH_TIME else nightly(name) for name in sorted(SAYS)])
def test_an_example_runs(name: str) -> None:
    if name in EACH_TIME:
        assert SAYS[name] in here(f"import {name}\n{name}.main()")
        return
    environment = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout


#: The demo's model at a tiny size: two stages of two devices, a block each.
TINY_GPT = """
import char_gpt as example, jax, mpmd_trace, numpy as np

example.MESHES = example.BLOCKS = 2
example.CONTEXT = example.WIDTH = example.BATCH = 8
example.MICROBATCHES = 4
program = example.program()
step = program.jitted().lower(*program.args).compile()
batch = program.args[2]
new, state, loss, _ = step(*mpmd_trace.place(step, *program.args))
np.testing.assert_allclose(loss, jax.jit(program.fn)(*program.args)[2], rtol=1e-5)
for mesh, memory in step.memory_analysis().items():
    device = program.config.topology[mesh].devices.flat[0]
    shards = [s for x in jax.tree.leaves((new, state)) for s in x.addressable_shards]
    own = sum(s.data.nbytes for s in shards if s.device == device)
    assert 0 <= memory.arguments - own <= batch.nbytes, (mesh, memory.arguments, own)
sent = {cause: number for cause, (number, _) in step.placement_report().causes.items() if cause != "small"}
assert sent == {"activations": 4, "cotangents": 4, "arguments": 1}, sent  # the batch, for its targets
"""


def test_each_mesh_of_the_demo_holds_its_own_parameters_and_state() -> None:
    here(TINY_GPT)


def test_every_example_is_tested_and_described() -> None:
    files = {file.stem for file in (ROOT / "examples").glob("*.py")}
    assert files == SAYS.keys() | ELSEWHERE
    text = (ROOT / "docs" / "examples.md").read_text()
    assert not {file for file in files if f"examples/{file}.py" not in text}
