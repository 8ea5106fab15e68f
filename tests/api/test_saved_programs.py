"""Programs that are not compiled again: saved to files, and kept in JAX's persistent compilation cache."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from saved_step import arguments, check, config, step, topology

import mpmd_trace as mt
from mpmd_trace.backend.serialization import deserialize, with_checksum
from mpmd_trace.frontend.program_key import Unknown, key_of
from util import names_of_events


@functools.cache
def compiled() -> mt.stages.Compiled:
    return mt.jit(step, config(), donate_argnums=0).lower(*arguments()).compile()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    compiled().save(tmp_path / "step.mpmd")
    return tmp_path / "step.mpmd"


def test_a_program_is_loaded_without_tracing_and_compiling(file: Path) -> None:
    with names_of_events("jaxpr_trace_duration", "backend_compile_duration") as found:
        loaded = mt.load(file)
    assert not [name for name in found if "step" in name or name.startswith("p")]
    assert repr(loaded) == repr(compiled())
    assert loaded.as_text("plan") == compiled().as_text("plan")
    assert loaded.as_text() == compiled().as_text()
    assert loaded.memory_analysis() == compiled().memory_analysis()
    assert loaded.cost_analysis()["flops"] == compiled().cost_analysis()["flops"] > 0
    assert loaded.function_mesh_assignment == compiled().function_mesh_assignment
    check(loaded)


_FRESH = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 4)
import mpmd_trace as mt
from jax.sharding import Mesh
from saved_step import arguments, check
def trace(*_, **__): raise AssertionError("traced, or read the module")
import mpmd_trace.api.partitioned, mpmd_trace.frontend.trace
mpmd_trace.frontend.trace.trace = mpmd_trace.api.partitioned.parse_generic = trace
check(mt.load(sys.argv[1]))
"""


def _run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_loaded_program_can_be_saved_again_and_run_in_another_process(file: Path, tmp_path: Path) -> None:
    mt.load(file).save(tmp_path / "again.mpmd")
    _run(_FRESH, str(tmp_path / "again.mpmd"))


def test_on_other_devices(file: Path) -> None:
    loaded = mt.load(file, topology=topology(2))
    check(loaded)
    weights, _ = loaded(*arguments())
    assert weights["b"].sharding.mesh == topology(2)["two"]


def test_a_loaded_program_has_no_trace(file: Path) -> None:
    loaded = mt.load(file)
    for stage in ("jaxpr", "stablehlo"):
        with pytest.raises(mt.MpmdError, match=r"was loaded from .*, where its trace is not kept"):
            loaded.as_text(stage)


def test_wrong_arguments_are_told_as_before(file: Path) -> None:
    weights, batch, key = arguments()
    with pytest.raises(mt.MpmdError, match="step was compiled for other arguments"):
        mt.load(file)(weights, batch)
    with pytest.raises(mt.MpmdError, match=r"weights\['a'\]"):
        mt.load(file)({**weights, "a": jnp.ones((4, 4))}, batch, key)


