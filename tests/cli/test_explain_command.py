"""`explain` on MLIR text and on programs."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from commands import Command, Writer, runner

TEXT = """func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
  %0 = mpmd.assign {origin = "o"} %a : (tensor<4xf32>) -> !mpmd.mesh_tensor<"m", tensor<4xf32>>
  %1 = mpmd.unassign %0 : (!mpmd.mesh_tensor<"m", tensor<4xf32>>) -> tensor<4xf32>
  %2 = stablehlo.add %1, %b : tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""
PROGRAM = pathlib.Path(__file__).parent.parent / "programs" / "tiny.py"


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `mpmd-trace explain`."""
    return runner(capsys, "explain")


def test_text(explain: Command, written: Writer) -> None:
    source = written(TEXT)
    status, out, err = explain(source, "--value", "in.mlir:5")
    assert (status, err) == (0, "") and out.startswith("'stablehlo.add'") and 'on mesh "m"' in out
    by_name = explain(source, "--value", "%2")
    assert by_name == (0, out, "") == explain(source, "--value", "result 0")
    assert explain(source, "--value", "%b") == explain(source, "--value", "input 1")
    status, _, err = explain(source, "--value", "%9")
    assert status == 2 and "in.mlir is called %9" in err
    status, _, err = explain(source, "--value", "result 1")
    assert status == 2 and "there is no result 1; results are counted from 0, and there are 1 (@main)" in err
    status, out, _ = explain(source, "--value", "input 1", "--json")
    found = json.loads(out)
    assert status == 0 and found["placements"][0]["meshes"] == ["m"]


def test_what_is_not_there(explain: Command, written: Writer) -> None:
    source = written(TEXT)
    status, out, err = explain(source, "--value", "in.mlir:55")
    assert (status, out) == (2, "") and "nothing in the module" in err
    source = written("module {}")
    status, out, err = explain(source, "--value", "x")
    assert (status, out) == (1, "") and "no function" in err


def test_program(explain: Command) -> None:
    status, out, err = explain(str(PROGRAM), "--value", "input 0")
    assert status == 0, err
    assert "is on mesh" in out or "needed" in out
    by_name = explain(str(PROGRAM), "--value", "result[0][1]")
    assert by_name[0] == 0 and 'on mesh "m1"' in by_name[1]


SHARDED = f"""
import sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import tiny, jax, jax.numpy as jnp, mpmd_trace
from jax.sharding import NamedSharding, PartitionSpec as P
from pipelines import summed_values

def step(ws, batch):
    return summed_values(tiny.loss, ws, batch)

base = tiny.program()
meshes = base.config.topology
places = [NamedSharding(mesh, P(None, "x")) for mesh in meshes.values()], NamedSharding(meshes["m0"], P(None, "x"))
program = mpmd_trace.Program(step, (base.args[0], base.args[1].reshape(2, 4, 4)), base.config, in_shardings=places)
"""


def test_what_is_done_once_per_step(explain: Command, written: Writer) -> None:
    source = written(SHARDED, "sharded.py")
    status, out, err = explain(source)
    assert status == 0, err
    assert "the same in all microbatches:\n  on mesh 'm0' reshard(ws[0]) (64 bytes, " in out and "hoisted" in out
    assert "collectives of a device in a step" in out
    assert "on mesh 'm1' 2 sums over devices are finished once per step" in out
    status, out, _ = explain(source, "--json")
    found = json.loads(out)
    assert found["collectives"]["m1"]["all-gather"] == {"runs": 1, "arrays": 1, "bytes": 64, "hidden": 0}
    assert found["meshes"][1]["hoisted"] == 64 and len(found["once_per_step"]) == 4 and not found["memory"]


def test_small_values_of_each_microbatch_are_counted_alone(explain: Command, written: Writer) -> None:
    cast = "lambda ws, x: tiny.loss([w.astype(jnp.bfloat16) for w in ws], x.astype(jnp.bfloat16)).astype(jnp.float32)"
    wide = SHARDED.partition("places =")[0].replace("tiny.loss", cast)
    args = "[jnp.ones((32, 32))] * 2, jnp.ones((2, 4, 32))"
    source = written(f"{wide}program = mpmd_trace.Program(step, ({args}), base.config)\n", "small.py")
    status, out, err = explain(source)
    assert status == 0, err
    status, listed, _ = explain(source, "--json")
    small = [text for text in json.loads(listed)["once_per_step"] if "less than launching a program" in text]
    assert small and "less than launching a program" not in out
    assert f"\n  small values computed in each microbatch: {len(small)} (--json lists them)\n" in out


def test_what_takes_less_memory(explain: Command, written: Writer) -> None:
    changed = "base.config.with_options(remat='auto', device_memory=10**6)"
    status, out, err = explain(written(SHARDED.replace("base.config", changed), "remat.py"))
    assert status == 0, err
    assert re.search(r"^memory:\n(  on mesh 'm\d' .*\n)+values that are the same in all microbatches:\n", out, re.M)
    assert "values take" in out and "memory: on" not in out


def test_what_a_program_holds_and_moves(explain: Command) -> None:
    status, out, err = explain(str(PROGRAM))
    assert status == 0, err
    assert "bytes on a device of each mesh" in out and "activations" in out and "cotangents" in out
    for a, b in (("m0", "m1"), ("m1", "m0")):
        assert re.search(rf"^sent from mesh to mesh\n(.*\n)+{a} +{b} +\d+ +[\d,]+$", out, re.M)
    status, out, _ = explain(str(PROGRAM), "--json")
    found = json.loads(out)
    assert status == 0 and [held["mesh"] for held in found["meshes"]] == ["m0", "m1"]
    assert found["moves"]["activations"]["count"] == sum(
        sent["times"] for sent in found["sent"] if sent["cause"] == "activations"
    )
    status, out, err = explain("-")
    assert (status, out) == (2, "") and "--value 'input 0'" in err


TOGETHER = """
import jax, jax.numpy as jnp, mpmd_trace
from jax.flatten_util import ravel_pytree
from jax.sharding import AbstractMesh
from pipelines import layer, loss_of

