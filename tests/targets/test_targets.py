"""Programs that are compiled for TPUs which are not there: what XLA says of them, and what does not work with them."""

from __future__ import annotations

import importlib.util
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

import mpmd_trace as mt
from mpmd_trace.api.options import _HIDING, options_of_overlap
from mpmd_trace.api.targets import for_target
from mpmd_trace.jax_compat.collective_overlap import HiddenShare, hidden_shares
from mpmd_trace.jax_compat.layouts import padded_bytes
from mpmd_trace.jax_compat.runtime import Compiled
from mpmd_trace.jax_compat.targets import network_speed_of
from mpmd_trace.scheduling.transfers import Link, Links, over_network

ROOT = Path(__file__).parents[2]
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None
needs_libtpu = pytest.mark.skipif(
    not HAS_LIBTPU, reason="libtpu is not installed (pip install 'mpmd_trace[tpu-aot]'): nothing compiles for TPUs"
)
KINDS = {"v5e": "TPU v5 lite", "v6e": "TPU v6 lite"}


def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
    for i, w in enumerate(ws):
        x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
    return (x**2).mean()


def step(ws: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
    start = [jnp.zeros_like(w) for w in ws]
    grads = mt.enumerated_for(lambda i, c, x: jax.tree.map(jnp.add, c, jax.grad(loss)(ws, x)), start, batch)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)


def program(devices: Any, width: int = 96, **options: Any) -> mt.Program:
    """Two layers on two meshes of two devices, which share the rows of a batch."""
    meshes = {f"m{i}": Mesh(np.array(devices[2 * i : 2 * i + 2]), ("data",)) for i in range(2)}
    config = mt.make_config(meshes, {"layer0": "m0", "layer1": "m1"}, pipeline_schedule="1F1B", **options)
    args = ([jnp.zeros((width, width), jnp.bfloat16)] * 2, jnp.zeros((4, 8, width), jnp.bfloat16))
    rows = NamedSharding(meshes["m0"], PartitionSpec(None, "data"))
    return mt.Program(step, args, config, in_shardings=(None, rows))


def compiled_for(target: str, **options: Any) -> mt.stages.Compiled:
    moved = for_target(program(jax.devices()[:4], **options), target)
    return moved.jitted().lower(*moved.args).compile()


@needs_libtpu
@pytest.mark.parametrize("kind", KINDS)
def test_every_program_is_compiled_for_its_mesh(kind: str) -> None:
    compiled = compiled_for(f"tpu:{kind}:2x4")
    plan = compiled.program.plan
    assert {d.device_kind for m in compiled.program.topology.values() for d in m.devices.flat} == {KINDS[kind]}
    programs = compiled.executables()
    assert len(programs) == len(plan.programs) > 4
    for one in programs:
        assert "HloModule" in one.as_text() and "T(8,128)" in one.as_text()  # tiles, which CPUs do not have
        spec = next(e.spec for e in compiled.program.runtime.own_executables if e.compiled is one._compiled)
        taken = sum(padded_bytes(compiled.program.placement.spec(*place)) for place in spec.inputs)
        assert taken == one.memory_analysis().argument_size_in_bytes
    assert compiled.cost_analysis()["flops"] > 3 * 2 * 4 * 2 * 8 * 96 * 96
    assert "all-reduce" in compiled.collectives()["m0"].of  # gradients, summed over the rows
    for memory in compiled.memory_analysis().values():
        assert 96 * 128 * 2 <= memory.arguments < memory.peak  # a weight, whose rows are padded to 128


@needs_libtpu
@pytest.mark.parametrize(
    ("shape", "padded"), [((104, 128), (104, 128)), ((100, 90), (96, 128)), ((100, 3), (4, 128)), ((3, 100), (4, 128))]
)
def test_arrays_are_padded_to_tiles_as_xla_pads_them(shape: tuple[int, ...], padded: tuple[int, ...]) -> None:
    mesh = Mesh(np.array(mt.compiler.target_devices("tpu:v5e:2x2")[:1]), ("data",))
    given = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    taken = jax.jit(jnp.negative).lower(given).compile().memory_analysis().argument_size_in_bytes
    assert padded_bytes(given) == taken == 4 * np.prod(padded)


@needs_libtpu
def test_equal_programs_on_devices_placed_alike_are_compiled_once() -> None:
    compiled = compiled_for("tpu:v5e:2x4")
    names = {one.compiled_as for one in compiled.executables()}
    assert len(names) < len(compiled.executables())


@needs_libtpu
def test_what_needs_devices_is_refused(tmp_path: Path) -> None:
    moved = for_target(program(jax.devices()[:4]), "tpu:v5e:2x4")
    jitted = moved.jitted()
    compiled = jitted.lower(*moved.args).compile()
    args = program(jax.devices()[:4]).args
    calls: list[Any] = [
        lambda: compiled(*args),
        lambda: jitted(*args),
        lambda: compiled.measure(*args),
        lambda: compiled.place(*args),
        lambda: mt.place(compiled, args[0]),
        lambda: mt.create(lambda: args[0], compiled),
        lambda: compiled.save(tmp_path / "saved"),
    ]
    for call in calls:
        with pytest.raises(mt.MpmdError, match=r"compiled for TPU v5 lite devices that are described and not attached"):
            call()
    assert not (tmp_path / "saved").exists()


