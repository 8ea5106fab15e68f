"""What must hold for a single op of the mpmd dialect, one function per op."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mpmd_trace.diagnostics.messages import Note
from mpmd_trace.ir.attributes import (
    ArrayAttr,
    DictAttr,
    IntegerAttr,
    MeshAttr,
    StringAttr,
    TopologyAttr,
    UserOriginAttr,
)
from mpmd_trace.ir.core import Block, BlockArg, Op, OpResult, Value
from mpmd_trace.ir.functions import function_around
from mpmd_trace.ir.ops import CallOp, ForOp, FragmentCallOp, FragmentOp, FuncOp, ReduceOp, _MeshCast
from mpmd_trace.ir.types import MeshTensorType, TensorType, Type
from mpmd_trace.ir.verify_types import mesh_tensor_problem, no_mesh


@dataclasses.dataclass
class Problem:
    """A rule that does not hold, and the op that it is about."""

    where: Op
    message: str
    notes: Sequence[Note] = ()


class _Sort(NamedTuple):
    """A sort of types: its name, its classes, whether tokens are of it, too."""

    name: str
    classes: tuple[type[Type], ...]
    tokens: bool = False

    def has(self, type: Type) -> bool:
        return isinstance(type, self.classes) or (self.tokens and type.is_token)


_TENSOR, _MESH_TENSOR = _Sort("a tensor", (TensorType,)), _Sort("a mesh tensor", (MeshTensorType,))
_TENSOR_OR_TOKEN = _Sort("a tensor or a token", (TensorType,), True)
_MESH_OR_TOKEN = _Sort("a mesh tensor or a token", (MeshTensorType,), True)
_EITHER = _Sort("a tensor or mesh tensor", (TensorType, MeshTensorType))
_ANY = _Sort("anything", (Type,))


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Operand and result types, numbers of operands, parents and inherent attributes of an op."""

    operands: _Sort
    given: _Sort
    count: tuple[int, int | None] = (0, None)
    results: int | None = None
    parents: tuple[str, ...] = ()
    props: tuple[str, ...] = ()
    regions: int = 0


_LEVELS = ("func.func", "mpmd.for")
_SHAPES: dict[str, _Shape] = {
    "mpmd.fragment": _Shape(_MESH_OR_TOKEN, _MESH_OR_TOKEN, parents=_LEVELS, props=("origin", "mesh_name"), regions=1),
    "mpmd.fragment_call": _Shape(
        _MESH_TENSOR, _MESH_TENSOR, parents=("func.func",), props=("origin", "mesh_name", "callee")
    ),
    "mpmd.transfer": _Shape(_MESH_TENSOR, _MESH_TENSOR, (1, 1), 1, ("func.func",)),
    "mpmd.assign": _Shape(_TENSOR, _MESH_TENSOR, (1, 1), 1, _LEVELS),
    "mpmd.unassign": _Shape(_MESH_TENSOR, _TENSOR, (1, 1), 1, _LEVELS),
    "mpmd.call": _Shape(_EITHER, _EITHER, props=("callee",)),
    "mpmd.for": _Shape(_ANY, _ANY, props=("iterations",), regions=1),
    "mpmd.named_computation": _Shape(_TENSOR_OR_TOKEN, _TENSOR_OR_TOKEN, props=("origin",), regions=1),
    "mpmd.named_tensor": _Shape(_TENSOR, _TENSOR, (1, 1), 1, props=("name",)),
    "mpmd.broadcast": _Shape(_TENSOR, _TENSOR, (1, 1), 1),
    "mpmd.reduce": _Shape(_TENSOR, _TENSOR, (1, None), 1),
    "mpmd.return": _Shape(_ANY, _ANY, results=0, parents=("mpmd.fragment", "mpmd.named_computation", "mpmd.for")),
}
#: Ops whose blocks MLIR wants to end with `mpmd.return`.
_RETURNING = frozenset({"mpmd.fragment", "mpmd.named_computation", "mpmd.for"})


