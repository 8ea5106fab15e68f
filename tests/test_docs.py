"""The code in README and docs runs and does what the text says."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)


def run(code: str, tmp_path: Path) -> str:
    file = tmp_path / "doc.py"
    file.write_text(code)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_program_equals_plain_jit(tmp_path: Path) -> None:
    [code] = blocks("README.md")
    check = (
        "\nplain = jax.jit(step)(weights, batch)\n"
        "for a, b in zip(new_weights, plain):\n"
        "    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)\n"
        "print({d.id for w in new_weights for d in w.devices()})\n"
    )
    assert run(code + check, tmp_path).strip() == "{0, 1, 2, 3}"


def test_the_rules_in_the_docs_work(tmp_path: Path) -> None:
    [program] = blocks("README.md")
    check = """
for found in (eager, merged, compared):
    jitted = mt.jit(step, found)
    for a, b in zip(jitted(weights, batch), jax.jit(step)(weights, batch)):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)
    print(jitted.lower(weights, batch).as_text().count("mpmd.fragment_call"))
order = [line for line in mt.jit(step, eager).lower(weights, batch).as_text().splitlines() if 'mesh="first"' in line]
print([("B" if "(1)" in line else "F") for line in order if "fragment_call" in line and "layer" in line][:5])
"""
    out = run("\n".join([program, *blocks("docs/rules.md"), check]), tmp_path)
    text = (ROOT / "docs" / "rules.md").read_text()
    printed = re.findall(r"\n\n((?:    .*\n)+)", text)
    shown = [line.strip() for block in printed for line in block.splitlines()]
    assert len(shown) == 6
    for line in shown:
        line = re.sub(r" +\d+ flops.*", "", line).removesuffix("...")  # they differ between versions of JAX
        assert line in out, line
    assert [int(line) for line in out.splitlines() if line.isdigit()] == [32, 24, 24]
    assert "['F', 'F', 'F', 'B', 'B']" in out, out


def test_the_pass_in_the_docs_warns(tmp_path: Path) -> None:
    code = blocks("docs/passes.md")[0]
    check = """
from mpmd_trace import parse
from mpmd_trace.passes.manager import PassManager
m = 'mpmd.fragment<mesh="%s", origin=["f"]> (%%a) (%%x: tensor<4xf32>) { mpmd.return %%x : tensor<4xf32> } : (!a) -> !a'
text = '!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>\\n!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>\\n'
topology = '#mpmd.topology<<"a" : <["x"=1]>>, <"b" : <["x"=1]>>>'
text += f'func.func @main(%a: !a, %b: !b) -> (!a, !a, !a, !b) attributes {{topology = {topology}}} {{\\n'
for i in range(3):
    text += f'%{i} = ' + (m % 'a') + '\\n'
text += '%3 = ' + (m % 'b').replace('!a', '!b').replace('(%a)', '(%b)') + '\\nreturn %0, %1, %2, %3 : !a, !a, !a, !b }'
for ratio in (2, 3):
    manager = PassManager([CheckBalance(ratio=ratio)])
    manager.run(parse(text))
    print([d.message for d in manager.diagnostics])
"""
    assert run(code + check, tmp_path).splitlines() == [
        "[\"fragments per mesh: {'a': 3, 'b': 1}\"]",
        "[]",
    ]


def test_the_comparator_in_the_docs_is_gpipe() -> None:
    from tests.passes.optimize.pipeline_programs import orders, pipeline

    from mpmd_trace.ir.text import parse
    from mpmd_trace.passes.manager import run_passes
    from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler
    from mpmd_trace.passes.optimize.schedules import Comparator

    space: dict[str, Any] = {}
    code = blocks("docs/passes.md")[2].split("config =")[0]
    exec(code, space)
    module = parse(pipeline(2, 3))
    run_passes(module, [PipelineScheduler(Comparator("mine", space["one_forward_first"]))])
    assert orders(module)["m0"] == "F0 F1 F2 B0 B1 B2"


def test_the_configuration_of_a_state_in_the_docs() -> None:
    import mpmd_trace

    tiny = importlib.import_module("tests.programs.tiny").program()
    space = {"mpmd_trace": mpmd_trace, "topology": tiny.config.topology, "names": {"first": "m0"}}
    exec(blocks("docs/steps.md")[0], space)
    config: Any = space["config"]
    assert config.output_mesh_assignment == ((mpmd_trace.MeshOfInput(0), mpmd_trace.MeshOfInput(1)), None)


def test_the_model_in_the_docs_trains_over_two_meshes(tmp_path: Path) -> None:
    code = blocks("docs/equinox.md")[0]
    check = (
        "\nplain, expected = eqx.filter_jit(step)(Model(jax.random.key(0)), jnp.ones((4, 8)), True)\n"
        "np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=1e-5)\n"
        "print([d.id for b in model.blocks for d in b.linear.weight.devices()], model.blocks[1].mpmd_name)\n"
    )
    assert run(code + check, tmp_path).strip() == "[0, 1] blocks_1"


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_names_its_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text()
    assert f"\n{command.split()[1]}:" in (ROOT / "Makefile").read_text()


def test_a_format_in_the_docs_is_the_layout_of_the_argument(tmp_path: Path) -> None:
    before = """
import jax, jax.numpy as jnp, numpy as np
import mpmd_trace
jax.config.update("jax_num_cpu_devices", 2)
topology = {"m0": jax.sharding.Mesh(np.array(jax.devices()), ("x",))}
config = mpmd_trace.make_config(topology, {})
fn = lambda w, x: w @ x
"""
    after = """
x = np.arange(8.0, dtype=np.float32).reshape(2, 4)
assert np.array_equal(step(x, x.T), x @ x.T)
print(step.lower(x, x.T).compile().input_formats[0][0] == jax.device_put(x, columns).format)
"""
    [_, code] = blocks("docs/steps.md")
    assert run(before + code + after, tmp_path).strip() == "True"
