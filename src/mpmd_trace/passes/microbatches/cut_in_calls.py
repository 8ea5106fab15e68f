"""`mpmd-cut-in-calls` (ours): a called function cuts its microbatch out of the batch itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.attributes import Attribute, DenseArrayAttr, DictAttr, MeshAttr, TensorShardingAttr, parse_attribute
from mpmd_trace.ir.core import Block, BlockArg, Op, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, FuncOp, Module, UnassignOp
from mpmd_trace.ir.semantics import trivially_dead
from mpmd_trace.ir.shardings import local_shape, mesh_of, mesh_symbols, sharding_like
from mpmd_trace.ir.types import TensorType, tensor
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.common.walks import calls_by_callee
from mpmd_trace.passes.import_.building_blocks import put_behind

#: Ops between a slice and a call that the callee can do as well.
_PASSED = frozenset(
    {"stablehlo.reshape", "stablehlo.convert", "stablehlo.transpose", "stablehlo.bitcast_convert", "stablehlo.reverse"}
)
_SCALAR = tensor((), "i32")


class CutInCalls(Pass):
    """Slice microbatches inside the callee instead of in front of the calls.

    If an argument is, in each call, another slice of the same value, mesh inference would put all slices into one
    fragment. Each slice would be in memory until the last one is used, and every user would wait for that fragment.
    Instead, the calls pass the whole value and a scalar index, and the callee slices the value in front of each op that
    uses the argument, so that a fragment computes its slice when it runs. The indices are operands, not constants of
    the callee, so fragments of all microbatches remain one program. The same is done if the calls together read slices
    of several values, such as the outputs of an encoder for several microbatches of the model.

    The slices must have a stride of 1 and differ in the start in one dimension; ops with one operand (reshape, convert,
    ...) may follow. If the sliced argument of the program is sharded in that dimension, it is left alone: XLA would
    gather the value on every device for a slice at an unknown position. If it was reshaped to have a dimension of
    microbatches in front of its sharded rows, the rows of each microbatch get this sharding; otherwise propagation
    would shard the new dimension, and every device would compute all rows.

    Scalar constants that differ from call to call (for example the microbatch number that a user folds into a key)
    become operands as well, each once.

    Before:

        func.func public @main(%x: tensor<2x4xf32>) -> (tensor<1x4xf32>, tensor<1x4xf32>)
            attributes {topology = #meshes} {
          %0 = stablehlo.slice %x [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
          %1 = mpmd.call @f(%0) {call_counter = 0 : ui32} : (tensor<1x4xf32>) -> tensor<1x4xf32>
          %2 = stablehlo.slice %x [1:2, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
          %3 = mpmd.call @f(%2) {call_counter = 1 : ui32} : (tensor<1x4xf32>) -> tensor<1x4xf32>
          return %1, %3 : tensor<1x4xf32>, tensor<1x4xf32>
        }
        func.func private @f(%u: tensor<1x4xf32>) -> tensor<1x4xf32> attributes {topology = #meshes} {
          %0 = stablehlo.negate %u : tensor<1x4xf32>
          return %0 : tensor<1x4xf32>
        }

    After:

        func.func public @main(%arg0: tensor<2x4xf32>) -> (tensor<1x4xf32>, tensor<1x4xf32>)
            attributes {topology = #meshes} {
          %c = stablehlo.constant dense<0> : tensor<i32>
          %c_0 = stablehlo.constant dense<1> : tensor<i32>
          %0 = mpmd.call @f(%arg0, %c) {call_counter = 0 : ui32} : (tensor<2x4xf32>, tensor<i32>) -> tensor<1x4xf32>
          %1 = mpmd.call @f(%arg0, %c_0) {call_counter = 1 : ui32} : (tensor<2x4xf32>, tensor<i32>) -> tensor<1x4xf32>
          return %0, %1 : tensor<1x4xf32>, tensor<1x4xf32>
        }
        func.func private @f(%arg0: tensor<2x4xf32>, %arg1: tensor<i32>) -> tensor<1x4xf32>
            attributes {topology = #meshes} {
          %c = stablehlo.constant dense<0> : tensor<i32>
          %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, sizes = [1, 4]
              : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
          %1 = stablehlo.negate %0 : tensor<1x4xf32>
          return %1 : tensor<1x4xf32>
        }
    """

    name = "mpmd-cut-in-calls"
    summary = "let called functions cut microbatches out of the batch themselves"
    only_with = ("mpmd.call",)

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        calls = calls_by_callee(module)
        constants = _Constants()
        changed = _shard_rows_of_microbatches(module, calls)
        for function in module.functions:
            if function.is_mpmd and not function.is_declaration and not function.is_entry_point:
                changed = _Callee(function, calls.get(function.sym_name, []), constants).cut() or changed
        return changed


@dataclasses.dataclass(frozen=True)
class _Cut:
    """What all calls pass for an argument: the same part of one value, but for its place in one dimension.

    sources, type, shape: the value that is cut, for each call; slice, sizes, starts: the slice of the first call;
    places: where the slice of each call starts along `dimension`; behind: the ops of the first call between its slice
    and the call.
    """

    sources: tuple[Value, ...]
    type: TensorType
    slice: Op
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    dimension: int
    places: tuple[int, ...]
    behind: tuple[Op, ...]


class _Constants:
    """The indices that calls pass: constants at the front of the calling function, each once."""

    def __init__(self) -> None:
        self.made: dict[Block, dict[Attribute, Op]] = {}

    def get(self, constant: Op, call: CallOp) -> Value:
        """Return the result of such a constant."""
        assert call.block is not None
        made = self.made.setdefault(call.block, {})
        number = constant.props["value"]
        if number not in made:
            type = constant.result.type
            index = make_op(constant.name, (), [type], props={"value": number}, loc=call.loc)
            put_behind(next(reversed(made.values()), None), index, call.block)
            made[number] = index
        return made[number].result


class _Callee:
    def __init__(self, function: FuncOp, calls: Sequence[CallOp], constants: _Constants) -> None:
        self.function = function
        self.calls = calls
        #: The argument that is the index, by the indices of the calls.
        self.indices: dict[tuple[int, ...], BlockArg] = {}
        self.constants = constants

    def cut(self) -> bool:
        calls = self.calls
        if len(calls) < 2 or len({call.block for call in calls}) > 1:
            return False
        changed = self.share_numbers()
        for i, arg in enumerate(list(self.function.body.args)):
            cut = _found([call.operand(i) for call in calls]) if arg.has_uses else None
            if cut is not None and not _is_sharded(cut):
                self.take_whole(arg, cut)
                changed = True
        if changed:
            self.function.refresh_type()
        return changed

    def share_numbers(self) -> bool:
        """Put scalar constants that differ from call to call where the indices are, each once."""
        changed = False
        for arg in self.function.body.args:
            ops = [call.operand(arg.index).defining_op for call in self.calls] if arg.has_uses else []
            numbers = [op for op in ops if op is not None and _is_number(op)]
            if numbers and len(numbers) == len(ops) and len({op.props["value"] for op in numbers}) > 1:
                changed = True
                for call, op in zip(self.calls, numbers, strict=True):
                    call.set_operand(arg.index, self.constants.get(op, call))
                    if trivially_dead(op):
                        op.erase()
        return changed

    def take_whole(self, arg: BlockArg, cut: _Cut) -> None:
        """Make the argument the whole value, and cut in front of its users."""
        function, body = self.function, self.function.body
        size = cut.sizes[cut.dimension]
        # Parts of equal size are rows of a reshaped value, in which no dimension that may be sharded is cut.
        rows = size > 1 and cut.shape[cut.dimension] % size == 0 and all(place % size == 0 for place in cut.places)
        index = self.index(tuple(place // size for place in cut.places) if rows else cut.places)
        users = dict.fromkeys(user for op in arg.users if (user := op.ancestor_in(body)) is not None)
        arg.type = cut.type
        for user in reversed(users):
            uses = [use for use in arg.uses if use.owner.ancestor_in(body) is user]
            own = _cut_before(user, arg, index, cut, rows)
            for use in uses:
                use.set(own)
        for call, source in zip(self.calls, cut.sources, strict=True):
            part = call.operand(arg.index)
            call.set_operand(arg.index, source)
            _erase_dead(part)
        attributes = function.arg_attrs
        attributes[arg.index] = DictAttr.get({})
        function.set_all_arg_attrs(attributes)

    def index(self, numbers: tuple[int, ...]) -> BlockArg:
        """Return the argument that is the index, which calls have as a constant."""
        if numbers not in self.indices:
            self.indices[numbers] = self.function.body.add_arg(_SCALAR)
            for number, call in zip(numbers, self.calls, strict=True):
                call.append_operands([self.constants.get(_constant(number, call.loc), call)])
        return self.indices[numbers]


def _shard_rows_of_microbatches(module: Module, calls: Mapping[str, Sequence[CallOp]]) -> bool:
    """Constrain what is reshaped to be cut into microbatches to be sharded in the rows of each; whether any was."""
    meshes = mesh_symbols(module)
    values = [value for same in calls.values() if len(same) > 1 for value in same[0].operands]
    shardings: dict[Value, TensorShardingAttr] = {}
    for value in values:
        while (op := value.defining_op) is not None and op.name in (*_PASSED, "stablehlo.slice"):
            value = op.operand(0)
            sharding = _of_rows(op, meshes) if op.name == "stablehlo.reshape" else None
            if sharding is not None:
                shardings[op.result] = sharding
    for value, sharding in shardings.items():
        reshape = value.defining_op
        assert reshape is not None and reshape.block is not None
        uses = list(value.uses)
        own = make_op("sdy.sharding_constraint", [value], [value.type], props={"sharding": sharding}, loc=reshape.loc)
        reshape.block.insert_after(reshape, own)
        for use in uses:
            use.set(own.result)
    return bool(shardings)


def _of_rows(reshape: Op, meshes: Mapping[str, MeshAttr]) -> TensorShardingAttr | None:
    """Return the sharding of the result if an argument's sharded dimension becomes microbatches and their rows."""
    before, after = (getattr(v.type, "shape", None) or () for v in (reshape.operand(0), reshape.result))
    sharding = _argument_sharding(reshape.operand(0))
    if sharding is None or len(after) != len(before) + 1:
        return None
    at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    mesh = mesh_of(sharding, dict(meshes))
    if at == len(before) or after[at + 2 :] != before[at + 1 :] or not sharding.dim_axes(at) or mesh is None:
        return None
    if any(user.name != "stablehlo.slice" for user in reshape.result.users):
        return None
    rows = tensor((after[at + 1],), "f32")
    if after[at + 1] % local_shape(rows, sharding_like(sharding, dims=[sharding.dims[at]]), mesh)[0]:
        return None
    return sharding_like(sharding, dims=[*sharding.dims[:at], "{}", *sharding.dims[at:]])


def _cut_before(user: Op, arg: BlockArg, index: Value, cut: _Cut, rows: bool) -> Value:
    """Cut a part out of the argument in front of its user."""
    shape, sizes, starts, at = list(cut.shape), list(cut.sizes), list(cut.starts), cut.dimension
    type = cut.type
    assert user.block is not None
    made: list[Op] = []

    def make(name: str, operands: Sequence[Value], shape: Sequence[int], **props: Attribute) -> Value:
        result = tensor(tuple(shape), type.element, type.encoding)
        made.append(make_op(name, operands, [result], props=props, loc=cut.slice.loc))
        return made[-1].result

    value: Value = arg
    if rows:
        shape[at : at + 1] = [shape[at] // sizes[at], sizes[at]]
        sizes[at:at] = [1]
        starts[at:at] = [0]
        value = make("stablehlo.reshape", [value], shape)
    places: list[Value] = []
    for i, start in enumerate(starts):
        if i != at:
            made.append(_constant(start, cut.slice.loc))
        places.append(index if i == at else made[-1].result)
    value = make("stablehlo.dynamic_slice", [value, *places], sizes, slice_sizes=DenseArrayAttr.get(sizes))
    if rows:
        value = make("stablehlo.reshape", [value], cut.sizes)
    for op in cut.behind:
        made.append(op.clone({op.operand(0): value}))
        value = made[-1].result
    user.block.insert_all_before(user, made)
    return value


def _erase_dead(value: Value) -> None:
    """Erase the op that makes the value if it is unused, and what only that op uses."""
    op = value.defining_op
    while op is not None and trivially_dead(op):
        value = op.operand(0)
        op.erase()
        op = value.defining_op


def _constant(number: int, loc: Location) -> Op:
    value = parse_attribute(f"dense<{number}> : tensor<i32>")
    return make_op("stablehlo.constant", (), [_SCALAR], props={"value": value}, loc=loc)


def _is_number(op: Op) -> bool:
    return op.name == "stablehlo.constant" and op.result.type.is_scalar


def _found(values: Sequence[Value]) -> _Cut | None:
    """Return the cut that gives these values; None when they are something else."""
    behind: list[Op] = []
    while True:
        ops = [op for value in values if (op := value.defining_op) is not None]
        if len(ops) < len(values) or len(set(values)) == 1 or not all(_alike(ops[0], op) for op in ops):
            return None
        sources = [op.operand(0) for op in ops]
        starts = [_numbers(op, "start_indices") for op in ops]
        if len(set(starts)) > 1:
            return _cut_of(ops, starts, tuple(reversed(behind)))
        behind.append(ops[0])
        values = sources


def _alike(one: Op, other: Op) -> bool:
    """Return whether the ops do the same, but perhaps at another place; places are looked at later."""
    if one.name != other.name or one.attrs != other.attrs or one.results[0].type != other.results[0].type:
        return False
    if one.name == "stablehlo.slice":
        return all(stride == 1 for op in (one, other) for stride in _numbers(op, "strides"))
    return one.name in _PASSED and one.props == other.props


def _cut_of(ops: Sequence[Op], starts: Sequence[tuple[int, ...]], behind: tuple[Op, ...]) -> _Cut | None:
    sources, part = tuple(op.operand(0) for op in ops), ops[0].results[0].type
    type = sources[0].type
    if not isinstance(type, TensorType) or not isinstance(part, TensorType) or {s.type for s in sources} != {type}:
        return None
    varying = [i for i, places in enumerate(zip(*starts, strict=True)) if len(set(places)) > 1]
    if len(varying) != 1 or type.shape is None or part.shape is None or min(type.shape) < 0:
        return None
    (at,) = varying
    places = tuple(start[at] for start in starts)
    # Of several values calls take all parts, so that no more is sent to them.
    parts = len(dict.fromkeys(zip(sources, places, strict=True))) * math.prod(part.shape)
    if len(values := set(sources)) > 1 and parts != len(values) * math.prod(type.shape):
        return None
    return _Cut(sources, type, ops[0], type.shape, part.shape, starts[0], at, places, behind)


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    attribute = op.attr(name)
    return attribute.values if isinstance(attribute, DenseArrayAttr) else ()


def _is_sharded(cut: _Cut) -> bool:
    """Return whether what is cut has a sharding in the dimension of the cut."""
    return any(_shards(_sharding(source), cut.dimension) for source in dict.fromkeys(cut.sources))


def _sharding(value: Value) -> Attribute | None:
    op = value.defining_op
    return op.attr("sharding") if op is not None and not isinstance(op, UnassignOp) else _argument_sharding(value)


def _argument_sharding(value: Value) -> TensorShardingAttr | None:
    """Return the sharding of the argument of the program that the value is."""
    while isinstance(value.defining_op, UnassignOp):
        value = value.defining_op.operand(0)
    function = value.owner.parent_op if isinstance(value, BlockArg) else None
    if not isinstance(function, FuncOp) or not isinstance(value, BlockArg):
        return None
    attribute = function.arg_attr(value.index, "sdy.sharding")
    return attribute if isinstance(attribute, TensorShardingAttr) else None


def _shards(attribute: Attribute | None, dimension: int) -> bool:
    return isinstance(attribute, TensorShardingAttr) and bool(attribute.dim_axes(dimension))