@needs_libtpu
def test_more_than_a_device_has_is_said() -> None:
    with pytest.raises(mt.MpmdError, match=r"(?s)XLA cannot compile.*for mesh 'm\d'.*15.75G"):
        compiled_for("tpu:v5e:2x2", width=1 << 16)
    fitted = compiled_for("tpu:v5e:2x2", remat="auto")  # which asks how much memory a device has
    assert fitted.lowered.limit == int(15.75 * 2**30)


@needs_libtpu
def test_meshes_that_share_devices_share_those_of_the_target() -> None:
    given = program(jax.devices()[:4])
    shared = {name: next(iter(given.config.topology.values())) for name in given.config.topology}
    config = mt.make_config(shared, {"layer0": "m0", "layer1": "m1"})
    moved = for_target(mt.Program(step, given.args, config), "tpu:v6e:1x2")
    first, second = (tuple(m.devices.flat) for m in moved.config.topology.values())
    assert first == second == tuple(mt.compiler.target_devices("tpu:v6e:1x2"))
    assert moved.jitted().lower(*moved.args).compile().memory_analysis()["m0"].peak > 0


@needs_libtpu
@pytest.mark.parametrize(("target", "slices"), [("tpu:v5e:1x2:2", [{0}, {1}]), ("tpu:v6e:1x1:4", [{0, 1}, {2, 3}])])
def test_meshes_may_be_on_several_slices(target: str, slices: list[set[int]]) -> None:
    """XLA compiles for the first slices alone, which are as good as others."""
    moved = for_target(program(jax.devices()[:4]), target)
    meshes = moved.config.topology
    assert [{d.slice_index for d in m.devices.flat} for m in meshes.values()] == slices
    compiled = moved.jitted().lower(*moved.args).compile()
    assert {name: set(m.devices.flat) for name, m in compiled.program.topology.items()} == {
        name: set(m.devices.flat) for name, m in meshes.items()
    }
    assert all(memory.peak > memory.arguments for memory in compiled.memory_analysis().values())
    links = over_network(Links(Link(2e-6, 50e9)), meshes)
    speed = network_speed_of(meshes["m0"].devices.flat[0])
    assert links.between("m0", "m1") == links.between("m1", "m0") == Link(2e-6, speed)


@needs_libtpu
def test_a_target_with_too_few_devices() -> None:
    with pytest.raises(mt.MpmdError, match=r"have 4 devices, and tpu:v5e:1x2 has 2"):
        for_target(program(jax.devices()[:4]), "tpu:v5e:1x2")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("v5e:2x4", "write the kind and grid of TPUs"),
        ("tpu:v5e:8", "write the kind and grid of TPUs"),
        ("tpu:v5e:2x4:0", "and the number of slices if there are several, as in tpu:v5e:2x4:2"),
        ("tpu:v9:2x2", "unknown kind of TPU; known are v2"),
        ("gpu:h100:1x2x8", "write a number of GPUs"),
        ("gpu:rtx:8", "unknown kind of GPU; known are a100"),
        ("tpu:v5p:2x2", "a grid of 2 dimensions; v5p has 3"),
    ],
)
def test_a_wrong_target(target: str, reason: str) -> None:
    with pytest.raises(mt.MpmdError, match=reason):
        mt.compiler.target_devices(target)


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is installed")
def test_without_libtpu_the_extra_is_named() -> None:
    with pytest.raises(mt.MpmdError, match=r"pip install 'mpmd_trace\[tpu-aot\]'"):
        mt.compiler.target_devices("tpu:v5e:2x4")


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=600
    )


