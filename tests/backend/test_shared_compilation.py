"""Programs that are equal but for their names are compiled once, whatever mesh they are for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.verifier import verify
from mpmd_trace.jax_compat import runtime
from pipelines import assert_same, layer, loss_of, summed_gradients, topology
from util import names_of_events, normal

WIDTH = 8
text = Module.to_generic


_loss = loss_of(layer, "layer")


def _step(weights: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, summed_gradients(_loss, weights, batch))


def _jitted(meshes: int, devices: int = 1) -> tuple[Any, tuple[list[jax.Array], jax.Array]]:
    """The step as a pipeline of that many meshes with one layer each, and arguments for it."""
    where = {f"layer{i}": f"m{i}" for i in range(meshes)}
    config = mpmd_trace.make_config(topology(meshes, devices), where, pipeline_schedule="1F1B")
    weights = [0.5 * normal(i, WIDTH, WIDTH) for i in range(meshes)]
    return mpmd_trace.jit(_step, config), (weights, normal(meshes, 8, 4, WIDTH))


def _compilations(meshes: int) -> int:
    step, arguments = _jitted(meshes)
    lowered = step.lower(*arguments)
    with names_of_events("backend_compile_duration") as compiled:
        lowered.compile()
    return len(compiled)


def test_compilations_do_not_grow_with_equal_meshes() -> None:
    assert 0 < _compilations(8) == _compilations(4)


def _bodies(module: Module) -> list[Region]:
    return [function.regions[0] for function in module.functions if function.sym_name != "main"]


def test_functions_of_equal_stages_share_their_body_but_where_a_hook_may_change_them() -> None:
    step, arguments = _jitted(8)
    shared = step.lower(*arguments).partitioned.module
    own = step.lower(*arguments, hooks=[lambda run, module: None]).partitioned.module
    assert text(shared) == text(own)
    assert not verify(shared)
    assert len(set(_bodies(own))) == len(_bodies(own)) > 2 * len(set(_bodies(shared)))
    assert all(body.frozen for body in _bodies(shared)) and not any(body.frozen for body in _bodies(own))


def test_functions_that_a_hook_changed_are_compiled_as_they_are_then() -> None:
    def negate(run: Any, module: Module) -> None:
        if run.spec == "mpmd-lower-to-fragment-calls":
            for function in module.functions:
                for op in function.body:
                    if op.name == "stablehlo.tanh" and "layer2" in function.sym_name:
                        op.name = "stablehlo.negate"

    step, (weights, batch) = _jitted(4)
    wanted = jax.jit(_step)(weights, batch)
    compiled = step.lower(weights, batch, hooks=[negate]).compile()
    assert not np.allclose(compiled(weights, batch)[0], wanted[0])
    assert np.allclose(step(weights, batch)[0], wanted[0])


@pytest.mark.parametrize("devices", [1, 2])
def test_values_on_every_mesh(devices: int) -> None:
    step, arguments = _jitted(4, devices)
    assert_same(step(*arguments), jax.jit(_step)(*arguments), rtol=1e-6, atol=1e-7)
    meshes = [r.sharding.mesh for r in step(*arguments)]
    assert [list(m.devices.flat) for m in meshes] == [jax.devices()[i * devices :][:devices] for i in range(4)]


def test_platforms_that_cannot_compile_for_each_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "rebound", lambda *_: None)
    step, arguments = _jitted(4)
    compiled = step.lower(*arguments).compile()
    assert all(e.compiled_as == e.spec.callee for e in compiled.program.runtime.executables)
    assert_same(compiled(*arguments), jax.jit(_step)(*arguments), rtol=1e-6, atol=1e-7)


def test_how_much_xla_optimizes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    compile = runtime.compile_lowered

    def compiled(lowered: Any, options: Any = None) -> Any:
        given.append((lowered.as_text(), options))
        return compile(lowered, options)

    monkeypatch.setattr(runtime, "compile_lowered", compiled)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    step, arguments = _jitted(4)
    step.lower(*arguments).compile()
    levels: dict[int | None, list[str]] = {}
    for text, options in given:
        levels.setdefault(options.pop("xla_backend_optimization_level", None), []).append(text)
        assert not options
    assert all(not re.search(r"= stablehlo\.(?!constant)", text) for text in levels[0])
    assert all("subtract" in text and "tanh" not in text for text in levels[2])  # the update
    assert levels.keys() == {0, 2, None} and "tanh" in levels[None][0]
    given.clear()
    step.lower(*arguments).compile(compiler_options={f"m{i}": {"xla_embed_ir_in_executable": False} for i in range(4)})
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    step.lower(*arguments).compile()
    assert given and not any("xla_backend_optimization_level" in (options or {}) for _, options in given)


_CACHED = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import numpy as np
from test_shared_compilation import _jitted, _step
step, arguments = _jitted(4)
for wanted, got in zip(jax.jit(_step)(*arguments), step(*arguments), strict=True):
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)
"""


def test_what_xla_says_of_a_program_on_other_devices() -> None:
    step, arguments = _jitted(4)
    programs = step.lower(*arguments).compile().program.runtime.executables
    others = [e for e in programs if e.compiled_as != e.spec.callee]
    assert others
    for executable in others:
        if executable.spec.inputs:  # others make the zeros that sums start from
            assert executable.cost["flops"] > 0
        assert executable.temporary_bytes >= 0
        assert "HloModule" in executable.compiled.as_text()


def test_one_executable_on_other_devices() -> None:
    mesh_a, mesh_b = (Mesh(np.array(jax.devices()[i : i + 2]), ("x",)) for i in (0, 2))

    def spec(mesh: Mesh, *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((4, 4), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    text = "func.func @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> { return %a : tensor<4x4xf32> }"
    compiled = runtime.compile_lowered(runtime.lower_function(text, [spec(mesh_a, "x")], [spec(mesh_a, "x")]))
    bound = runtime.rebound(compiled, list(mesh_b.devices.flat), [spec(mesh_b, "x")])
    assert bound is not None
    x = jax.device_put(np.arange(16, dtype=np.float32).reshape(4, 4), spec(mesh_b, "x").sharding)
    (y,) = bound.call([x])
    assert y.sharding == x.sharding
    np.testing.assert_array_equal(y, x)


_COUNTED = """
from mpmd_trace.api import compilation_cache
compilation_cache.find = lambda *_: None  # as for a script that has changed: program by program
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event.rsplit("/", 1)[-1]))
compiled = step.lower(*arguments).compile()
programs = compiled.program.runtime.executables
print([found.count("cache_misses"), found.count("cache_hits"), len(programs)])
assert all(isinstance(e.compiled.serialized, bytes) for e in programs)
from mpmd_trace.jax_compat.runtime import deserialized
for e in programs:
    placement = compiled.program.placement
    devices = list(placement.meshes[e.spec.mesh].devices.flat)
    assert deserialized(e.compiled.serialized, devices, [placement.spec(*p) for p in e.spec.outputs])
"""


def test_equal_programs_are_one_entry_of_the_persistent_cache(tmp_path: Path) -> None:
    """The second process gets its executables from the cache of the first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    script = _CACHED.replace("for wanted", _COUNTED + "\nfor wanted")
    counts = []
    for _ in range(2):
        command = [sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        counts.append(json.loads(done.stdout))
    (missed, hit, programs), again = counts
    assert hit == 0 and 0 < missed < programs
    assert again == [0, missed, programs]
