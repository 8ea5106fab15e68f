"""What Shardy's pipeline does to a plain body in which nothing has a sharding.

`stablehlo.constant` becomes `sdy.constant`.  So that propagation does not join what only shares a constant,
Shardy gives every use of a constant expression its own copy of the expression, and merges copies afterwards,
but of constants and of broadcasts of scalars only, and only within a block.  Dead code is gone.

    %i = iota                                  %i0 = iota
    %f = convert %i                            %i1 = iota
    %0 = add %x, %f                     =>     %f0 = convert %i0
    %1 = subtract %y, %f                       %f1 = convert %i1
                                               %0 = add %x, %f0
                                               %1 = subtract %y, %f1
"""

from __future__ import annotations

from collections.abc import Hashable

from mpmd_trace.ir.bodies import remembered, remembers
from mpmd_trace.ir.core import Block, Op, Region, Value, op_like
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.outlined import OUTLINED
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.semantics import trivially_dead
from mpmd_trace.passes.sharding.convert_sdy_constants import TO_STABLEHLO
from mpmd_trace.passes.trivially_canonical import CHLO_UNARY, ELEMENTWISE, PLAIN_OPS, op_names

_CONSTANT = "stablehlo.constant"
_BROADCAST = "stablehlo.broadcast_in_dim"
#: Expressions when their operands are (in StableHLO and CHLO): Shardy's elementwise ops, and some others.
EXPRESSIONS = (
    ELEMENTWISE
    | {f"stablehlo.{name}" for name in ["bitcast_convert", "broadcast_in_dim", "constant", "iota", "reshape", "slice"]}
    | {f"chlo.{name}" for name in CHLO_UNARY.split()}
)
#: Shardy has no sharding rule for these and says so: it has to see them.
_WITHOUT_RULE = frozenset(
    f"stablehlo.{name}"
    for name in ["batch_norm_grad", "batch_norm_training", "custom_call", "get_dimension_size", "map", "rng"]
)
#: It need not see bodies of these, to which its own ops do not belong.
_KNOWN = frozenset(name for name in PLAIN_OPS if not name.startswith(("chlo.", "sdy."))) - _WITHOUT_RULE | {OUTLINED}
#: Nor these, where they have rules of ours.
_CHLO = frozenset(name for name in PLAIN_OPS if name.startswith("chlo."))
#: Their results have edges, which keep them alive.
_WITH_EDGES = frozenset({"stablehlo.case", "stablehlo.optimization_barrier", "stablehlo.while"})


def can_do(body: Region, *, chlo: bool = False) -> bool:
    """Return whether `with_constants_apart` knows what Shardy does to a body without shardings; `chlo`: given rules."""
    names = op_names(body)
    return names is not None and names <= (_KNOWN | _CHLO if chlo else _KNOWN)


@remembers
def with_constants_apart(body: Region) -> Region:
    """Return the body after Shardy's pipeline; the same one if nothing changes."""
    region = body
    if _has_dead_ops(region):
        region = region.clone()
        _remove_dead_ops(region)
    expressions = _shared_expressions(region)
    if expressions:
        if region is body:
            region = region.clone()
            expressions = _shared_expressions(region)
        _split(region, expressions)
    merger = _Merger()
    copy = freeze(Region([merger.copy(region.block)]))
    if region is body and merger.changed and not merger.merged and _is_of_single_constants(body):
        remembered(copy, TO_STABLEHLO, lambda: body)  # so that nothing is derived twice
    return copy if merger.changed or region is not body else body


def _is_of_single_constants(body: Region) -> bool:
    """Return whether the body returns constants, each used once, and does nothing else."""
    return all(op.name == _CONSTANT and op.results[0].has_one_use for op in body.block.ops[:-1])


# Dead code.


def _is_dead(op: Op) -> bool:
    return trivially_dead(op) and not any(inner.name in _WITH_EDGES for inner in op.walk())


def _has_dead_ops(region: Region) -> bool:
    return any(not op.has_uses and _is_dead(op) for op in region.walk())


def _remove_dead_ops(region: Region) -> None:
    for op in reversed(region.block):
        if _is_dead(op):
            op.erase()
        else:
            for nested in op.regions:
                _remove_dead_ops(nested)


# Splitting.


def _is_merged(op: Op) -> bool:
    """Return whether Shardy merges copies of the op, so that it need not be split."""
    return op.name == _CONSTANT or (op.name == _BROADCAST and op.operand(0).type.is_scalar)


def _is_split(op: Op) -> bool:
    return not _is_merged(op) and not op.results[0].type.is_scalar


def _shared_expressions(region: Region) -> set[Op]:
    """Return the constant expressions in the region; none if no use of one needs a copy of its own."""
    seen: set[Op | None] = set()
    shared = False
    for op in list(region.walk(post_order=False)):
        if op.name in EXPRESSIONS and seen.issuperset([v.defining_op for v in op.operands]):
            seen.add(op)
            shared = shared or (len(op.results[0].uses) > 1 and _is_split(op))
    return {op for op in seen if op is not None} if shared else set()


def _split(region: Region, expressions: set[Op]) -> None:
    """Give every operand of other ops that is a constant expression a copy of the expression."""

    def maker(value: Value) -> Op | None:
        op = value.defining_op
        return op if op in expressions and _is_split(op) else None

    def operands(op: Op) -> list[Op]:
        return [made for value in op.operands if (made := maker(value)) is not None]

    def copy(root: Op) -> Value:
        copies: dict[Value, Value] = {}
        for op in postorder([root], operands):
            new = op.clone(operands=[copies.get(value, value) for value in op.operands])
            assert op.block is not None
            op.block.insert_before(op, new)
            copies[op.results[0]] = new.results[0]
        return copies[root.results[0]]

    before = list(region.walk(post_order=False))
    for op in before:
        if op not in expressions:
            for i, value in enumerate(op.operands):
                root = maker(value)
                if root is not None:
                    op.set_operand(i, copy(root))
    for op in reversed(before):
        if op in expressions and not op.has_uses:
            op.erase()


# Merging.


class _Merger:
    """Copies blocks, with equal constants and equal broadcasts of a scalar once in each."""

    def __init__(self) -> None:
        self.changed = False
        #: Whether any two were equal.
        self.merged = False
        self._mapping: dict[Value, Value] = {}

    def copy(self, block: Block) -> Block:
        mapping = self._mapping
        result = Block()
        known: dict[Hashable, Value] = {}
        for arg in block.args:
            mapping[arg] = result.add_arg(arg.type, loc=arg.loc)
        for op in block:
            if op.regions:
                regions = [Region([self.copy(region.block)]) for region in op.regions]
                new = op_like(op, [mapping.get(v, v) for v in op.operands], regions=regions)
                mapping.update(zip(op.results, new.results, strict=True))
            elif _is_merged(op):
                operands = [mapping[v] for v in op.operands]
                more = frozenset(op.attrs.items()) if op.attrs else None
                key = (op.name, op.results[0].type, *operands, frozenset(op.props.items()), more)
                first = known.get(key)
                if first is not None:
                    self.changed = self.merged = True
                    mapping[op.results[0]] = first
                    continue
                is_constant = op.name == _CONSTANT
                self.changed = self.changed or is_constant
                new = op.clone(operands=operands)
                if is_constant:
                    new.name = "sdy.constant"
                known[key] = mapping[op.results[0]] = new.results[0]
            else:
                new = op.clone(mapping)
            result.append(new)
        return result
