"""`func.func` as a class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.ir.attributes import ArrayAttr, Attribute, DictAttr, StringAttr, SymbolRefAttr, TopologyAttr, TypeAttr
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op, op_class
from mpmd_trace.ir.types import FunctionType, function_type

#: For each mesh that has the devices of an earlier one, the first that has them.
SHARED_DEVICES = "mpmd.shared_devices"


@op_class
class FuncOp(Op):
    """`func.func`."""

    __slots__ = ()
    op_name = "func.func"

    @property
    def sym_name(self) -> str:
        return cast(StringAttr, self.props["sym_name"]).value

    @sym_name.setter
    def sym_name(self, name: str) -> None:
        self.props["sym_name"] = StringAttr.get(name)

    @property
    def type(self) -> FunctionType:
        return cast(FunctionType, cast(TypeAttr, self.props["function_type"]).type)

    @type.setter
    def type(self, type: FunctionType) -> None:
        self.props["function_type"] = TypeAttr.get(type)

    @property
    def is_declaration(self) -> bool:
        return not self.regions or not self.regions[0].blocks

    @property
    def body(self) -> Block:
        """The entry block.  Raises `ValueError` for a declaration."""
        if self.is_declaration:
            raise ValueError(f"@{self.sym_name} has no body")
        return self.regions[0].blocks[0]

    @property
    def args(self) -> list[Value]:
        return list(self.body.args)

    @property
    def returned(self) -> list[Value]:
        """The operands of the return op."""
        return self.body.terminator.operands

    @property
    def visibility(self) -> str:
        """ "public" (also when nothing is written), "private" or "nested"."""
        visibility = self.props.get("sym_visibility") or self.attrs.get("sym_visibility")
        return visibility.value if isinstance(visibility, StringAttr) else "public"

    @visibility.setter
    def visibility(self, value: str) -> None:
        self.props["sym_visibility"] = StringAttr.get(value)

    @property
    def topology(self) -> TopologyAttr | None:
        topology = self.attrs.get("topology")
        return topology if isinstance(topology, TopologyAttr) else None

    @property
    def device_owners(self) -> dict[str, str]:
        """For each mesh of the topology the first one that has its devices: itself, unless meshes share them."""
        meshes = () if self.topology is None else self.topology.meshes
        result = self.attrs.get(SHARED_DEVICES)
        shared = result.entries if isinstance(result, DictAttr) else {}
        owners = {mesh: shared.get(mesh) for mesh in meshes}
        return {mesh: owner.value if isinstance(owner, StringAttr) else mesh for mesh, owner in owners.items()}

    @device_owners.setter
    def device_owners(self, owners: Mapping[str, str]) -> None:
        shared = {mesh: StringAttr.get(owner) for mesh, owner in owners.items() if owner != mesh}
        self.attrs.pop(SHARED_DEVICES, None)
        if shared:
            self.attrs[SHARED_DEVICES] = DictAttr.get(shared)

    def sharing(self, mesh: str) -> tuple[str, ...]:
        """Return the meshes of the topology that have the devices of a mesh, itself among them."""
        owners = self.device_owners
        return tuple(other for other, owner in owners.items() if owner == owners[mesh])

    @property
    def is_mpmd(self) -> bool:
        return "topology" in self.attrs

    @property
    def is_distributed(self) -> bool:
        return "topology" in self.attrs or "mesh_shape" in self.attrs

    @property
    def is_entry_point(self) -> bool:
        """Distributed and public."""
        return self.is_distributed and self.visibility == "public"

    # Argument and result attributes.

    def _dicts(self, which: str, count: int) -> list[DictAttr]:
        dicts = self.props.get(which)
        if isinstance(dicts, ArrayAttr):
            return [cast(DictAttr, e) for e in dicts.elements]
        return [DictAttr.get({})] * count

    @property
    def arg_attrs(self) -> list[DictAttr]:
        """One dictionary per argument (a fresh list)."""
        return self._dicts("arg_attrs", len(self.type.inputs))

    @property
    def res_attrs(self) -> list[DictAttr]:
        return self._dicts("res_attrs", len(self.type.results))

    def _set_dicts(self, which: str, dicts: Sequence[DictAttr]) -> None:
        if any(d.entries for d in dicts):
            self.props[which] = ArrayAttr.get(dicts)
        else:
            self.props.pop(which, None)

    def set_all_arg_attrs(self, dicts: Sequence[DictAttr]) -> None:
        self._set_dicts("arg_attrs", dicts)

    def set_all_res_attrs(self, dicts: Sequence[DictAttr]) -> None:
        self._set_dicts("res_attrs", dicts)

    def arg_attr(self, index: int, name: str) -> Attribute | None:
        return self._entry("arg_attrs", index, name)

    def res_attr(self, index: int, name: str) -> Attribute | None:
        return self._entry("res_attrs", index, name)

    def _entry(self, which: str, index: int, name: str) -> Attribute | None:
        entry = self.props.get(which)
        if not isinstance(entry, ArrayAttr):
            return None
        return cast(DictAttr, entry.elements[index]).entries.get(name)

    def set_arg_attr(self, index: int, name: str, value: Attribute | None) -> None:
        """Set an argument attribute; None removes it."""
        self._set_entry("arg_attrs", self.arg_attrs, index, name, value)

    def set_res_attr(self, index: int, name: str, value: Attribute | None) -> None:
        self._set_entry("res_attrs", self.res_attrs, index, name, value)

    def _set_entry(self, which: str, dicts: list[DictAttr], index: int, name: str, value: Attribute | None) -> None:
        dicts[index] = dicts[index].without(name) if value is None else dicts[index].with_(name, value)
        self._set_dicts(which, dicts)

    def refresh_type(self) -> None:
        """Set the function type from the entry block and the terminator; new entries get no attributes."""
        arg_attrs, res_attrs = self.arg_attrs, self.res_attrs
        inputs = tuple(a.type for a in self.body.args)
        results = tuple(v.type for v in self.returned)
        self.type = function_type(inputs, results)
        empty = DictAttr.get({})
        self.set_all_arg_attrs((arg_attrs + [empty] * len(inputs))[: len(inputs)])
        self.set_all_res_attrs((res_attrs + [empty] * len(results))[: len(results)])

    def erase_args(self, indices: Iterable[int]) -> None:
        """Remove arguments with their attributes and refresh the type."""
        gone = set(indices)
        arg_attrs = [d for i, d in enumerate(self.arg_attrs) if i not in gone]
        self.body.erase_args(gone)
        self.set_all_arg_attrs(arg_attrs)
        self.refresh_type()

    def erase_results(self, indices: Iterable[int]) -> None:
        """Remove results with their attributes (from the return op, too) and refresh the type."""
        gone = set(indices)
        res_attrs = [d for i, d in enumerate(self.res_attrs) if i not in gone]
        self.body.terminator.erase_operands(gone)
        self.set_all_res_attrs(res_attrs)
        self.refresh_type()


def callee_of(call: Op) -> str:
    """Return the name of the function that a `func.call` calls."""
    return cast(SymbolRefAttr, call.props["callee"]).name


def function_around(op: Op) -> FuncOp | None:
    """Return the function that the op is in, or is."""
    around: Op | None = op
    while around is not None and not isinstance(around, FuncOp):
        around = around.parent_op
    return around


def make_function(
    name: str,
    region: Region,
    *,
    attrs: Mapping[str, Attribute] | None = None,
    visibility: str | None = None,
    loc: Location = UNKNOWN,
) -> FuncOp:
    """Return a detached `func.func` of one block, which ends with its return."""
    block = region.block
    type = function_type(tuple(a.type for a in block.args), tuple(v.type for v in block.terminator.operands))
    props: dict[str, Attribute] = {"sym_name": StringAttr.get(name), "function_type": TypeAttr.get(type)}
    if visibility is not None:
        props["sym_visibility"] = StringAttr.get(visibility)
    return cast(FuncOp, make_op("func.func", props=props, attrs=attrs, regions=[region], loc=loc))
