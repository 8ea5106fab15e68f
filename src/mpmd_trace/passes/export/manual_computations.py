"""Manual computations of a lowered function speak of the mesh by the name that it has in the topology."""

from __future__ import annotations

from collections.abc import Iterator

from mpmd_trace.ir.attributes import MeshAttr, StringAttr, TensorShardingAttr
from mpmd_trace.ir.core import Op, Region, make_op
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.shardings import map_shardings

__all__ = ["has_manual_ops", "rename_meshes"]


def _manual_ops(body: Region) -> Iterator[Op]:
    """Yield the manual computations of a function's body, and everything nested in them."""

    def visit(region: Region, inside: bool) -> Iterator[Op]:
        for block in region.blocks:
            for op in block:
                here = inside or op.name == "sdy.manual_computation"
                if here:
                    yield op
                for nested in op.regions:
                    yield from visit(nested, here)

    return visit(body, False)


def has_manual_ops(body: Region) -> bool:
    return next(_manual_ops(body), None) is not None


def rename_meshes(module: Module, function: FuncOp, mesh_name: str, mesh: MeshAttr) -> None:
    """Make the manual computations of `function` refer to `@mesh_name`, which is added where it is missing."""
    renamed = False

    def rename(sharding: TensorShardingAttr) -> TensorShardingAttr:
        nonlocal renamed
        if not sharding.mesh.startswith("@") or sharding.mesh_name == mesh_name:
            return sharding
        renamed = True
        return sharding.with_mesh(mesh_name)

    for op in _manual_ops(function.regions[0]):
        for held in (op.props, op.attrs):
            for key, attribute in held.items():
                held[key] = map_shardings(attribute, rename)
    name = StringAttr.get(mesh_name)
    if renamed and not any(op.attr("sym_name") is name for op in module.body):
        module.body.insert_front(make_op("sdy.mesh", props={"sym_name": name, "mesh": mesh}))
