"""`mpmd-infer-mesh-convert-reduce-ops`: reductions across meshes become `mpmd.reduce`."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import UNIT, Attribute, DenseArrayAttr, ReductionAttr
from mpmd_trace.ir.core import Block, Op, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import ForOp, FuncOp, Module, ReduceOp
from mpmd_trace.ir.semantics import REDUCTION_OPS, reduction_kind
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.import_.mesh_sets import SRC_SET, is_meshless
from mpmd_trace.passes.import_.reductions import REDUCE, concat_reduction, is_neutral
from mpmd_trace.passes.reachable import reachable

_UNLOCKED = "mpmd.can_convert_to_reduce"


@dataclasses.dataclass(frozen=True)
class InferMeshConvertReduceOps(FunctionPass):
    """Replace marked reductions by `mpmd.reduce` ops, and chains of one kind by a single op.

    Without `infer_cross_mesh_reductions`, this applies only to operands of a `mpmd.reduce<none>` of the user. Producers
    come before users. An op becomes a reduce of its operands, or of their operands if these are reduces of its kind; a
    reduction over a concatenation becomes a reduce of the parts. Inner reduces with one use are removed. The new op
    keeps only `mpmd.src_set`.

    Before, with {infer-cross-mesh-reductions}:

        %y = stablehlo.sine %x : !t
        %0 = stablehlo.add %x, %y {mpmd.reduce = #mpmd.reduction<add>} : !t
        %1 = stablehlo.add %0, %x {mpmd.reduce = #mpmd.reduction<add>} : !t
        return %1 : !t

    After:

        %0 = stablehlo.sine %x : !t
        %1 = mpmd.reduce<add> %x, %0, %x : (!t, !t, !t) -> !t
        return %1 : !t
    """

    name = "mpmd-infer-mesh-convert-reduce-ops"
    summary = "turn reductions of values from several meshes into mpmd.reduce"
    distributed_only = False
    infer_cross_mesh_reductions: bool = option(
        False, "convert every marked reduction, not only those that the user asked for"
    )
    keep_initial_value: bool = option(
        False, "reduce with the initial value of a stablehlo.reduce, too, unless it is neutral"
    )

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        unlocked = False
        for op in walk_mutable(function.regions[0]):
            if isinstance(op, ReduceOp) and op.kind == "none":
                _unlock(op)
                unlocked = True
            elif _UNLOCKED in op.attrs:
                unlocked = True
        changed = self._convert(function.body)
        if unlocked:
            for op in walk_mutable(function.regions[0]):
                op.attrs.pop(_UNLOCKED, None)
        return changed

    def _convert(self, block: Block) -> bool:
        changed = False
        for op in block:
            tag = op.attrs.get(REDUCE)
            if (
                isinstance(tag, ReductionAttr)
                and is_meshless(op)
                and (self.infer_cross_mesh_reductions or _UNLOCKED in op.attrs)
            ):
                if op.name == "stablehlo.reduce":
                    changed = _convert_concat(op, tag, self.keep_initial_value) or changed
                elif op.name != "stablehlo.concatenate":
                    _convert_binary(op, tag)
                    changed = True
            elif isinstance(op, ForOp):  # inside of other ops an mpmd.reduce would have no meaning
                changed = self._convert(op.body.block) or changed
        return changed


def _unlock(request: ReduceOp) -> None:
    """Mark the reduction that the `mpmd.reduce<none>` stands behind, and those of its kind that feed it."""
    op = request.operand(0).defining_op
    while op is not None and op.num_operands == 1 and len(op.results) == 1:
        op = op.operand(0).defining_op
    if op is None:
        return
    kind = reduction_kind(op)
    if kind is not None:

        def feeding(op: Op) -> list[Op]:
            producers = [value.defining_op for value in op.operands]
            return [p for p in producers if p is not None and _UNLOCKED not in p.attrs and reduction_kind(p) == kind]

        for one in reachable([op], feeding):
            one.attrs[_UNLOCKED] = UNIT
    elif op.name == "stablehlo.reduce":
        concat = op.operand(0).defining_op
        if concat is not None and concat_reduction(concat) is not None:
            op.attrs[_UNLOCKED] = UNIT


# Conversion.


def _replace(op: Op, tag: ReductionAttr, operands: list[Value]) -> Op:
    src = op.attrs.get(SRC_SET)
    attrs: dict[str, Attribute] = {} if src is None else {SRC_SET: src}
    new = make_op("mpmd.reduce", operands, [op.results[0].type], props={"reduction": tag}, attrs=attrs, loc=op.loc)
    assert op.block is not None
    op.block.insert_before(op, new)
    op.replace_all_uses_with(new.results)
    op.erase()
    return new


def _convert_binary(op: Op, tag: ReductionAttr) -> None:
    operands: list[Value] = []
    inner: dict[Op, None] = {}
    for operand in op.operands:
        producer = operand.defining_op
        if isinstance(producer, ReduceOp) and producer.props.get("reduction") is tag:
            operands += producer.operands
            if operand.has_one_use:
                inner[producer] = None
        else:
            operands.append(operand)
    _replace(op, tag, operands)
    for producer in inner:
        producer.erase()


def _convert_concat(op: Op, tag: ReductionAttr, keep_initial_value: bool) -> bool:
    concat = op.operand(0).defining_op
    if concat is None or concat.name != "stablehlo.concatenate":
        return False
    operands: list[Value] = []
    assert op.block is not None
    for operand in concat.operands:
        producer = operand.defining_op
        attrs = {} if producer is None else producer.attrs
        reshape = make_op("stablehlo.reshape", [operand], [op.results[0].type], attrs=attrs, loc=op.loc)
        operands.append(op.block.insert_before(op, reshape).result)
    initial = op.operand(1)
    new = _replace(op, tag, operands)
    concat.erase()
    if keep_initial_value and not is_neutral(initial, tag.kind):
        _reduce_with(new, initial, tag.kind)
    return True


def _reduce_with(reduced: Op, initial: Value, kind: str) -> None:
    """Let the users of `reduced` have its reduction with the scalar `initial`, on the meshes where it can be itself."""
    assert reduced.block is not None
    type, loc = reduced.results[0].type, reduced.loc
    props = {"broadcast_dimensions": DenseArrayAttr.get(())}
    everywhere = make_op("stablehlo.broadcast_in_dim", [initial], [type], props=props, loc=loc)
    operands = [reduced.results[0], everywhere.results[0]]
    total = make_op(REDUCTION_OPS[kind], operands, [type], attrs=reduced.attrs, loc=loc)
    reduced.block.insert_after(reduced, everywhere)
    reduced.block.insert_after(everywhere, total)
    reduced.results[0].replace_uses_if(total.results[0], lambda use: use.owner is not total)