def step(ws, momentum, x):
    loss = loss_of(layer)
    flat, apart = ravel_pytree(jax.grad(loss)(ws, x))
    ranked = apart(jnp.sort(flat))
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, ranked)
    return jax.tree.map(jnp.subtract, ws, momentum), momentum

topology = {name: AbstractMesh((1,), ("x",)) for name in ("m0", "m1")}
config = mpmd_trace.make_config(topology, {"f0": "m0", "f1": "m1"}ASSIGNED)
ws = [jnp.ones((16, 16))] * 2
program = mpmd_trace.Program(step, (ws, ws, jnp.ones((2, 16))), config)
"""


def test_what_is_not_where_it_is_used_and_why(explain: Command, written: Writer) -> None:
    """All gradients are sorted as one array, on one mesh, where one state stays though its parameter does not."""
    source = written(TOGETHER.replace("ASSIGNED", ""), "together.py")
    status, out, err = explain(source)
    assert status == 0, err
    reason = re.search(r"^  (.*) is on (m\d), and (.*), whose state it is, on m\d\n    why: (.*)\n", out, re.M)
    assert reason is not None, out
    assert reason[1].startswith("momentum[") and "(1,024 bytes)" in reason[1] and reason[3].startswith("ws[")
    assert f'it is used on mesh "{reason[2]}" alone, by unnamed code' in reason[4]
    assert "combines values of several meshes, 1,040 bytes from others in a step" in reason[4]
    assert re.search(r"there 'stablehlo.concatenate' .*together.py:\d+", reason[4])

    source = written(TOGETHER.replace("ASSIGNED", ", input_mesh_assignment=(['m1', None], None, None)"), "together.py")
    status, out, err = explain(source, "--json")
    assert status == 0, err
    by_name = {one["name"]: one for one in json.loads(out)["not_where_used"]}
    assert by_name["ws[0]"]["mesh"] == "m1" and by_name["ws[0]"]["used_on"] == ["m0"]
    assert "an assignment, or a transfer, puts it there" in by_name["ws[0]"]["why"]


def test_named_computations(explain: Command) -> None:
    status, out, err = explain(str(PROGRAM), "--value", "second")
    assert status == 0, err
    assert out.startswith('named computation "second"') and 'is on mesh "m1"' in out
    assert "tiny.py:" in out
    status, out, err = explain(str(PROGRAM), "--value", "secnd")
    assert (status, out) == (2, "") and "did you mean second" in err
    assert "The names are first, second. The inputs are ws[0], ws[1], x." in err
    status, out, err = explain(str(PROGRAM), "--value", "input 99")
    assert (status, out) == (2, "")
    assert "there is no input 99; inputs are counted from 0, and there are 3 (@main)" in err


def test_computations_without_a_mesh(explain: Command, written: Writer) -> None:
    named = 'mpmd.named_computation<"f"> (%1) (%x: tensor<4xf32>) {\n    mpmd.return %x : tensor<4xf32>\n  }'
    source = written(TEXT.replace("stablehlo.add %1, %b : t", f"{named} : (tensor<4xf32>) -> t"))
    status, out, err = explain(source, "--value", "f")
    assert (status, out) == (1, "")
    assert "the named computation 'f' has no mesh yet" in err and "assignment=f@MESH" in err