def op_problem(op: Op, function: FuncOp | None, parent: Op | None = None) -> Problem | None:
    """Return the first problem of an op, or None.

    `function`: the function around the op; `parent`: the op around it (for ops in frozen bodies).
    """
    shape = _SHAPES.get(op.name)
    message: str | None = None
    if shape is not None:
        message = _shape_problem(op, shape)
        if message is None:
            result = parent_problem(op, parent if parent is not None else op.parent_op)
            if result is not None:
                return result
    if message is None:
        check = _CHECKS.get(op.name)
        if check is not None:
            message = check(op, function if function is not None else function_around(op))
    return None if message is None else Problem(op, message)


def parent_problem(op: Op, parent: Op | None) -> Problem | None:
    """Return whether the op stands in an op where it may."""
    shape = _SHAPES.get(op.name)
    if shape is None or not shape.parents or parent is None or parent.name in shape.parents:
        return None
    return Problem(op, f"'{op.name}' stands in a {parent.name}; it belongs in a {' or '.join(shape.parents)}")


def block_problem(block: Block, parent: Op) -> Problem | None:
    """Return whether a block ends as the op around it wants it to."""
    if parent.name not in _RETURNING:
        return None
    last = block.last
    if last is None:
        return Problem(parent, f"the body of '{parent.name}' is empty; it must end with 'mpmd.return'")
    if last.name != "mpmd.return":
        return Problem(last, f"the body of '{parent.name}' ends with '{last.name}', not with 'mpmd.return'")
    return None


# What needs to look up symbols.


def call_problem(op: CallOp, known: Mapping[str, Op]) -> Problem | None:
    callee = known.get(op.callee)
    if not isinstance(callee, FuncOp):
        return Problem(op, f"'mpmd.call' op calls @{op.callee}, which is not a function of the module")
    for what, mine, theirs in (
        ("operand", [v.type for v in op.operands], callee.type.inputs),
        ("result", [r.type for r in op.results], callee.type.results),
    ):
        for i, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if a is not b:
                return Problem(op, f"{what} {i} of the call has type {a}, @{op.callee} has {b} there")
    if callee.is_mpmd and callee.visibility != "private":
        return Problem(op, f"@{op.callee} is called, so it must be private: public ones with a topology are entries")
    return None


def fragment_call_problem(op: FragmentCallOp, known: Mapping[str, Op]) -> Problem | None:
    callee, function = known.get(op.callee), function_around(op)
    if not isinstance(callee, FuncOp):
        return Problem(op, f"the fragment call runs @{op.callee}, which is not a function of the module")
    inputs, results = callee.type.inputs, callee.type.results
    message = _mesh_values(op, op.mesh, function, inputs, results, f"@{op.callee}")
    if message is not None:
        return Problem(op, message)
    shape = callee.attrs.get("mesh_shape")
    if not isinstance(shape, MeshAttr):
        return Problem(callee, f"@{op.callee} is run by a fragment call, so it needs a mesh_shape")
    topology = function.topology if function is not None else None
    mesh = topology.meshes.get(op.mesh) if topology is not None else None
    if mesh is None:
        return Problem(op, f'the topology has no mesh "{op.mesh}"')
    if mesh is not shape:
        return Problem(op, f'mesh "{op.mesh}" is {mesh.body}, but @{op.callee} is for {shape.body}')
    return None


def func_call_problem(op: Op, known: Mapping[str, Op]) -> Problem | None:
    name = op.props.get("callee") or op.attrs.get("callee")
    symbol = getattr(name, "name", None)
    callee = known.get(symbol) if isinstance(symbol, str) else None
    if not isinstance(callee, FuncOp):
        return Problem(op, f"the call of {name} names no function of the module")
    wanted = (callee.type.inputs, callee.type.results)
    if (tuple(v.type for v in op.operands), tuple(r.type for r in op.results)) != wanted:
        return Problem(op, f"the types of the call of @{symbol} are not those of the function, {callee.type}")
    return None


