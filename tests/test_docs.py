"""The code in README and docs runs and does what the text says."""

from __future__ import annotations

import functools
import importlib
import json
import re
import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mpmd_trace
from doc_programs import READING_LITTLE, ROOT, blocks, run
from mpmd_trace import schedules
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir import ops
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import PassManager, run_passes
from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler
from mpmd_trace.passes.optimize.reference_schedules import Comparator
from mpmd_trace_devtools.interpreter import interpret
from util import nightly


def test_readme_program_equals_plain_jit(tmp_path: Path) -> None:
    [code] = blocks("README.md")
    check = (
        "\nplain, loss_of_batch = jax.jit(step)(weights, batch)\n"
        "np.testing.assert_allclose(float(value), float(loss_of_batch), rtol=1e-5)\n"
        "for a, b in zip(new_weights, plain):\n"
        "    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)\n"
        "print({d.id for w in new_weights for d in w.devices()})\n"
    )
    assert run(code + check, tmp_path).strip() == "{0, 1, 2, 3}"  # alone in test_packaging.py


def test_stacked_layers_in_the_docs(tmp_path: Path) -> None:
    [code] = blocks("docs/stacked.md")
    assert run(code, tmp_path).strip() == "(8, 16, 16) P('stage',)"
    said = re.findall(r"# (\(8.*)", code)
    assert said == ["(8, 16, 16) P('stage',)"]


@pytest.mark.nightly
def test_less_memory_in_the_docs(tmp_path: Path) -> None:
    run("".join(blocks("docs/memory.md")), tmp_path)


def test_the_tutorial_trains_like_plain_jit_and_goes_on(tmp_path: Path) -> None:
    code = "\n".join(blocks("docs/tutorial.md")).replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
    check = """
plain, state = Model(jax.random.key(0)), optimizer.init(eqx.filter(Model(jax.random.key(0)), eqx.is_array))
for expected in [*losses, float(loss)]:
    plain, state, value = plain_step(plain, state, x, y)
    np.testing.assert_allclose(expected, float(value), rtol=1e-4)
for a, b in zip(jax.tree.leaves(eqx.filter(model, eqx.is_array)), jax.tree.leaves(eqx.filter(plain, eqx.is_array))):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-5)
print([sorted(d.id for d in b.linear.weight.devices()) for b in model.blocks])
"""
    assert run(code + check, tmp_path).strip() == "[[0, 1], [0, 1], [2, 3], [2, 3]]"


@pytest.mark.nightly
def test_the_step_of_the_how_to_trains(tmp_path: Path) -> None:
    check = """
expected, state, plain = jax.jit(step)(parameters, optimizer.init(parameters), batch, key)
np.testing.assert_allclose(float(value), float(plain), rtol=1e-2)
for a, b in zip(jax.tree.leaves(trained), jax.tree.leaves(expected)):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-2, atol=1e-3)
given = jax.tree.map(np.asarray, trained)
np.testing.assert_allclose(np.asarray(answer), jax.jit(predict)(given, batch), rtol=1e-3, atol=1e-4)
print(float(average[0]))
"""
    out = run("\n".join([*blocks("docs/howto.md"), check]), tmp_path)
    assert float(out) == pytest.approx(1 - 0.9**4)


@pytest.mark.parametrize("page", ["debugging", "coming_from"])
def test_programs_of_the_other_pages(page: str, tmp_path: Path) -> None:
    [code] = blocks(f"docs/{page}.md")
    check = "\nassert float(value) > 0\n" if page == "coming_from" else ""
    assert run(code + check, tmp_path) == ""


def test_saving_a_compiled_program(tmp_path: Path) -> None:
    program = blocks("README.md")[0].replace("mt.jit(step, config)(weights, batch)", "None, None")
    saved = blocks("docs/compiling.md")[0]
    check = """
for a, b in zip(new_weights, jax.jit(step)(weights, batch)[0]):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)
print(again.as_text("plan") == compiled.as_text("plan"))
"""
    saved = saved.replace("step.mpmd", str(tmp_path / "step.mpmd"))
    assert run("\n".join([program, saved, check]), tmp_path).strip() == "True"


def test_the_rules_in_the_docs_work(tmp_path: Path) -> None:
    [program] = blocks("README.md")
    check = """
for found in (eager, merged, compared):
    jitted = mt.jit(step, found)
    for a, b in zip(jitted(weights, batch)[0], jax.jit(step)(weights, batch)[0]):
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
    assert [int(line) for line in out.splitlines() if line.isdigit()] == [28, 27, 27]
    assert "['F', 'F', 'F', 'B', 'B']" in out, out


def test_the_pass_in_the_docs_warns(tmp_path: Path) -> None:
    code = blocks("docs/passes.md")[0]
    check = """
