"""`mpmd-generate-sdy-meshes-from-topology`."""

from __future__ import annotations

import functools
from typing import cast

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.attributes import MeshAttr, StringAttr, TensorShardingAttr, TopologyAttr
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.shardings import map_attributes, map_shardings, mesh_of, mesh_symbols
from mpmd_trace.passes.base import Pass

_EMPTY = "empty_mesh"


class GenerateSdyMeshesFromTopology(Pass):
    """Add one `sdy.mesh` per mesh of the topology, and make every sharding refer to one of them.

    The name of an axis must begin with its mesh, `<mesh>_<rest>`; other names, and axes of two meshes in one sharding,
    are errors. A sharding without axes refers to `@empty_mesh`, which is added to module and topology if needed. Old
    meshes are removed, except those without axes and those of single devices.

    Before:

        #fast = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>
        sdy.mesh @old = <["fast_x"=2, "slow_y"=2]>
        func.func public @main(%x: !t {sdy.sharding = #sdy.sharding<@old, [{"slow_y"}]>}) -> !t attributes
            {topology = #fast} {
          return %x : !t
        }

    After:

        sdy.mesh @fast = <["fast_x"=2]>
        sdy.mesh @slow = <["slow_y"=2]>
        func.func public @main(%arg0: !t {sdy.sharding = #sdy.sharding<@slow, [{"slow_y"}]>}) -> !t attributes
            {topology = #mpmd.topology<<"fast" : <["fast_x"=2]>>, <"slow" : <["slow_y"=2]>>>} {
          return %arg0 : !t
        }
    """

    name = "mpmd-generate-sdy-meshes-from-topology"
    summary = "replace the sdy meshes by those of the topology (heterogeneous meshes)"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        _Retarget(module, diagnostics).run()
        return True


class _Retarget:
    def __init__(self, module: Module, diagnostics: Diagnostics) -> None:
        mpmd = module.mpmd_functions
        if not mpmd or mpmd[0].topology is None:
            raise diagnostics.fatal(module.op, "no function of the module has a topology to take meshes from")
        self.function: FuncOp = mpmd[0]
        self.topology: TopologyAttr = mpmd[0].topology
        self.module = module
        self.diagnostics = diagnostics
        self.old_ops = [op for op in module.body if op.name == "sdy.mesh"]
        self.old_meshes = mesh_symbols(module)
        self.sharding = functools.cache(self._sharding)
        self.bodies: dict[Region, Region] = {}
        self.where: Op = module.op

    def run(self) -> None:
        for name, mesh in reversed(self.topology.meshes.items()):
            self.module.body.insert_front(_mesh_op(name, mesh))
        for op in self.module.body:
            self._visit(op)
        for op in self.old_ops:
            if _mesh_of(op).axes:
                op.erase()

    def _visit(self, op: Op) -> bool:
        """Retarget the shardings on the op and inside; says whether there were any to change."""
        self.where = op
        changed = map_attributes(op, functools.partial(map_shardings, change=self.sharding))
        for i, region in enumerate(op.regions):
            if region.frozen:
                op.regions[i] = self._body(region)
                changed = changed or op.regions[i] is not region
            else:
                changed = self._visit_region(region) or changed
        return changed

    def _body(self, body: Region) -> Region:
        """Return the retargeted body; the meshes are this module's, so it is not remembered for longer."""
        result = self.bodies.get(body)
        if result is None:
            copy = body.clone()
            result = self.bodies[body] = freeze(copy) if self._visit_region(copy) else body
        return result

    def _visit_region(self, region: Region) -> bool:
        changed = [self._visit(op) for block in region.blocks for op in block]
        return any(changed)

    def _sharding(self, sharding: TensorShardingAttr) -> TensorShardingAttr:
        # Axes that are only replicated or unreduced name their mesh, too; the empty mesh does not have them.
        if sharding.all_axes:
            return sharding.with_mesh(self._mesh_prefix(sharding))
        if not self._referenced(sharding).axes:
            return sharding
        self._need_empty_mesh()
        return sharding.with_mesh(_EMPTY)

    def _referenced(self, sharding: TensorShardingAttr) -> MeshAttr:
        """Return the mesh that the sharding refers to now."""
        result = mesh_of(sharding, self.old_meshes)
        if result is None:
            raise self.diagnostics.fatal(self.where, f"{sharding} refers to a mesh that is not in the module")
        return result

    def _mesh_prefix(self, sharding: TensorShardingAttr) -> str:
        prefixes: dict[str, str] = {}
        for axis in sharding.all_axes:
            prefix, _, rest = axis.name.partition("_")
            if not rest:
                raise self.diagnostics.fatal(
                    self.where,
                    f"the axis {quote(axis.name)} of {sharding} does not say its mesh: with "
                    "heterogeneous meshes, name axes MESH_AXIS",
                )
            prefixes.setdefault(prefix, axis.name)
        if len(prefixes) > 1:
            axes = " and ".join(quote(a) for a in prefixes.values())
            raise self.diagnostics.fatal(self.where, f"{sharding} mixes axes of different meshes: {axes}")
        prefix = next(iter(prefixes))
        if prefix in self.old_meshes:
            raise self.diagnostics.fatal(
                self.where,
                f"{sharding} needs the mesh {quote(prefix)} of the topology, but the program has an "
                "sdy mesh of that name; rename that mesh",
            )
        if prefix not in self.topology.meshes:
            known = ", ".join(quote(m) for m in self.topology.meshes)
            raise self.diagnostics.fatal(
                self.where,
                f"the axes of {sharding} belong to mesh {quote(prefix)}, which is not in the topology (it has {known})",
            )
        return prefix

    def _need_empty_mesh(self) -> None:
        present = next((op for op in self.module.body if _name(op) == _EMPTY), None)
        if present is None:
            empty = MeshAttr.get(())
            self.module.body.insert_front(_mesh_op(_EMPTY, empty))
            self.function.attrs["topology"] = TopologyAttr.get({**self.topology.meshes, _EMPTY: empty})
        elif present.name != "sdy.mesh" or _mesh_of(present).axes:
            raise self.diagnostics.fatal(
                present, f"@{_EMPTY} must be a mesh without axes, for shardings that are replicated; rename it"
            )


def _name(op: Op) -> str:
    symbol = op.props.get("sym_name")
    return symbol.value if isinstance(symbol, StringAttr) else ""


def _mesh_of(op: Op) -> MeshAttr:
    return cast(MeshAttr, op.props["mesh"])


def _mesh_op(name: str, mesh: MeshAttr) -> Op:
    return Op("sdy.mesh", props={"sym_name": StringAttr.get(name), "mesh": mesh})
