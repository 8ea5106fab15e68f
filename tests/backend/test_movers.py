"""Moves to other tiles: a program on the mesh of the value, and a copy where its result is in the wrong place."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from mpmd_trace.backend import movers
from mpmd_trace.backend.placement import Placement
from mpmd_trace.ir.types import MeshTensorType, parse_type
from pipelines import mesh

ROWS, COLUMNS = '[{"x"}, {}]', '[{}, {"x"}]'


def on_mesh(name: str, dims: str, memory: str = "") -> MeshTensorType:
    found = parse_type(f'!mpmd.mesh_tensor<"{name}", tensor<4x8xf32>, sharding=<@mesh, {dims}>{memory}>')
    assert isinstance(found, MeshTensorType)
    return found


@pytest.mark.parametrize(
    ("target", "copied"),
    [
        (on_mesh("a", COLUMNS), []),
        (on_mesh("a", COLUMNS, ', memory_kind="pinned_host"'), [True]),
        (on_mesh("the same backwards", COLUMNS), [True]),
        (on_mesh("b", COLUMNS), [False]),
    ],
    ids=["the same devices", "their host", "in another order", "others"],
)
def test_where_a_copy_follows(target: MeshTensorType, copied: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a buffer of its own where it might share that of the program's result."""
    a = mesh(0, (2,), "x")
    placement = Placement({"a": a, "the same backwards": Mesh(a.devices[::-1], ("x",)), "b": mesh(2, (2,), "x")})
    copies: list[movers.Copy] = []
    copying = movers.copying
    monkeypatch.setattr(movers, "copying", lambda those: (copies.extend(those), copying(those))[1])
    before = on_mesh("a", ROWS)
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    x = jax.device_put(values, placement.sharding(before))
    (moved,) = movers.Movers(placement).mover((((before, None, None), (target, None, None)),))([x])
    assert moved.sharding == placement.sharding(target)
    np.testing.assert_array_equal(moved, values)
    assert [fresh for _, fresh in copies] == copied