from mpmd_trace.compiler import parse
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
    assert run(code + check, tmp_path).splitlines() == ["[\"fragments per mesh: {'a': 3, 'b': 1}\"]", "[]"]


def test_the_rewriting_pass_in_the_docs(tmp_path: Path) -> None:
    module = parse("""
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
func.func @main(%x: !a) -> !a attributes {topology = #mpmd.topology<<"a" : <["x"=1]>>>} {
  %0 = mpmd.fragment<mesh="a", origin=["f"]> (%x) (%p: tensor<4xf32>) {
    %1 = stablehlo.negate %p : tensor<4xf32>
    %2 = stablehlo.negate %1 : tensor<4xf32>
    %3 = stablehlo.add %2, %p : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32> } : (!a) -> !a
  return %0 : !a }""")
    space: dict[str, Any] = {}
    exec(blocks("docs/passes.md")[1], space)
    one, x = space["DropDoubleNegation"](), np.arange(4, dtype=np.float32)
    before = interpret(module, [x])
    assert [run.changed for _ in range(2) for run in PassManager([one], verify=True).run(module)] == [True, False]
    assert "negate" not in str(module)
    np.testing.assert_array_equal(interpret(module, [x]), before)


def test_the_schedule_that_the_docs_invent(tmp_path: Path) -> None:
    check = """
for a, b in zip(again, new_weights):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)
print(picture.startswith("<svg"), jitted.lower(weights, batch).schedule.name)
"""
    out = run("\n".join([*blocks("README.md"), *blocks("docs/custom_schedules.md"), check]), tmp_path)
    shown = re.findall(r"\n    (\S.*)", (ROOT / "docs/custom_schedules.md").read_text())
    said = [line for line in shown if re.match(r"(1f1b|eager) ", line)]
    lines = out.splitlines()
    assert lines[0].startswith("deadlock: mesh 0 is at 0B0") and lines[-3:-1] == said and lines[-1] == "True eager", out


def test_the_comparator_in_the_docs_is_gpipe() -> None:
    from tests.passes.optimize.pipeline_programs import orders, pipeline

    space: dict[str, Any] = {}
    code = blocks("docs/passes.md")[4].split("config =")[0]
    exec(code, space)
    module = parse(pipeline(2, 3))
    run_passes(module, [PipelineScheduler(Comparator("mine", space["one_forward_first"]))])
    assert orders(module)["m0"] == "F0 F1 F2 B0 B1 B2"


def test_the_gradient_over_microbatches_in_the_docs_is_that_of_the_batch() -> None:
    space: dict[str, Any] = {"mpmd_trace": mpmd_trace, "jax": jax, "jnp": jnp}
    exec(blocks("docs/steps.md")[0], space)
    parameters, tokens = jnp.eye(4), jax.random.normal(jax.random.key(0), (16, 4))
    weights = jnp.arange(16.0) % 3
    got, value = jax.jit(space["step"])(parameters, tokens, weights)
    totals = jax.value_and_grad(space["loss"], has_aux=True)
    (total, count), gradient = totals(parameters, tokens, weights)
    np.testing.assert_allclose(value, total / count, rtol=1e-5)
    np.testing.assert_allclose(got, parameters - 0.1 * gradient / count, rtol=1e-5, atol=1e-6)


def test_the_contrastive_loss_in_the_docs_is_that_of_the_batch() -> None:
    space: dict[str, Any] = {"jax": jax, "jnp": jnp, "mpmd_trace": mpmd_trace}
    exec(blocks("docs/steps.md")[1], space)
    images, texts, *weights = (jax.random.normal(k, (8, 4)) for k in jax.random.split(jax.random.key(0), 4))
    parameters = {"images": weights[0][:4], "texts": weights[1][:4], "scale": jnp.asarray(0.5)}
    whole = jax.value_and_grad(lambda p, *batch: space["clip"](p, space["embed"](p, *batch)))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, space["contrastive_step"](parameters, images, texts), whole(parameters, images, texts))


