"""What XLA compiled can be looked at, and leads back to the user's program."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from mpmd_trace.jax_compat import runtime
from pipelines import assert_same, batch, config, loss, weights
from shared_work import own_executables

MICROBATCHES = 3
NAMES = {"f0": "m0", "f1": "m1", "f2": "m2", "f3": "m3"}


def step(ws: Any, xs: Any) -> Any:
    def microbatch(i: Any, grads: Any, x: Any) -> Any:
        with jax.named_scope("my_scope"):
            return jax.tree.map(jnp.add, grads, jax.grad(loss)(ws, x))

    grads = mpmd_trace.enumerated_for(microbatch, jax.tree.map(jnp.zeros_like, ws), xs)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)


@pytest.fixture(scope="module")
def jitted() -> Any:
    return mpmd_trace.jit(step, config(NAMES, meshes=4, pipeline_schedule="1F1B"), donate_argnums=0)


@pytest.fixture(scope="module")
def compiled(jitted: Any) -> mpmd_trace.stages.Compiled:
    with own_executables():
        return jitted.lower(weights(4), batch(MICROBATCHES)).compile()


def test_what_batches_of_another_length_share_is_compiled_once(
    jitted: Any, compiled: mpmd_trace.stages.Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer's updates, and the zeros that sums start from, know nothing of the length."""
    asked: list[str] = []
    original = runtime.compile_lowered
    monkeypatch.setattr(runtime, "compile_lowered", lambda *args: asked.append("one") or original(*args))
    ws, xs = weights(4), jnp.concatenate([batch(MICROBATCHES)] * 2, axis=1)
    longer = jitted.lower(ws, xs).compile()
    found = longer.executables()
    layers = {e.compiled_as for e in found if "_fwd_" in e.name or "_bwd_" in e.name}
    others = {e.compiled_as for e in found} - layers
    assert others and others <= {e.compiled_as for e in compiled.executables()}
    assert {e.mesh for e in found if e.compiled_as in others} == {"m0", "m1", "m2", "m3"}
    assert len(asked) == len(layers), "forwards and backwards, nothing else"
    assert_same(longer(ws, xs), jax.jit(step)(weights(4), xs))


def test_each_program(compiled: mpmd_trace.stages.Compiled) -> None:
    found = compiled.executables()
    plan = compiled.program.plan
    assert [(e.name, e.mesh, e.donated) for e in found] == [(p.callee, p.mesh, p.donated) for p in plan.programs]
    assert sum(e.runs for e in found) == len(plan.runs)
    backward = next(e for e in found if "f1_bwd" in e.name)
    assert backward.runs == MICROBATCHES and backward.donated
    assert backward.cost_analysis()["flops"] > 0
    assert backward.memory_analysis().argument_size_in_bytes > 0
    assert backward.as_text().startswith("HloModule")
    shared = [e for e in found if e.compiled_as != e.name]
    assert shared
    for e in shared:
        assert any(without_places(e) == without_places(one) for one in found if one.name == e.compiled_as)


def without_places(found: Any) -> str:
    """The text without places in source files, whose numbers have no order."""
    text = re.sub(r", metadata=\{[^}]*\}", "", found.as_text())
    return "\n".join(line for line in text.splitlines() if not re.match(r"\d+ ", line))


def test_ops_have_the_names_and_lines_that_jit_gives_them(compiled: mpmd_trace.stages.Compiled) -> None:
    text = next(e for e in compiled.executables() if "f1_bwd" in e.name).as_text()
    name = next(e for e in compiled.executables() if "f1_bwd" in e.name).compiled_as
    scope = f'op_name="jit({name})/jit(step)/'
    assert scope in text, [line for line in text.splitlines() if "op_name" in line][:5]
    assert "transpose(jvp(" in text and "my_scope" in text and "dot_general" in text
    assert "pipelines.py" in text and "mpmd_program" not in text


def test_profiles_show_steps_programs_and_transfers(compiled: mpmd_trace.stages.Compiled, tmp_path: Path) -> None:
    args, _ = compiled.place(weights(4), batch(MICROBATCHES))
    new = compiled(*args)
    with jax.profiler.trace(str(tmp_path), create_perfetto_trace=True):
        jax.block_until_ready(compiled(new, args[1]))
    [path] = tmp_path.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    plan = compiled.program.plan
    names = [e.get("name", "") for e in events]
    forward = next(p for p in plan.programs if "f1_fwd" in p.callee)
    runs = [e["args"] for e in events if e.get("name") == f"{forward.callee} on m1" and "args" in e]
    assert [int(found["run"]) for found in runs] == list(range(MICROBATCHES))
    assert any(name.startswith("transfer m0 to m1") for name in names)
    steps = [e for e in events if e.get("name") == plan.name and "step_num" in e.get("args", {})]
    assert [int(e["args"]["step_num"]) for e in steps] == [1]
