"""The order of meshes in a pipeline."""

import pytest

from mpmd_trace.ir.attributes import MeshAttr, TopologyAttr
from mpmd_trace.passes.mesh_order import (
    before,
    first_mesh,
    in_topology_order,
    mesh_index,
    schedulable_meshes,
    sort_by_mesh_order,
)


def topology(*names: str) -> TopologyAttr:
    return TopologyAttr.get({name: MeshAttr.get([("d", 4)]) for name in names})


def test_numbers_are_compared_as_numbers() -> None:
    assert before("m2", "m10")
    assert not before("m10", "m2")


def test_the_text_in_front_of_the_number_is_ignored() -> None:
    assert before("b1", "a2")
    assert not before("a1", "b1")
    assert not before("b1", "a1")


def test_names_without_number_are_compared_as_text() -> None:
    assert before("tpu", "tpu/cpu")
    assert before("alpha", "beta")


def test_numbers_beyond_32_bits_are_text() -> None:
    assert before("m10000000000", "m9000000000")
    assert before("m2147483648", "m9")
    assert before("m9", "m2147483647")


def test_sorting_is_stable() -> None:
    assert sort_by_mesh_order(["b1", "a10", "a1", "c0"], str) == ["c0", "b1", "a1", "a10"]


def test_first_mesh_is_the_smallest_name() -> None:
    assert first_mesh(topology("m2", "m10")) == "m10"


def test_host_meshes_are_not_stages() -> None:
    meshes = topology("m1", "m1/cpu", "m2")
    assert schedulable_meshes(meshes) == ["m1", "m2"]
    assert mesh_index(meshes, "m2") == 1
    with pytest.raises(ValueError):
        mesh_index(meshes, "m1/cpu")


def test_topology_order_puts_unknown_names_last() -> None:
    assert in_topology_order(["x", "m1", "m2", "m1"], topology("m2", "m1")) == ["m2", "m1", "x"]
    assert in_topology_order(["b", "a"], None) == ["b", "a"]