def test_the_encoder_in_the_docs_gives_the_gradient_of_the_batch() -> None:
    space: dict[str, Any] = {
        "mpmd_trace": mpmd_trace,
        "encode_images": lambda w, images: jnp.tanh(images @ w),
        "language_model": lambda parameters, encoded, tokens: jnp.mean((encoded @ parameters["model"] - tokens) ** 2),
    }
    exec(blocks("docs/steps.md")[2], space)
    images, tokens, *weights = (jax.random.normal(k, (8, 4)) for k in jax.random.split(jax.random.key(0), 4))
    parameters = {"vision": weights[0][:4], "model": weights[1][:4]}
    whole = lambda p: space["caption_loss"](p, {"images": space["vision"](p, images)}, tokens)  # noqa: E731
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    found = jax.jit(space["captioning_step"])(parameters, images, tokens)
    jax.tree.map(close, found, jax.value_and_grad(whole)(parameters))


def test_the_table_of_meshes_of_stages_has_each_schedule() -> None:
    table = (ROOT / "docs/schedules.md").read_text().partition("| schedules | ")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([a-z].*?) (?:\(.*?\) )?\|", table, re.MULTILINE)
    assert sorted([*", ".join(rows).split(", "), "none"]) == sorted(schedules.schedule_names())


def test_the_gradient_around_the_loop_in_the_docs_is_that_of_the_sum() -> None:
    space: dict[str, Any] = {"mpmd_trace": mpmd_trace, "jax": jax, "jnp": jnp}
    space.update(loss=lambda p, x: jnp.sum((p * x) ** 2))
    space.update(parameters=jnp.arange(4.0), batch=jax.random.normal(jax.random.key(0), (3, 4)))
    exec(blocks("docs/schedules.md")[1], space)
    np.testing.assert_allclose(space["gradients"], 2 * jnp.arange(4.0) * jnp.sum(space["batch"] ** 2, 0), rtol=1e-5)


def test_the_configurations_of_one_mesh_in_the_docs_are_the_same() -> None:
    devices = jax.devices()[:4]
    space: dict[str, Any] = {"mpmd_trace": mpmd_trace, "jax": jax, "np": np}
    exec(blocks("docs/steps.md")[3].replace("jax.devices()", "devices"), {**space, "devices": devices}, space)

    def fn(x: Any) -> Any:
        for i in range(2):
            x = mpmd_trace.named_computation(lambda x: x * 2, name=f"layer{i}")(x)
        return x

    texts = [mpmd_trace.jit(fn, space[config]).lower(np.ones(4)) for config in ("config", "by_work")]
    assert texts[0].as_text() == texts[1].as_text()


def test_the_configuration_of_a_state_in_the_docs() -> None:
    tiny = importlib.import_module("tests.programs.tiny").program()
    space = {"mpmd_trace": mpmd_trace, "topology": tiny.config.topology, "names": {"first": "m0"}}
    exec(blocks("docs/steps.md")[4], space)
    config: Any = space["config"]
    assert config.output_mesh_assignment == ((mpmd_trace.MeshOfInput(0), mpmd_trace.MeshOfInput(1)), None)


def test_the_model_in_the_docs_trains_over_two_meshes(tmp_path: Path) -> None:
    code = blocks("docs/equinox.md")[0]
    check = (
        "\nargs = Model(jax.random.key(0)), jnp.ones((4, 8)), jax.random.key(1), True\n"
        "plain, expected = eqx.filter_jit(step)(*args)\n"
        "np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=1e-5)\n"
        "print([d.id for b in model.blocks for d in b.linear.weight.devices()], model.blocks[1].mpmd_name)\n"
    )
    assert run(code + check, tmp_path).strip() == "[0, 1] blocks_1"


@pytest.mark.nightly
def test_the_flax_model_in_the_docs_trains_over_two_meshes(tmp_path: Path) -> None:
    code = blocks("docs/flax.md")[0]
    check = (
        "\nplain = Model(nnx.Rngs(0))\n"
        "state = nnx.Optimizer(plain, optax.adam(1e-3), wrt=nnx.Param)\n"
        "expected = nnx.jit(step)(plain, state, jnp.ones((4, 8)), jnp.zeros((4, 8)))\n"
        "np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=1e-5)\n"
        "print(plain.blocks[1].dropout.rngs.count[...], model.blocks[1].dropout.rngs.count[...])\n"
    )
    assert run(code + check, tmp_path).strip().splitlines() == ["{CpuDevice(id=1)}", "2 2"]