def _shape_problem(op: Op, shape: _Shape) -> str | None:
    missing = [name for name in shape.props if name not in op.props]
    if missing:
        return f"'{op.name}' needs the attribute {' and '.join(missing)}"
    least, most = shape.count
    if op.num_operands < least or (most is not None and op.num_operands > most):
        return f"'{op.name}' has {op.num_operands} operands, not {least}{'' if most else ' or more'}"
    if shape.results is not None and len(op.results) != shape.results:
        return f"'{op.name}' has {len(op.results)} results, not {shape.results}"
    if len(op.regions) != shape.regions:
        return f"'{op.name}' has {len(op.regions)} regions, not {shape.regions}"
    if any(len(region.blocks) != 1 for region in op.regions):
        return f"the region of '{op.name}' must be one block"
    for i, value in enumerate(op.operands):
        if not shape.operands.has(value.type):
            return f"operand {i} of '{op.name}' must be {shape.operands.name}, not {value.type}"
    for i, result in enumerate(op.results):
        if not shape.given.has(result.type):
            return f"result {i} of '{op.name}' must be {shape.given.name}, not {result.type}"
    return None


# One function per op: what is wrong with it, or None.


def _topology(function: FuncOp | None) -> TopologyAttr | str:
    """Return the topology of the function, or what is wrong with it."""
    if function is None:
        return "the op is in no function with a topology"
    result = function.attrs.get("topology")
    if isinstance(result, TopologyAttr):
        return result
    if result is None:
        return f"@{function.sym_name} has no topology; write attributes {{topology = #mpmd.topology<...>}}"
    return f"the topology of @{function.sym_name} must be a #mpmd.topology<...>, not {result}"


def _mesh_values(
    op: Op, mesh: str, function: FuncOp | None, args: Sequence[Type], returned: Sequence[Type], body: str
) -> str | None:
    """Return the types outside and inside of a fragment or fragment call fit."""
    for what, inner_what, outer, inner in (
        ("operand", "argument", [v.type for v in op.operands], args),
        ("result", "returned value", [r.type for r in op.results], returned),
    ):
        if len(outer) != len(inner):
            return f"the fragment has {len(outer)} {what}s, but {body} has {len(inner)} {inner_what}s"
        if not outer:
            continue
        topology = _topology(function)
        if isinstance(topology, str):
            return topology
        if mesh not in topology.meshes:
            return no_mesh(mesh, topology)
        for i, (a, b) in enumerate(zip(outer, inner, strict=True)):
            if not isinstance(a, MeshTensorType):
                if a is not b:
                    return f"{what} {i} has type {a}, but the {inner_what} has {b}"
                continue
            if a.mesh != mesh:
                return f'{what} {i} is on mesh "{a.mesh}", the fragment is on "{mesh}"'
            problem = mesh_tensor_problem(a, topology)
            if problem is not None:
                return f"{what} {i}: {problem}"
            if a.tensor is not b:
                return f"{what} {i} is a {a.tensor}, but the {inner_what} of {body} is a {b}"
    return None


def _fragment(op: Op, function: FuncOp | None) -> str | None:
    assert isinstance(op, FragmentOp)
    origin = op.props["origin"]
    if not isinstance(origin, ArrayAttr) or not all(isinstance(o, UserOriginAttr) for o in origin.elements):
        return f"the origin of a fragment is a list of names, not {origin}"
    terminator = op.body.block.last
    returned = [v.type for v in terminator.operands] if terminator is not None else []
    args = [a.type for a in op.body.block.args]
    return _mesh_values(op, op.mesh, function, args, returned, "its body")


def _mesh_type(type: Type, function: FuncOp | None) -> str | None:
    assert isinstance(type, MeshTensorType)
    topology = _topology(function)
    return topology if isinstance(topology, str) else mesh_tensor_problem(type, topology)


