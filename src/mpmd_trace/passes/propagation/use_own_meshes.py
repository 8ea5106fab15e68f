"""`mpmd-use-own-meshes` (ours): a sharding means the axes of the mesh where its value is."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence

from mpmd_trace.ir.attributes import (
    SYMBOL,
    Attribute,
    DictAttr,
    MeshAttr,
    StringAttr,
    TensorShardingAttr,
    TensorShardingPerValueAttr,
    parse_attribute,
)
from mpmd_trace.ir.core import Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, tensor_of
from mpmd_trace.ir.shardings import map_attributes, map_shardings, mesh_of, mesh_ref, mesh_symbols
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.sharding.edges import CONSTRAINT, SHARDING, user_sharding

_MANUAL = "sdy.manual_computation"


class UseOwnMeshes(FunctionPass):
    """Make every sharding refer to the `sdy.mesh` of the mesh of its value.

    This is for topologies with different meshes. A sharding in a program may refer to another mesh that has axes of the
    same names, perhaps of other sizes; its axes then mean those of the mesh of the value. It is an error if this mesh
    lacks the axes, if they do not divide a dimension, or if a manual computation, which is written for certain sizes of
    axes, runs on a mesh with other sizes.

    Before:

        #uneven = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=4]>>>
        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%p: !b {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !b attributes
            {topology = #uneven} {
          return %p : !b
        }

    After:

        sdy.mesh @b = <["x"=4]>
        func.func public @main(%arg0: !b {sdy.sharding = #sdy.sharding<@b, [{"x"}]>}) -> !b attributes
            {topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=4]>>>} {
          return %arg0 : !b
        }
    """

    name = "mpmd-use-own-meshes"
    summary = "make shardings refer to the mesh of their value (meshes of different sizes)"
    mpmd_only = True
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return _Retarget(function, module, diagnostics).run()


class _Retarget:
    def __init__(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> None:
        assert function.topology is not None
        self.function = function
        self.module = module
        self.diagnostics = diagnostics
        self.meshes = function.topology.meshes
        self.before = mesh_symbols(module)
        #: The symbol of each mesh of the topology, and those that are needed.
        self.symbols = {name: self._free(name) for name in self.meshes}
        self.used: set[str] = set()
        self.bodies: dict[tuple[Region, str], Region] = {}
        self.said: set[str] = set()

    def _free(self, name: str) -> str:
        """Return a symbol for the mesh `name`: its name, if no function is called so."""
        taken = {op.attr("sym_name") for op in self.module.body if op.name != "sdy.mesh"}
        while StringAttr.get(name) in taken:
            name += "_mesh"
        return name

    def run(self) -> bool:
        function = self.function
        arguments = self._signature(function.args, function.arg_attrs)
        results = self._signature(function.returned, function.res_attrs)
        changed = arguments != function.arg_attrs or results != function.res_attrs
        function.set_all_arg_attrs(arguments)
        function.set_all_res_attrs(results)
        for op in function.body:
            changed = self._op(op) or changed
        if self.said:
            self.diagnostics.fail()
        return self._replace_meshes() or changed

    def _signature(self, values: Sequence[Value], dicts: Sequence[DictAttr]) -> list[DictAttr]:
        result = []
        for value, attrs in zip(values, dicts, strict=True):
            sharding = user_sharding(attrs)
            name = attrs.entries.get("jax.result_info")
            what = f"the sharding of {name.value}" if isinstance(name, StringAttr) else "a sharding"
            if sharding is not None:
                attrs = attrs.with_(SHARDING, self._of_value(sharding, value, value, what))
            result.append(attrs)
        return result

    def _op(self, op: Op) -> bool:
        """Retarget what an op of the function says about its operands and results, and in its body."""
        changed = False
        if isinstance(op, FragmentOp):
            body = self._body(op.body, op.mesh)
            changed = body is not op.body
            op.body = body
        for held in (op.props, op.attrs):
            for key, values in (("in_shardings", op.operands), ("out_shardings", op.results), (SHARDING, op.results)):
                old = held.get(key)
                if isinstance(old, TensorShardingPerValueAttr):
                    pairs = zip(old.shardings, values, strict=True)
                    held[key] = TensorShardingPerValueAttr.get(self._of_value(s, v, op) for s, v in pairs)
                    changed = changed or held[key] is not old
        return changed

    def _of_value(
        self, sharding: TensorShardingAttr, value: Value, where: Op | Value, what: str = "a sharding"
    ) -> TensorShardingAttr:
        type = value.type
        return self._on(sharding, type.mesh, where, type.tensor, what) if isinstance(type, MeshTensorType) else sharding

    def _body(self, body: Region, mesh: str) -> Region:
        """Return the body on this mesh; the symbols are this module's, so it is not remembered for longer."""
        result = self.bodies.get((body, mesh))
        if result is None:
            copy = body.clone()
            changed = [self._inner(op, mesh) for op in copy.walk()]
            result = self.bodies[body, mesh] = freeze(copy) if any(changed) else body
        return result

    def _inner(self, op: Op, mesh: str) -> bool:
        change = functools.partial(self._on, mesh=mesh, where=op)

        def on_mesh(attribute: Attribute) -> Attribute:
            new = map_shardings(attribute, change)
            return self._renamed(attribute, mesh) if new is attribute and "@" in attribute.text else new

        return map_attributes(op, on_mesh)

    def _renamed(self, attribute: Attribute, mesh: str) -> Attribute:
        """Return the attribute of another kind with the symbol of `mesh`: groups of devices in a manual computation."""

        def symbol(match: re.Match[str]) -> str:
            renamed = self.before.get(match[1].strip('"'))
            if renamed is None or not renamed.axes:
                return match[0]
            self.used.add(mesh)
            return mesh_ref(self.symbols[mesh])

        return parse_attribute(SYMBOL.sub(symbol, attribute.text))

    def _on(
        self,
        sharding: TensorShardingAttr,
        mesh: str,
        where: Op | Value,
        tensor: TensorType | None = None,
        what: str = "a sharding",
    ) -> TensorShardingAttr:
        """Return the sharding with the axes of `mesh`."""
        wanted = self.meshes[mesh]
        given = mesh_of(sharding, self.before)
        if given is not None and given.device_ids and not given.axes:
            return sharding  # on one device, as callbacks are
        if given is not None and given.axes != wanted.axes:
            problem = self._problem(sharding, given, mesh, where, tensor, what)
            if problem is not None:
                location = where.loc if isinstance(where, Op) else where.location
                said = f"{location} {problem}"
                if said not in self.said:  # the backward pass repeats what the forward pass says
                    self.said.add(said)
                    self.diagnostics.error(location, problem)
                return sharding
        self.used.add(mesh)
        return sharding.with_mesh(self.symbols[mesh])

    def _problem(
        self,
        sharding: TensorShardingAttr,
        given: MeshAttr,
        mesh: str,
        where: Op | Value,
        tensor: TensorType | None,
        what: str,
    ) -> str | None:
        """Why the sharding, which was written for other axes, cannot be used on `mesh`."""
        axes = dict(self.meshes[mesh].axes)
        here = f"is used on mesh '{mesh}', which has {_shape(self.meshes[mesh])}"
        if isinstance(where, Op) and where.name == _MANUAL:
            return (
                f"a shard_map over a mesh with {_shape(given)} {here}. It is made for the sizes of its axes: give it "
                f"the mesh '{mesh}', or assign its name to a mesh with those axes"
            )
        missing = [axis.name for axis in sharding.all_axes if axis.name not in axes]
        if missing:
            return (
                f"{what} over {' and '.join(map(repr, dict.fromkeys(missing)))} {here}. Shard over axes of that "
                "mesh, or assign what is sharded to a mesh that has them"
            )
        if isinstance(where, Op) and where.name == CONSTRAINT:
            tensor = tensor_of(where.operand(0))
        for dim, size in enumerate((tensor and tensor.shape) or ()):
            parts = math.prod(axis.size or axes[axis.name] for axis in sharding.dim_axes(dim))
            if size % parts:
                return (
                    f"{what} by {sharding.dims[dim]} {here}, where it cannot divide a dimension of size {size} "
                    f"into {parts} parts. Choose a size divisible by {parts}, or leave the dimension whole"
                )
        return None

    def _replace_meshes(self) -> bool:
        """There are `sdy.mesh` ops for the meshes that are used, and no others that have axes."""
        wanted = {self.symbols[name]: mesh for name, mesh in self.meshes.items() if name in self.used}
        present = {s: m for s, m in self.before.items() if m.axes}
        if self.said or present == wanted:
            return False
        for op in [op for op in self.module.body if op.name == "sdy.mesh"]:
            name = op.attr("sym_name")
            if isinstance(name, StringAttr) and (name.value in present or name.value in wanted):
                op.erase()
        for symbol, mesh in reversed(wanted.items()):
            props = {"sym_name": StringAttr.get(symbol), "mesh": mesh}
            self.module.body.insert_front(make_op("sdy.mesh", props=props))
        return True


def _shape(mesh: MeshAttr) -> str:
    return "{" + ", ".join(f"{name}: {size}" for name, size in mesh.axes) + "}"