def test_the_dialect_in_the_docs() -> None:
    page = (ROOT / "docs" / "dialect.md").read_text()
    [example] = re.findall(r"```mlir\n(.*?)```", page, re.S)
    assert "mpmd.fragment_call" in parse(example).to_generic()  # verified as well
    rows = dict(re.findall(r"^\| `(mpmd\.\w+)(.*)$", page, re.M))
    names = {getattr(one, "op_name", None) or "" for one in vars(ops).values()}
    assert {name for name in names if name.startswith("mpmd.")} | {"mpmd.return"} == set(rows)
    for wrong in (("tensor<8x4xf32>, sharding", "tensor<7x4xf32>, sharding"), ('["x"=2]>} {', '["x"=4]>} {')):
        assert wrong[0] in example
        with pytest.raises(MpmdError):
            parse(example.replace(*wrong))


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
    [*_, code] = blocks("docs/steps.md")
    assert run(before + code + after, tmp_path).strip() == "True"


@pytest.mark.nightly
def test_a_ported_training_loop_trains_like_the_original(tmp_path: Path) -> None:
    check = """
np.testing.assert_allclose(after[1], before[1], rtol=1e-3)
print([sorted(d.id for d in jax.tree.leaves(b)[0].sharding.device_set) for b in mt.abstract(compiled).blocks])
"""
    out = run("\n".join([*blocks("docs/porting.md"), check]), tmp_path)
    assert out.strip() == "[[0, 1], [0, 1], [2, 3], [2, 3]]"


def test_mixed_precision_in_the_docs(tmp_path: Path) -> None:
    code = "\n".join(blocks("docs/mixed_precision.md"))
    check = """
plain = jax.jit(step)(parameters, optimizer.init(parameters), x, y)
np.testing.assert_allclose(float(value), float(plain[2]), rtol=2e-2)
np.testing.assert_allclose(float(same), float(value), rtol=1e-2)
assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(trained))
print(float(scale) > 1024)
new, old, scale, _ = scaled(parameters, optimizer.init(parameters), jnp.float32(jnp.inf), x, y)
print(all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(parameters))))
"""
    [said] = re.findall(r"print\(sorted\(sent\)\)  # (\[.*\])", code)
    assert run(code + check, tmp_path).splitlines() == [said, "True", "True"]


@pytest.mark.parametrize("page", ["resuming", "serving"])
def test_pages_that_check_themselves(page: str, tmp_path: Path) -> None:
    code = "\n".join(block for block in blocks(f"docs/{page}.md") if not block.startswith("mpmd_trace."))
    for file in ("nnx_checkpoint", "server.mpmd"):
        code = code.replace(f'"{file}"', repr(str(tmp_path / file)))
    assert "assert" in code
    run(code, tmp_path)


def test_data_loading_in_the_docs(tmp_path: Path) -> None:
    first, *_ = blocks("docs/data.md")
    assert run(first + "\nprint(value.shape)\n", tmp_path).strip() == "()"


def test_data_loading_with_grain_resumes(tmp_path: Path) -> None:
    pytest.importorskip("grain")
    code = "\n".join(blocks("docs/data.md")).replace('"run"', repr(str(tmp_path / "run"))).replace(*READING_LITTLE)
    check = """
parts = [next(loader(process, 2)) for process in range(2)]
assert [p.shape for p in parts] == [(2, 8), (2, 8)] and not np.array_equal(*parts)
"""
    run(code + check, tmp_path)


def test_metrics_in_the_docs_are_written_once_per_step(tmp_path: Path) -> None:
    code = [block for block in blocks("docs/metrics.md") if "tensorboardX" not in block]
    file = tmp_path / "metrics.jsonl"
    run("\n".join(code).replace('"metrics.jsonl"', repr(str(file))), tmp_path)
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [entry["step"] for entry in written] == list(range(5))
    losses = [entry["loss"] for entry in written]
    assert losses == sorted(losses, reverse=True) and all(entry["gradient_norm"] > 0 for entry in written)


def test_metrics_go_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    code = "\n".join(blocks("docs/metrics.md")).replace('writer("metrics.jsonl")', f"tensorboard({str(tmp_path)!r})")
    # Its thread may write after a flush: only what is closed is in the file.
    run(code.replace("    board =", "    global board\n    board =", 1) + "\nboard.close()\n", tmp_path)
    [events] = tmp_path.glob("events.out.*")
    assert events.read_bytes().count(b"gradient_norm") == 5