def _transfer(op: Op, function: FuncOp | None) -> str | None:
    source, target = op.operand(0).type, op.results[0].type
    problem = _mesh_type(source, function) or _mesh_type(target, function)
    if problem is not None:
        return problem
    assert isinstance(source, MeshTensorType) and isinstance(target, MeshTensorType)
    if source.tensor is not target.tensor:
        return f"a transfer cannot make a {target.tensor} of a {source.tensor}: the global types must be equal"
    for kind in (source.memory_kind, target.memory_kind):
        if kind not in (None, "device", "pinned_host"):
            return f'the memory kind is "device" or "pinned_host", not "{kind}"'
    if _declared_kind(op.operand(0)) == "pinned_host":
        return "the operand is put on the host by an attribute; write the memory kind in its type"
    own = op.attrs.get("mhlo.memory_kind")
    if isinstance(own, StringAttr) and own.value == "pinned_host":
        return "the result is put on the host by an attribute; write the memory kind in its type"
    return None


def _declared_kind(value: Value) -> str | None:
    """Return the memory kind that attributes give a value."""
    name, declared = "mhlo.memory_kind", None
    if isinstance(value, BlockArg):
        function = value.owner.parent_op
        if isinstance(function, FuncOp):
            declared = function.arg_attr(value.index, name)
    elif isinstance(value, OpResult):
        op = value.op
        if op.name == "mpmd.transfer":
            declared = op.attrs.get(name)
        elif op.name in ("mpmd.fragment", "mpmd.fragment_call", "mpmd.call", "mpmd.for"):
            dicts = op.attr("res_attrs")
            if isinstance(dicts, ArrayAttr) and value.index < len(dicts.elements):
                entry = dicts.elements[value.index]
                declared = entry.entries.get(name) if isinstance(entry, DictAttr) else None
    return declared.value if isinstance(declared, StringAttr) else None


def _cast(op: Op, function: FuncOp | None) -> str | None:
    assert isinstance(op, _MeshCast)
    mesh_type, local = op.results[0].type, op.operand(0).type
    if op.name == "mpmd.unassign":
        mesh_type, local = local, mesh_type
    problem = _mesh_type(mesh_type, function)
    if problem is not None:
        return problem
    assert isinstance(mesh_type, MeshTensorType)
    if mesh_type.sharding is not None and not mesh_type.sharding.is_fully_replicated:
        return f"the mesh tensor of '{op.name}' must be replicated, not {mesh_type.sharding.stripped}"
    if mesh_type.tensor is not local:
        return f"the local tensor is a {local}, the one on the mesh a {mesh_type.tensor}"
    return None


def _call(op: Op, function: FuncOp | None) -> str | None:
    assert isinstance(op, CallOp)
    counter = op.attr("call_counter")
    if counter is not None and not (isinstance(counter, IntegerAttr) and counter.type == "ui32"):
        return f"call_counter is a ui32, not {counter}"
    parent = op.parent_op
    if parent is None or parent.name not in _LEVELS:
        where = "a body" if parent is None else parent.name
        return f"the call of @{op.callee} stands in {where}; calls belong in a func.func or mpmd.for"
    if function is not None and function.is_mpmd and not function.is_entry_point:
        caller = function.sym_name
        return f"@{op.callee} is called from @{caller}, which is called itself: calls cannot be nested"
    return None


def _for(op: Op, function: FuncOp | None) -> str | None:
    assert isinstance(op, ForOp)
    for name in ("iterations", "unroll_factor"):
        attribute = op.props.get(name)
        if attribute is not None and not (isinstance(attribute, IntegerAttr) and attribute.type == "ui32"):
            return f"{name} is a ui32, not {attribute}"
    types = [v.type for v in op.operands]
    if [r.type for r in op.results] != types:
        return "the results of a loop have the types of its operands"
    block = op.body.block
    if len(block.args) != len(types) + 1:
        wanted = f"{len(types)} + 1 arguments (the index)"
        return f"a loop over {len(types)} values has {wanted}, not {len(block.args)}"
    for i, (arg, type) in enumerate(zip(block.args, types, strict=False)):
        if arg.type is not type:
            return f"argument {i} of the loop has type {arg.type}, its operand has {type}"
    index = block.args[-1].type
    if not isinstance(index, TensorType) or index.shape != () or index.element not in ("i32", "ui32", "si32"):
        return f"the index of a loop is a tensor<ui32>, not {index}"
    if len({type_kind(type) for type in types}) > 1:
        return "the values of a loop are all tensors or all mesh tensors"
    if block.last is not None and [v.type for v in block.last.operands] != types:
        return "a loop returns values of the types of its operands"
    if op.iterations == 0:
        return "a loop runs at least once: iterations must not be 0"
    factor = 1 if op.unroll_factor is None else op.unroll_factor
    if factor == 0 or op.iterations % factor:
        return f"{op.iterations} iterations cannot be unrolled by {factor}: it must divide them"
    return None


