"""What each pass that changes something makes of a small Equinox model; every snapshot was read by a person.

`pytest tests/snapshots --snapshot-update` writes them anew; the numbers say in which order the passes ran.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

import mpmd_trace
from mpmd_trace.equinox import filter_jit, name_layers
from mpmd_trace.report.snapshots import Snapshots

pytestmark = pytest.mark.filterwarnings("ignore:\\s*Can not relate snapshot name")  # they are named after passes


class MlirExtension(SingleFileSnapshotExtension):
    """One `.mlir` file per snapshot."""

    _write_mode = WriteMode.TEXT
    file_extension = "mlir"

    @classmethod
    def get_snapshot_name(cls, *, test_location: Any, index: Any = 0) -> str:
        return str(index)


def canonical(text: str) -> str:
    """`text` with values numbered in the order of their definitions; MLIR's numbers depend on its version."""
    names: dict[str, str] = {}
    count = {"%": 0, "%arg": 0}

    def rename(match: re.Match[str]) -> str:
        kind, number, defines = match.groups()
        if defines:
            names[kind + number] = f"{kind}{count[kind]}"
            count[kind] += 1
        return names[kind + number] + (defines or "")

    found = []
    for line in text.splitlines(keepends=True):
        if "func.func" in line:
            count = {"%": 0, "%arg": 0}
        found.append(re.sub(r"(%arg|%)(\d+)((?::\d+)? =|: )?", rename, line))
    return "".join(found)


@pytest.fixture
def mlir(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(MlirExtension)


class Model(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(2, 2, use_bias=False, key=keys[0])
        self.second = eqx.nn.Linear(2, 2, use_bias=False, key=keys[1])

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.first(x)
        return self.second(h * 3.0)


def loss(model: Model, x: jax.Array) -> jax.Array:
    return jnp.sum(name_layers(model, lambda m: [m.first, m.second])(x))


def step(model: Model, x: jax.Array) -> Any:
    """Gradients of two microbatches, each one vector."""
    one = mpmd_trace.call(eqx.filter_grad(loss), 0)(model, x[0])
    two = mpmd_trace.call(eqx.filter_grad(loss), 1)(model, x[1])
    return jax.tree.map(jax.lax.add, one, two)


def snapshots(placement: str) -> Snapshots:
    found = Snapshots()
    meshes = {name: AbstractMesh((2,), ("data",)) for name in ("m0", "m1")}
    config = mpmd_trace.make_config(
        meshes,
        {"first": "m0", "second": "m1"},
        pipeline_schedule="1F1B",
        partitioning_options={"mpmd_infer_transfers": True},
        placement=placement,
    )
    x = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    model = eqx.filter_eval_shape(Model, jax.random.key(0))
    lowered = filter_jit(step, config).lower_lazily(model, x, hooks=[found])
    found.start(mpmd_trace.compiler.parse(lowered.traced.mlir_text()))
    _ = lowered.partitioned
    return found


def changes(found: Snapshots) -> list[tuple[str, str]]:
    """The passes that changed something, numbered, each with the text behind it."""
    made: list[tuple[str, str]] = []
    before = ""
    for name, text in found.texts.items():
        now = canonical(text)
        if now != before:
            made.append((f"{len(made):02d}_{Path(name).stem.partition('_')[2]}", now))
            before = now
    return made


def test_every_pass_that_changes_something(mlir: SnapshotAssertion) -> None:
    for name, text in changes(snapshots("reference")):
        assert text == mlir(name=name)


def test_the_passes_of_the_placement(mlir: SnapshotAssertion) -> None:
    """What `placement="cut"` does that the reference's does not."""
    found = dict(changes(snapshots("cut")))
    own = [name for name in found if name.partition("mpmd-")[2] in ("cut-in-calls", "place")]
    assert len(own) == 2
    for name in own:
        assert found[name] == mlir(name=f"cut_{name}")