@pytest.mark.parametrize("file", ["api_examples.py", nightly("module_examples.py")])
def test_examples_of_public_names_run(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run((ROOT / "scripts" / file).read_text(), tmp_path)


def test_every_public_name_has_an_example() -> None:
    site = runpy.run_path(str(ROOT / "scripts" / "site_pages.py"))
    wanted = {*mpmd_trace.__all__} - {"__version__"}
    for module in mpmd_trace._MODULES:
        for names in (site["public"], site["constants"]):
            wanted |= {f"{module}.{name}" for name in names(f"mpmd_trace.{module}")}
    examples = site["examples"]()
    assert set(examples) == wanted
    for name, code in examples.items():
        assert name.rpartition(".")[2] in code, f"the example of {name} does not mention it"


def test_examples_of_schedules_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `module_examples.py` that need neither JAX nor minutes."""
    monkeypatch.chdir(tmp_path)
    run((ROOT / "scripts" / "module_examples.py").read_text().split("# == rules.")[0], tmp_path)


#: How many blocks of Python each page has, all of which run in a test, here or in `test_doc_fragments.py`: a new one
#: needs a test, too.
BLOCKS = {
    "checkpoints": 3,
    "choosing": 1,  # tests/cli/test_plan_command.py
    "coming_from": 1,
    "compiling": 3,
    "custom_schedules": 5,
    "data": 3,
    "debugging": 1,
    "equinox": 1,
    "extending": 1,
    "flax": 3,
    "gpus": 1,
    "hoisting": 1,
    "howto": 6,
    "memory": 3,
    "metrics": 5,
    "mixed_precision": 3,
    "passes": 5,
    "planning": 1,
    "porting": 2,
    "processes": 2,  # tests/processes/test_processes.py, test_doc_fragments.py
    "programs_of_a_step": 1,
    "resuming": 4,
    "rules": 5,
    "schedules": 4,
    "serving": 4,
    "stacked": 1,
    "steps": 6,
    "tpus": 1,
    "tutorial": 6,
}


def test_all_python_in_the_docs_is_run() -> None:
    pages = {page.stem: len(blocks(f"docs/{page.name}")) for page in sorted((ROOT / "docs").glob("*.md"))}
    assert {page: count for page, count in pages.items() if count} == BLOCKS


def test_code_that_needs_more_around_it(tmp_path: Path) -> None:
    """Blocks of pages that begin in the middle of a program."""
    before = """
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import Mesh
import mpmd_trace as mt
jax.config.update("jax_num_cpu_devices", 2)
"""
    shared = f"{blocks('docs/gpus.md')[0]}\nassert len({{d for m in meshes.values() for d in m.devices.flat}}) == 1\n"
    flax = """
from flax import linen
model = linen.Sequential([linen.Dense(4), linen.Dense(4)])
x = jnp.ones((4, 4))
variables = model.init(jax.random.key(0), x)
meshes = {f"m{i}": Mesh(np.array([device]), ("x",)) for i, device in enumerate(jax.devices())}
config = mt.make_config(meshes, {"layers_0": "m0", "layers_1": "m1"})


def step(state, batch):
    value, grads = jax.value_and_grad(lambda p: jnp.mean(state.apply_fn({"params": p}, batch) ** 2))(state.params)
    return state.apply_gradients(grads=grads), value
"""
    linen = blocks("docs/flax.md")[1].replace('"block_*"', '"layers_*"')
    check = """
state, value = train(state, x)
print([sorted(d.id for d in state.params[f"layers_{i}"]["kernel"].devices()) for i in range(2)])
import haiku as hk
part = lambda x: hk.Linear(4)(x)
"""
    haiku = blocks("docs/flax.md")[2]
    named = """
p = init(jax.random.key(0), x)
y = mt.jit(apply, mt.make_config(meshes, {"part": "m1"}))(p, jax.random.key(1), x)
np.testing.assert_allclose(y, hk.transform(part).apply(p, None, x), rtol=1e-6)
print(sorted(d.id for d in y.devices()))
pipeline = ["symbol-dce"]
module = mt.compiler.parse("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
"""
    code = "\n".join([before, shared, flax, linen, check, haiku, named, blocks("docs/passes.md")[3]])
    lines = run(code, tmp_path).splitlines()
    assert lines[:2] == ["[[0], [1]]", "[1]"] and lines[2].startswith("symbol-dce")


def test_checkpoints_in_the_docs(tmp_path: Path) -> None:
    run(blocks("docs/checkpoints.md")[2].replace('"model"', repr(str(tmp_path / "model"))), tmp_path)


def test_hoisting_in_the_docs(tmp_path: Path) -> None:
    run(blocks("docs/hoisting.md")[0], tmp_path)


def test_targets_in_the_docs(tmp_path: Path) -> None:
    pytest.importorskip("libtpu")
    run(blocks("docs/tpus.md")[0] + "\nassert meshes['first'].devices.size == 4\n", tmp_path)