def _changed(file: Path, change: Any) -> Path:
    """The file with another header."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(parts["header.json"])
    change(header, parts)
    parts["header.json"] = json.dumps(header).encode()
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
        archive.comment = bytes(64)
    file.write_bytes(with_checksum(data.getvalue()))
    return file


def test_other_versions_are_an_error(file: Path) -> None:
    def older(header: Any, _: Any) -> None:
        header["made with"].update(jaxlib="0.1.2", jax="0.1.3")

    with pytest.raises(mt.MpmdError) as error:
        mt.load(_changed(file, older))
    assert "it was compiled with jaxlib 0.1.2, and this is" in str(error.value)
    assert "it was compiled with jax 0.1.3, and this is" in str(error.value)


def test_too_few_devices_are_an_error(file: Path) -> None:
    def more(header: Any, _: Any) -> None:
        header["topology"]["two"]["devices"] = [4711]

    with pytest.raises(mt.MpmdError, match=r"it runs on 2 devices, numbers 0 to 4711, and here are .* without number"):
        mt.load(_changed(file, more))


def test_other_topologies_are_errors(file: Path) -> None:
    with pytest.raises(mt.MpmdError, match="its meshes are called one, two; the topology has one"):
        mt.load(file, topology={"one": topology()["one"]})
    wide = Mesh(np.array(jax.devices()[:2]), ("x",))
    with pytest.raises(mt.MpmdError, match=r"its mesh 'one' has axes {'x': 1}; the topology has {'x': 2}"):
        mt.load(file, topology={**topology(2), "one": wide})


@pytest.mark.parametrize("kind", ["empty", "text", "short"])
def test_files_that_are_not_ours(kind: str, file: Path) -> None:
    file.write_bytes({"empty": b"", "text": b"module {}" * 100, "short": b"x" * 64}[kind])
    with pytest.raises(mt.MpmdError, match="is damaged, or no program that mpmd_trace has saved"):
        mt.load(file)


def test_damaged_files(file: Path) -> None:
    """Any bit, and any end."""
    data = file.read_bytes()
    generator = random.Random(0)
    for _ in range(200):
        at = generator.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << generator.randrange(8)]) + data[at + 1 :]
        for bad in (flipped, data[:at]):
            with pytest.raises(mt.MpmdError, match=r"is damaged|has format"):
                deserialize(bad, "the file")


def test_older_files_say_so(file: Path) -> None:
    """Those had no checksum of the whole."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("header.json", json.dumps({"format": 4}))
    with pytest.raises(mt.MpmdError, match="it has format 4, this is 6; make it again"):
        mt.load(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(mt.MpmdError, match=r"cannot read .*nothing: No such file"):
        mt.load(tmp_path / "nothing")


def test_callbacks_cannot_be_saved(tmp_path: Path) -> None:
    def loud(weights: Any, batch: jax.Array, key: jax.Array) -> Any:
        jax.debug.print("{}", batch[0, 0, 0])
        return step(weights, batch, key)

    program = mt.jit(loud, config()).lower(*arguments()).compile()
    with pytest.raises(mt.MpmdError, match="loud calls back Python functions"):
        program.save(tmp_path / "loud.mpmd")


class Model(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear
    activation: Any

    def __call__(self, x: jax.Array) -> jax.Array:
        x = mt.named_computation(lambda m, x: self.activation(jax.vmap(m)(x)), name="a")(self.first, x)
        return mt.named_computation(lambda m, x: jax.vmap(m)(x), name="b")(self.second, x)


def _model(activation: Any) -> Model:
    one, two = jax.random.split(jax.random.key(0))
    return Model(eqx.nn.Linear(8, 8, key=one), eqx.nn.Linear(8, 8, key=two), activation)


@eqx.filter_jit
def _plain(model: Model, x: jax.Array) -> tuple[Model, jax.Array]:
    return model, model(x)


def test_models_with_functions_of_a_module(tmp_path: Path) -> None:
    model, x = _model(jax.nn.relu), jnp.ones((4, 8))
    program = mt.filter_jit(lambda m, x: (m, m(x)), config()).lower(model, x).compile()
    program.save(tmp_path / "model.mpmd")
    got = mt.load(tmp_path / "model.mpmd")(model, x)
    np.testing.assert_allclose(got[1], _plain(model, x)[1], rtol=1e-6)
    assert got[0].activation is jax.nn.relu


def test_models_with_functions_without_a_name(tmp_path: Path) -> None:
    program = mt.filter_jit(lambda m, x: m(x), config()).lower(_model(lambda x: x), jnp.ones((4, 8))).compile()
    with pytest.raises(mt.MpmdError, match=r"cannot be written to a file: .*lambda.*no lambdas"):
        program.save(tmp_path / "model.mpmd")


# ---- the persistent cache -------------------------------------------------------------------

_WARM = """
import json, sys, warnings
import jax
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import mpmd_trace as mt
from mpmd_trace.api import partitioned as program
from mpmd_trace.frontend.mpmd_interpreter import MpmdInterpreter
from jax.sharding import Mesh
from saved_step import arguments, check, config, step
done = []
def counted(owner, name):
    real = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: (done.append(name), real(*a, **k))[1])
counted(MpmdInterpreter, "program")
counted(program, "partition_as")
def listen(event, _, **more):
    if event.endswith("backend_compile_duration") and str(more["fun_name"]).startswith(("p", "jit_p")):
        done.append(more["fun_name"])
jax.monitoring.register_event_duration_secs_listener(listen)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    jitted = mt.jit(step, config(**eval(sys.argv[2])), donate_argnums=0)
    compiled = jitted.lower(*arguments()).compile()
print(json.dumps([done, sorted(str(w.message) for w in warned), compiled.as_text("plan"), compiled.as_text()]))
"""
_CHECKED = """
warnings.simplefilter("ignore", mt.MpmdWarning)
check(jitted)
assert "mpmd.named_computation" in jitted.lower(*arguments()).as_text("stablehlo")
"""


#: Options that a program warns of.
TOLD = "{'device_memory': 100, 'remat': 'auto'}"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The cache after a first process, and what that one said."""
    folder = tmp_path_factory.mktemp("warm")
    return folder, json.loads(_run(_WARM, str(folder), TOLD))


@pytest.fixture
def cache(warm: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of the cache."""
    return shutil.copytree(warm[0], tmp_path / "cache")


def test_an_unchanged_script_starts_with_tracing_only(warm: tuple[Path, Any], cache: Path) -> None:
    first, second = warm[1], json.loads(_run(_WARM + _CHECKED, str(cache), TOLD))
    assert "program" in first[0] and "partition_as" in first[0] and first[1]
    assert second[0] == []
    assert second[1:] == first[1:], "warnings are repeated"


def test_damaged_entries_are_made_again(cache: Path) -> None:
    entries = list(cache.glob("mpmd_trace-*-cache"))
    assert len(entries) == 1
    good = entries[0].read_bytes()
    middle = len(good) // 2
    bad = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    entries[0].write_bytes(bad)
    assert "partition_as" in json.loads(_run(_WARM, str(cache), TOLD))[0]
    assert entries == list(cache.glob("mpmd_trace-*-cache")) and entries[0].read_bytes() != bad, "it is not replaced"


def test_a_cache_of_somebody_else_is_not_run(cache: Path) -> None:
    cache.chmod(0o777)
    found = json.loads(_run(_WARM, str(cache), TOLD))
    assert "partition_as" in found[0]
    assert any(f"{cache} can be written to by all users" in text for text in found[1])


def _key(fn: Any, *more: Any) -> str:
    return key_of(jax.make_jaxpr(fn)(jnp.ones(4)), *more)


def test_keys_tell_programs_apart() -> None:
    small, large = np.arange(4.0, dtype=np.float32), np.ones(10_000, np.float32)
    programs = [
        lambda x: x + 1,
        lambda x: x + 2,
        lambda x: x * 2,
        lambda x: x + small,
        lambda x: x + (small + 1),
        lambda x: x + large[:4] * 0,
        lambda x: x + jnp.asarray(large)[0],
        lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.lax.cond(x[0] > 0, jnp.cos, jnp.sin, x),
        lambda x: mt.named_computation(jnp.sin, name="a")(x),
        lambda x: mt.named_computation(jnp.sin, name="b")(x),
        lambda x: mt.named_tensor(x, name="b"),
        lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, None, length=3)[0],
        lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, None, length=4)[0],
        lambda x: jnp.dot(x, x, precision="highest"),
        lambda x: jnp.dot(x, x),
    ]
    keys = [_key(one) for one in programs]
    assert len(set(keys)) == len(keys)
    assert keys == [_key(lambda *a, one=one: one(*a)) for one in programs]
    assert _key(programs[0], config()) != _key(programs[0], config(1))


def test_what_has_no_key() -> None:
    def called(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, x, x)

    with pytest.raises(Unknown, match="callback"):
        _key(called)
    with pytest.raises(Unknown, match="function"):
        _key(jnp.sin, lambda a, b: True)


def test_primitives_of_the_user_have_no_key() -> None:
    primitive = jax.extend.core.Primitive("mine")
    primitive.def_abstract_eval(lambda x: x)
    with pytest.raises(Unknown, match="the primitive mine"):
        _key(primitive.bind)