@needs_libtpu
def test_the_command_line(tmp_path: Path) -> None:
    tiny, entry = str(ROOT / "tests" / "programs" / "tiny.py"), ("-m", "mpmd_trace_cli.entry")
    done = ran(*entry, "compile", tiny, "--target", "tpu:v5e:2x4", "--json", "-o", str(tmp_path / "hlo"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["fits"] is True and report["device_kind"] == "TPU v5 lite"
    assert set(report["meshes"]) == {"m0", "m1"} and all(p["optimal_seconds"] is not None for p in report["programs"])
    assert len(list((tmp_path / "hlo").glob("*.hlo"))) == len(report["programs"])
    done = ran(*entry, "explain", tiny, "--target", "tpu:v5e:2x4")
    assert re.search(r"fits: mesh 'm[01]' takes most, [\d,]+ of 16,911,433,728 bytes", done.stdout), done.stderr
    done = ran(*entry, "plan", tiny, "--target", "tpu:v5e:2x4", "--json")
    assert json.loads(done.stdout)["best"], done.stderr
    speeds = ("--tflops", "100", "--gbytes", "800")
    done = ran(*entry, "plan", tiny, "--target", "tpu:v5e:1x2:2", *speeds)
    assert "Link from m0 to m1: 0 us, 3.125 GB/s." in done.stdout, done.stderr
    done = ran(*entry, "plan", tiny, "--target", "tpu:v5e:2x4", "--measure")
    assert done.returncode == 2 and "a --target has no devices" in done.stderr


def test_without_estimates_of_xla_a_program_has_no_costs() -> None:
    assert Compiled(object(), list, lambda: None).cost_analysis() == {}


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None or importlib.util.find_spec("jax_plugins") is None,
    reason="jax-cuda13-plugin and jax-cuda13-pjrt are not installed: nothing compiles for GPUs",
)
def test_programs_are_compiled_for_gpus() -> None:
    tiny, entry = str(ROOT / "tests" / "programs" / "tiny.py"), ("-m", "mpmd_trace_cli.entry")
    done = ran(*entry, "compile", tiny, "--target", "gpu:h100:4", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["device_kind"] == "NVIDIA H100 80GB HBM3" and report["fits"] is True and report["estimated"] is True
    assert report["memory_of_a_device"] == int(0.75 * 84942979072)
    assert len(report["programs"]) == 7 and report["flops"] > 0
    done = ran(*entry, "plan", tiny, "--target", "gpu:a100:4", "--json")
    assert json.loads(done.stdout)["best"], done.stderr


@needs_libtpu
@pytest.mark.parametrize("kind", KINDS)
def test_xla_takes_the_options_of_pairs(kind: str) -> None:
    moved = for_target(program(jax.devices()[:4], overlap="pairs"), f"tpu:{kind}:2x4")
    options = {**_HIDING["tpu"], **_HIDING.get(KINDS[kind], {})}
    assert options_of_overlap(moved.config) == dict.fromkeys(("m0", "m1"), options)


@needs_libtpu
def test_what_a_mesh_hides_depends_on_whether_it_is_a_slice() -> None:
    devices = mt.compiler.target_devices("tpu:v6e:2x2")
    whole, part = (hidden_shares(some, with_options=True) or {} for some in (devices, devices[:2]))
    assert whole["all-reduce"].paired_forward == 1.0 and "all-reduce" not in part
    assert whole["all-to-all"] == part["all-to-all"]
    assert hidden_shares(mt.compiler.target_devices("tpu:v4:2x2x1"), with_options=True) is None


@needs_libtpu
@pytest.mark.nightly
@pytest.mark.parametrize("target", ["v5e:2x4", "v6e:2x4", "v5p:2x2x2"])
@pytest.mark.parametrize("layer", ["experts", "fsdp", "tensor"])
def test_what_is_assumed_to_be_hidden_is_hidden(target: str, layer: str) -> None:
    done = ran(str(ROOT / "benchmarks" / "overlap.py"), "--target", f"tpu:{target}", "--of", layer, "--json")
    found = json.loads(done.stdout)["of"]
    devices = mt.compiler.target_devices(f"tpu:{target}")[:4]
    for mode, with_options in (("separate", False), ("separate, options", True)):
        known = hidden_shares(devices, with_options=with_options) or {}
        for is_forward, program in ((True, "forward"), (False, "backward")):
            for kind, share in found[mode][program].items():
                assert known.get(kind, HiddenShare()).of(is_forward)[0] == pytest.approx(share, abs=0.05), kind
    for kind, share in found["pair"]["pair"].items():
        one = (hidden_shares(devices, with_options=True) or {}).get(kind, HiddenShare())
        halves = [one.of(is_forward)[1] for is_forward in (True, False)]
        assert min(halves) - 0.05 <= share <= max(halves) + 0.05, kind


@needs_libtpu
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("target", "layer"),
    [("v5e:2x4", "experts"), ("v5e:2x4", "tensor"), ("v6e:2x4", "experts"), ("v5p:2x2x2", "experts")],
)
def test_a_pair_hides_its_collectives(target: str, layer: str) -> None:
    done = ran(str(ROOT / "benchmarks" / "overlap.py"), "--target", f"tpu:{target}", "--of", layer, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


#: Those that several processes run are not among them.
EXAMPLES = sorted(p.stem for p in (ROOT / "examples").glob("*.py") if p.stem not in ("char_gpt", "elastic"))


@needs_libtpu
@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_step_of_an_example_is_compiled(name: str, kind: str) -> None:
    example = str(ROOT / "examples" / f"{name}.py")
    done = ran(str(Path(__file__).with_name("example_on_target.py")), example, f"tpu:{kind}:2x4")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["kinds"] == [KINDS[kind]] and said["flops"] > 0 and all(said["peak"].values())


@needs_libtpu
@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_the_demo_is_compiled(kind: str) -> None:
    demo = str(ROOT / "examples" / "char_gpt.py")
    done = ran("-m", "mpmd_trace_cli.entry", "compile", demo, "--target", f"tpu:{kind}:2x4", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["fits"] is True, done.stderr