def type_kind(type: Type) -> str:
    """Return what sort of type it is, whatever its parameters."""
    if isinstance(type, TensorType):
        return "tensor" if type.is_ranked else "unranked tensor"
    return "mesh tensor" if isinstance(type, MeshTensorType) else type.text.partition("<")[0]


def _named_computation(op: Op, function: FuncOp | None) -> str | None:
    block = op.regions[0].block
    returned = [v.type for v in block.last.operands] if block.last is not None else []
    for what, inner_what, outer, inner in (
        ("operand", "argument", [v.type for v in op.operands], [a.type for a in block.args]),
        ("result", "returned value", [r.type for r in op.results], returned),
    ):
        if len(outer) != len(inner):
            return f"the computation has {len(outer)} {what}s, but its body has {len(inner)} {inner_what}s"
        for i, (a, b) in enumerate(zip(outer, inner, strict=True)):
            if a is not b:
                return f"{what} {i} has type {a}, but the {inner_what} has {b}"
    return None


def _same_types(op: Op, function: FuncOp | None) -> str | None:
    types = {v.type for v in op.operands} | {r.type for r in op.results}
    if len(types) > 1:
        return f"the operands and the result of '{op.name}' must have one type"
    if isinstance(op, ReduceOp) and op.kind == "none" and op.num_operands != 1:
        return f"a reduction of kind none has one operand, not {op.num_operands}"
    return None


def _func(op: Op, function: FuncOp | None) -> str | None:
    assert isinstance(op, FuncOp)
    for which, count in (("arg_attrs", len(op.type.inputs)), ("res_attrs", len(op.type.results))):
        dicts = op.props.get(which)
        if isinstance(dicts, ArrayAttr) and len(dicts.elements) != count:
            return f"@{op.sym_name} has {count} {which[:3]}s, but {which} has {len(dicts.elements)} entries"
    if op.is_declaration:
        public = op.visibility == "public"
        return f"@{op.sym_name} has no body, so it must be private" if public else None
    mine, wanted = tuple(a.type for a in op.body.args), op.type.inputs
    if mine != wanted:
        return f"the arguments of @{op.sym_name} do not have the types of its signature, {op.type}"
    return None


def _func_return(op: Op, function: FuncOp | None) -> str | None:
    if function is None:
        return None
    mine, wanted = [v.type for v in op.operands], list(function.type.results)
    if len(mine) != len(wanted):
        return f"@{function.sym_name} returns {len(wanted)} values, not {len(mine)}"
    for i, (a, b) in enumerate(zip(mine, wanted, strict=True)):
        if a is not b:
            return f"value {i} that @{function.sym_name} returns has type {a}, its signature says {b}"
    return None


_CHECKS: dict[str, Callable[[Op, FuncOp | None], str | None]] = {
    "mpmd.fragment": _fragment,
    "mpmd.transfer": _transfer,
    "mpmd.assign": _cast,
    "mpmd.unassign": _cast,
    "mpmd.call": _call,
    "mpmd.for": _for,
    "mpmd.named_computation": _named_computation,
    "mpmd.named_tensor": _same_types,
    "mpmd.broadcast": _same_types,
    "mpmd.reduce": _same_types,
    "func.func": _func,
    "func.return": _func_return,
}
