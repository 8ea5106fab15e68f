"""The ops of the mpmd dialect (and `func.func`) as classes, and the module that holds functions.

Every other op is a leaf: an `Op` of the generic class whose attributes are kept as they are.
Source: the ops of the mpmd dialect (Shardy).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.ir.attributes import (
    ArrayAttr,
    Attribute,
    IntegerAttr,
    ReductionAttr,
    StringAttr,
    SymbolRefAttr,
    TensorShardingPerValueAttr,
    TopologyAttr,
    UserOriginAttr,
    integer_in,
)
from mpmd_trace.ir.core import Block, Op, Region, Use, Value, make_op, op_class
from mpmd_trace.ir.functions import FuncOp as FuncOp
from mpmd_trace.ir.printer import print_op
from mpmd_trace.ir.types import MeshTensorType, TensorType, Type
from mpmd_trace.jax_compat.mlir import prettify

#: The origin of fragments that compute before the first microbatch what is the same for all.
HOISTED = "hoisted"
#: Marks transfers to the memory of the host that are there to free that of the device until the value comes back.
OFFLOADED = "mpmd.offloaded"
#: Of a call, for how many iterations of a loop it stands.
REPEATS = "mpmd.repeats"
#: Of a function, how many iterations of its loop it goes without until those between others are put in.
OMITTED = "mpmd.omitted_iterations"
#: Of such a function, how many stacks it has of the results of all iterations; the last one is there for those as well.
STACKS = "mpmd.stacked_results"
#: Marks arguments that are sharded otherwise than the caller says, since an option wants it.
SHARDED_STATE = "mpmd.sharded_state"


class _WithBody(Op):
    __slots__ = ()

    @property
    def body(self) -> Region:
        """The body, which is frozen but for those of loops."""
        return self.regions[0]

    @body.setter
    def body(self, region: Region) -> None:
        assert region.frozen, "the body of a fragment or of a named computation must be frozen"
        self.regions[0] = region


class _WithOrigin(Op):
    __slots__ = ()

    @property
    def origin(self) -> tuple[UserOriginAttr, ...]:
        origins = self.props.get("origin")
        return origins.elements if isinstance(origins, ArrayAttr) else ()  # type: ignore[return-value]

    @origin.setter
    def origin(self, origins: Iterable[UserOriginAttr]) -> None:
        self.props["origin"] = ArrayAttr.get(origins)

    @property
    def mesh(self) -> str:
        """The name of the mesh it runs on."""
        return self.props["mesh_name"].value  # type: ignore[attr-defined,no-any-return]  # `cast` would be a call

    @mesh.setter
    def mesh(self, name: str) -> None:
        self.props["mesh_name"] = StringAttr.get(name)

    @property
    def call_counter(self) -> int | None:
        """The microbatch or call number, from the discardable attribute `call_counter`."""
        return integer_in(self.attrs, "call_counter")

    @property
    def is_user(self) -> bool:
        """True if it has an origin, i.e. contains code that the user named."""
        origins = self.props.get("origin")
        return isinstance(origins, ArrayAttr) and len(origins.elements) > 0


@op_class
class FragmentOp(_WithOrigin, _WithBody):
    """`mpmd.fragment`: a computation on one mesh.  Its body is frozen and may be shared."""

    __slots__ = ()
    op_name = "mpmd.fragment"

    @property
    def stage(self) -> int | None:
        return integer_in(self.props, "stage_id")

    @stage.setter
    def stage(self, value: int | None) -> None:
        if value is None:
            self.props.pop("stage_id", None)
        else:
            self.props["stage_id"] = IntegerAttr.get(value, "i64")

    @property
    def in_shardings(self) -> TensorShardingPerValueAttr | None:
        return cast("TensorShardingPerValueAttr | None", self.props.get("in_shardings"))

    @property
    def out_shardings(self) -> TensorShardingPerValueAttr | None:
        return cast("TensorShardingPerValueAttr | None", self.props.get("out_shardings"))


@op_class
class FragmentCallOp(_WithOrigin):
    """`mpmd.fragment_call`: a call of an SPMD function on a mesh."""

    __slots__ = ()
    op_name = "mpmd.fragment_call"

    @property
    def callee(self) -> str:
        return self.props["callee"].name  # type: ignore[attr-defined,no-any-return]


@op_class
class NamedComputationOp(_WithBody):
    """`mpmd.named_computation`: code that the user named.  Its body is frozen and may be shared."""

    __slots__ = ()
    op_name = "mpmd.named_computation"

    @property
    def origin(self) -> UserOriginAttr:
        return cast(UserOriginAttr, self.props["origin"])


@op_class
class NamedTensorOp(Op):
    """`mpmd.named_tensor`: an identity with a name."""

    __slots__ = ()
    op_name = "mpmd.named_tensor"

    @property
    def tensor_name(self) -> str:
        return cast(StringAttr, self.props["name"]).value


class _MeshCast(Op):
    __slots__ = ()

    @property
    def label(self) -> str | None:
        """The inherent `origin` string."""
        origin = self.props.get("origin")
        return origin.value if isinstance(origin, StringAttr) else None


@op_class
class AssignOp(_MeshCast):
    """`mpmd.assign`: puts a local tensor on a mesh (import phase only)."""

    __slots__ = ()
    op_name = "mpmd.assign"

    @property
    def mesh_type(self) -> MeshTensorType:
        return self.results[0].type  # type: ignore[return-value]  # `cast` would be a call


@op_class
class UnassignOp(_MeshCast):
    """`mpmd.unassign`: forgets the mesh of a value (import phase only)."""

    __slots__ = ()
    op_name = "mpmd.unassign"

    @property
    def mesh_type(self) -> MeshTensorType:
        return self.operand_uses[0].value.type  # type: ignore[return-value]


@op_class
class TransferOp(Op):
    """`mpmd.transfer`: moves a value between meshes, or changes its sharding or memory on one mesh."""

    __slots__ = ()
    op_name = "mpmd.transfer"

    @property
    def source_type(self) -> MeshTensorType:
        return self.operand_uses[0].value.type  # type: ignore[return-value]

    @property
    def target_type(self) -> MeshTensorType:
        return self.results[0].type  # type: ignore[return-value]

    @property
    def is_intra_mesh(self) -> bool:
        """Same mesh name and the same memory kind (absent and "device" differ)."""
        source, target = self.source_type, self.target_type
        return source.mesh == target.mesh and source.memory_kind == target.memory_kind

    @property
    def comes_back(self) -> bool:
        """True if the value was sent to host memory to free that of the device until now."""
        source = self.operand(0).defining_op
        return source is not None and OFFLOADED in source.attrs


@op_class
class CallOp(Op):
    """`mpmd.call`: a call of a private MPMD function."""

    __slots__ = ()
    op_name = "mpmd.call"

    @property
    def callee(self) -> str:
        return cast(SymbolRefAttr, self.props["callee"]).name

    @property
    def call_counter(self) -> int | None:
        return integer_in(self.attrs, "call_counter")

    @property
    def repeats(self) -> int:
        """For how many iterations of a loop it stands, its own and those that follow."""
        return integer_in(self.attrs, REPEATS) or 1


@op_class
class ForOp(_WithBody):
    """`mpmd.for`: a loop with a static number of iterations; the last block argument is the index."""

    __slots__ = ()
    op_name = "mpmd.for"

    @property
    def iterations(self) -> int:
        return cast(IntegerAttr, self.props["iterations"]).value

    @property
    def unroll_factor(self) -> int | None:
        return integer_in(self.props, "unroll_factor")


@op_class
class BroadcastOp(Op):
    """`mpmd.broadcast`: the value is wanted on every mesh that uses it."""

    __slots__ = ()
    op_name = "mpmd.broadcast"


@op_class
class ReduceOp(Op):
    """`mpmd.reduce`: a reduction over values that may live on different meshes."""

    __slots__ = ()
    op_name = "mpmd.reduce"

    @property
    def kind(self) -> str:
        reduction = self.props.get("reduction")
        return reduction.kind if isinstance(reduction, ReductionAttr) else "none"


def make_fragment(
    mesh: str,
    operands: Sequence[Value],
    result_types: Sequence[Type],
    body: Region,
    *,
    origin: Iterable[UserOriginAttr] = (),
    stage: int | None = None,
    attrs: Mapping[str, Attribute] | None = None,
    loc: Location = UNKNOWN,
) -> FragmentOp:
    """Return a detached fragment with a frozen body."""
    assert body.frozen
    props: dict[str, Attribute] = {"mesh_name": StringAttr.get(mesh), "origin": ArrayAttr.get(origin)}
    if stage is not None:
        props["stage_id"] = IntegerAttr.get(stage, "i64")
    op = make_op("mpmd.fragment", operands, result_types, props=props, attrs=attrs, regions=[body], loc=loc)
    return cast(FragmentOp, op)


def make_transfer(value: Value, target: Type, *, loc: Location | None = None) -> TransferOp:
    """Return a detached transfer of `value` to `target`."""
    return TransferOp("mpmd.transfer", [value], [target], loc=loc or value.location)


def before_transfers(value: Value) -> Value:
    """Return the value that is sent, when this one comes from a transfer, or from several one after the other."""
    op = value.defining_op
    while isinstance(op, TransferOp):
        value = op.operand(0)
        op = value.defining_op
    return value


def make_assign(
    value: Value,
    mesh_type: MeshTensorType,
    label: str | None = None,
    *,
    loc: Location | None = None,
    use: Use | None = None,
) -> AssignOp:
    """Return a detached assign of the local tensor `value`, with that use of it if one is given."""
    props: dict[str, Attribute] = {} if label is None else {"origin": StringAttr.get(label)}
    op = AssignOp("mpmd.assign", [] if use else [value], [mesh_type], props=props, loc=loc or value.location)
    if use is not None:  # wherever it is in the list
        use.owner, use.index = op, 0
        op.operand_uses, op._capacity = [use], 1
    return op


def make_unassign(value: Value, label: str | None = None, *, loc: Location | None = None) -> UnassignOp:
    """Return a detached unassign of the mesh tensor `value`."""
    assert isinstance(value.type, MeshTensorType)
    props: dict[str, Attribute] = {} if label is None else {"origin": StringAttr.get(label)}
    return UnassignOp("mpmd.unassign", [value], [value.type.tensor], props=props, loc=loc or value.location)


def make_return(values: Sequence[Value], name: str = "mpmd.return") -> Op:
    """Return a detached terminator."""
    return make_op(name, values)


def local_type(type: Type) -> Type:
    """Return the type inside a fragment of a value of this type outside: the global tensor of a mesh tensor."""
    return type.tensor if isinstance(type, MeshTensorType) else type


class Module:
    """A `builtin.module` with its functions.  `print` gives MLIR text that the dialect's parser reads."""

    __slots__ = ("op", "outlined", "resources")

    def __init__(self, op: Op | None = None, resources: str = "", outlined: Sequence[FuncOp] = ()) -> None:
        #: The functions of `ir/outlined.py`; not to be changed.
        self.outlined = tuple(outlined)
        #: The `{-# ... #-}` section that holds the data of `dense_resource` attributes, as text.
        self.resources = resources
        self.op = op if op is not None else Op("builtin.module", regions=[Region([Block()])])

    @property
    def body(self) -> Block:
        return self.op.regions[0].block

    @property
    def functions(self) -> list[FuncOp]:
        """The functions, in order (a fresh list)."""
        return [op for op in self.body if isinstance(op, FuncOp)]

    @property
    def mpmd_functions(self) -> list[FuncOp]:
        """The functions with a topology, in order."""
        return [f for f in self.functions if f.is_mpmd]

    @property
    def topology(self) -> TopologyAttr | None:
        """The topology of the first function that has one."""
        for f in self.functions:
            if f.topology is not None:
                return f.topology
        return None

    @property
    def name(self) -> str | None:
        symbol = self.op.attr("sym_name")
        return symbol.value if isinstance(symbol, StringAttr) else None

    def lookup(self, name: str) -> FuncOp | None:
        """Return the function with that symbol name."""
        for f in self.functions:
            if f.sym_name == name:
                return f
        return None

    @property
    def main(self) -> FuncOp:
        """The function `@main`.  Raises `ValueError` when there is none."""
        result = self.lookup("main")
        if result is None:
            raise ValueError("the module has no function @main")
        return result

    def walk(self, *, post_order: bool = True, reverse: bool = False) -> Iterator[Op]:
        return self.op.walk(post_order=post_order, reverse=reverse)

    def clone(self) -> Module:
        """Return a copy; bodies of fragments and named computations are shared, those of functions may change."""
        copy = Module(self.op.clone(), self.resources, self.outlined)
        copy.own_bodies()
        return copy

    def own_bodies(self) -> None:
        """Give functions that share a frozen body, as exported ones of equal stages do, one each that may change."""
        for function in self.functions:
            for i, region in enumerate(function.regions):
                if region.frozen:
                    function.regions[i] = own = region.clone()
                    own.parent = function

    def to_generic(self, *, debug_info: bool = False, outlined: bool = True) -> str:
        """Return the module in MLIR's generic form (fast; no dialect library is needed).

        outlined: with the outlined functions, behind the others.
        """
        if outlined and self.outlined:
            # Copies, since clones of the module, which others may print at the same time, share the functions.
            with self.body.also([function.clone() for function in self.outlined]):
                return self.to_generic(debug_info=debug_info, outlined=False)
        text = print_op(self.op, debug_info=debug_info) + "\n"
        return f"{text}\n{self.resources}\n" if self.resources else text

    def __str__(self) -> str:
        return prettify(self.to_generic())

    def __repr__(self) -> str:
        names = [f"@{f.sym_name}" for f in self.functions]
        more = f" and {len(names) - 4} more functions" if len(names) > 4 else ""
        meshes = "" if self.topology is None else f"; {', '.join(self.topology.meshes)}"
        return f"<mpmd_trace Module: {', '.join(names[:4]) or 'empty'}{more}{meshes}>"


def tensor_of(value: Value) -> TensorType | None:
    """Return the (global) tensor type of a tensor or mesh tensor; None for a token."""
    type = local_type(value.type)
    return type if isinstance(type, TensorType) else None
