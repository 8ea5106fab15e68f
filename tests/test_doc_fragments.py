"""Fragments of Python in the docs, each with what it needs around it; all in one program."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from doc_programs import NOT_RUN, ROOT, blocks, indented, run

START = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AbstractMesh, Mesh
import mpmd_trace
import mpmd_trace as mt
from mpmd_trace import schedules
jax.config.update("jax_num_cpu_devices", 2)
meshes = {name: Mesh(np.array([device]), ("x",)) for name, device in zip(("first", "second"), jax.devices())}
names = {"layer0": "first", "layer1": "second"}
config = mt.make_config(meshes, names)

def loss_of(weights, x):
    for i, w in enumerate(weights):
        x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
    return jnp.mean(x**2)

def step(weights, opt_state, x):
    value, grads = mt.value_and_grad(loss_of, microbatches=2)(weights, x)
    return [w - 0.1 * g for w, g in zip(weights, grads)], opt_state + 1, value

weights, batch = [jnp.eye(8), 2 * jnp.eye(8)], jnp.ones((16, 8))
arguments = weights, jnp.zeros(()), batch
shapes = jax.eval_shape(lambda *args: args, *arguments)
plain = jax.jit(step)(*arguments)
"""
#: Per page, the numbers of its blocks that are fragments, and lines before and after each.
AROUND: dict[str, dict[int, tuple[str, str]]] = {
    "compiling": {
        1: ("", "assert isinstance(lowered.memory_analysis()['first'].peak, int)"),
        2: ("", "assert lowered.as_text('plan') == mt.jit(step, config).lower(*arguments).as_text('plan')"),
    },
    "passes": {
        2: (
            blocks("docs/passes.md")[1] + "seen, original = [], DropDoubleNegation.run\n"
            "DropDoubleNegation.run = lambda self, *args: (seen.append(self.name), original(self, *args))[1]\n",
            "np.testing.assert_allclose(loss[2], plain[2], rtol=1e-6)\nassert seen == ['drop-double-negation']",
        )
    },
    "extending": {
        0: (
            "from mpmd_trace.passes.greedy import Pattern\n"
            "from mpmd_trace.passes.stablehlo.rules import Rule, made_by, same_type\n"
            "from mpmd_trace.passes.stablehlo_optimize import StablehloOptimize\n",
            "twice = 'func.func @main(%x: tensor<f32>) -> tensor<f32> {\\n%0 = stablehlo.negate %x : tensor<f32>\\n'\n"
            "twice += '%1 = stablehlo.negate %0 : tensor<f32>\\nreturn %1 : tensor<f32>\\n}'\n"
            "counts = [str(mt.compiler.run_passes(mt.compiler.parse(twice), [one()])).count('negate')\n"
            "          for one in (StablehloOptimize, OptimizeNegations)]\n"
            "assert counts == [2, 0], counts",
        )
    },
    "checkpoints": {
        0: (
            "compiled = mt.jit(step, config).lower(*arguments).compile()\n"
            "import os\nos.makedirs(folder + '1/run')\nos.chdir(folder + '1')\n"
            "opt_state = arguments[1]\nmt.save('run/500', arguments[:2])\n"
            "mt.checkpoint.save_safetensors('hf_model', weights)",
            "jax.tree.map(np.testing.assert_array_equal, (weights, opt_state), arguments[:2])\nweights = arguments[0]",
        ),
        1: (
            "model = {'a': jnp.arange(3.0)}\nmt.save(folder, (model, {'m': jnp.ones(2)}))",
            "np.testing.assert_array_equal(model['a'], np.arange(3.0))",
        ),
    },
    "resuming": {
        0: (
            "compiled = mt.jit(step, config).lower(*arguments).compile()\n"
            "model, opt_state, folder, number = weights, arguments[1], folder + '3', 7",
            "jax.tree.map(np.testing.assert_array_equal, (model, opt_state), arguments[:2])",
        ),
        1: ("model, opt_state = arguments[:2]", "assert number == 7"),
    },
    "processes": {
        1: (
            "compiled = mt.jit(step, config).lower(*arguments).compile()\n"
            "number, state, folder = 3, arguments[:2], folder + '2'",
            "jax.tree.map(np.testing.assert_array_equal, state, arguments[:2])\n"
            "assert [w.devices() for w in state[0]] == [{device} for device in jax.devices()]",
        )
    },
    "planning": {
        0: (
            "",
            "auto = mt.make_config(meshes, names, pipeline_schedule=pipeline_schedule)\n"
            "assert mt.jit(step, auto).lower(*arguments).schedule.name != 'none'",
        )
    },
    "programs_of_a_step": {0: ("", "assert (found.proved, found.value, found.gap) == (True, 12.0, 0.0)")},
    "schedules": {
        0: (
            "assignment = \\",
            """
def v_loss(weights, x):
    for i, w in enumerate(weights):
        x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"blocks_{i}")(w, x)
    return jnp.mean(x**2)

two = {f"m{i}": Mesh(np.array([device]), ("x",)) for i, device in enumerate(jax.devices())}
v = mt.make_config(two, assignment, pipeline_schedule="zb-v")
lowered = mt.jit(mt.value_and_grad(v_loss, microbatches=4), v).lower(2 * weights, batch)
assert lowered.schedule.name == "zb-v"
""",
        ),
        2: (
            "first = second = third = fourth = Mesh(np.array(jax.devices()[:1]), ('x',))",
            "assert ('v0', 'v1') in towers.pipeline_schedule",
        ),
        3: (
            "def model(parameters, x):\n    return jnp.mean(x) + loss_of(parameters, x)",
            "requests = jnp.arange(64.0).reshape(4, 2, 8)\n"
            "answers = mt.jit(predict, mt.make_config(meshes, names, pipeline_schedule='forward'))(weights, requests)\n"
            "np.testing.assert_allclose(answers, [model(weights, x) for x in requests], rtol=1e-5)",
        ),
    },
}


def test_fragments_run(tmp_path: Path) -> None:
    code = [START, f"folder = {str(tmp_path / 'folder')!r}"]
    for page, around in AROUND.items():
        found = blocks(f"docs/{page}.md")
        for number, (before, after) in around.items():
            code += (
                [before, found[number], after] if not before.endswith("\\") else [before + "\n" + found[number], after]
            )
    run("\n".join(code), tmp_path)


def test_no_python_hides_in_indented_text() -> None:
    """Python is in fences, which tests count."""
    assert [page.name for page in (ROOT / "docs").glob("*.md") if indented(f"docs/{page.name}")] == []
    assert not indented("README.md")


def test_what_cannot_run_here_is_python() -> None:
    page = (ROOT / "docs" / "coming_from.md").read_text()
    found = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(found) == len(blocks("docs/coming_from.md")) + len(NOT_RUN)
    for first in NOT_RUN:
        [code] = [code for code in found if code.startswith(first)]
        ast.parse(textwrap.dedent(code))


@pytest.mark.parametrize("text", ["a\n\n    f(x)\n", "a\n\n    import a\n    a.b\n", "- a\n\n      x = {1: 2}\n"])
def test_indented_python_is_seen(text: str, tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(text)
    assert len(indented(str(file))) == 1
