"""One op with early and late results as two: the one computes the early ones, and what the other takes from it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence

from mpmd_trace.ir.attributes import DenseArrayAttr, MeshAttr
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op, op_like
from mpmd_trace.ir.sharding_attributes import TensorShardingAttr, TensorShardingPerValueAttr, parse_sharding_body
from mpmd_trace.ir.types import TensorType, Type
from mpmd_trace.passes.common.merge_transfers import rows_type
from mpmd_trace.passes.fission.demand import BARRIER, CONDITIONALS, LOOP, MANUAL, has_effects
from mpmd_trace.passes.fission.late_part import LatePart
from mpmd_trace.passes.fission.trip_count import Counter, counter_of, counters_of, make_index
from mpmd_trace.passes.placement.zeros import can_be_zero, make_zero

_SHARDING = "sdy.sharding"


def obstacle(op: Op, early: Container[Value], late: Container[Value], mesh: MeshAttr) -> str | None:
    """Return why an op cannot be two; None if it can."""
    if has_effects(op):
        return "it has effects"
    inner: list[Value] = [value for region in op.regions for one in region.block for value in one.results]
    inner += [arg for region in op.regions for arg in region.block.args]
    for value in (*op.results, *inner):
        if not isinstance(value.type, TensorType) or not can_be_zero(value.type):
            return f"a value in it is of type {value.type}"
    waits = any(r in late and r not in early for r in op.results)
    if op.name == LOOP and waits and counter_of(op) is None:
        return "how often it runs is not known in advance, or its counter overflows"
    if op.name == MANUAL and not all(name in dict(mesh.axes) for name in _manual_axes(op)):
        return "it is manual over axes that its mesh does not have"
    return None


def divide_op(op: Op, early: set[Value], late: Container[Value], mesh: MeshAttr) -> None:
    """Put two ops in the place of one whose results are early, late or unused; what is early of them joins `early`.

    Where no result is late there is one op without those that are not used.
    No op in its regions is both.
    """
    first = [r.index for r in op.results if r in early]
    rest = [r.index for r in op.results if r not in early and r in late]
    if op.name == LOOP:
        parts, kept = _divide_loop(op, first, rest, early)
    elif op.name in CONDITIONALS:
        parts, kept = _divide_conditional(op, first, rest, early)
    elif op.name == MANUAL:
        parts, kept = _divide_manual(op, first, rest, early, mesh)
    else:
        assert op.name == BARRIER
        made = [op_like(op, [op.operand(i) for i in own], [op.results[i].type for i in own]) for own in (first, rest)]
        parts, kept = (made[0], made[1]), len(first)
    block = op.block
    assert block is not None
    for part, own in zip(parts, (first, rest), strict=True):
        if not own:
            break
        block.insert_before(op, part)
        for result, index in zip(part.results, own, strict=False):
            op.results[index].replace_all_uses_with(result)
    early.update(parts[0].results[:kept])
    for result in op.results:
        if result.has_uses:  # by unused ops
            assert isinstance(result.type, TensorType)
            result.replace_all_uses_with(block.insert_before(op, make_zero(result.type, op.loc)).results[0])
    op.erase()


def _with_regions(
    op: Op, operands: Sequence[Value], own: Sequence[int], extra: Sequence[Type], regions: Sequence[Region]
) -> Op:
    """Return an op like another, with some of its results and some of other types behind them."""
    made = op_like(op, operands, [*(op.results[i].type for i in own), *extra], regions=regions)
    for held in (made.props, made.attrs):
        sharding = held.get(_SHARDING)
        if isinstance(sharding, TensorShardingPerValueAttr):
            mesh = sharding.shardings[0].mesh if sharding.shardings else ""
            more = [parse_sharding_body(f"<{mesh}, [{', '.join(['{?}'] * len(_shape(t)))}]>") for t in extra]
            held[_SHARDING] = TensorShardingPerValueAttr.get([*(sharding.shardings[i] for i in own), *more])
    return made


def _shape(type: Type) -> tuple[int, ...]:
    assert isinstance(type, TensorType) and type.shape is not None
    return type.shape


def _with_dim(type: Type, size: int) -> TensorType:
    """Return the type with one more dimension in front."""
    assert isinstance(type, TensorType)
    return rows_type(type, size)


def _early_ops(block: Block, early: Container[Value]) -> list[Op]:
    return [op for op in block if any(result in early for result in op.results)]


def _region(block: Block, ops: Iterable[Op], returned: Sequence[Value], like: Region) -> Region:
    terminator = like.block.terminator
    block.append_all([*ops, op_like(terminator, returned, [])])
    return Region([block])


def _reshaped(value: Value, type: TensorType, ops: list[Op]) -> Value:
    ops.append(make_op("stablehlo.reshape", [value], [type], loc=value.location))
    return ops[-1].results[0]


def _mapped(values: Iterable[Value], mapping: Mapping[Value, Value]) -> list[Value]:
    return [mapping.get(value, value) for value in values]


def _divide_loop(op: Op, first: list[int], rest: list[int], early: set[Value]) -> tuple[tuple[Op, Op], int]:
    """Return a loop over the early carried values that stacks what another one over the late ones reads."""
    counter = counter_of(op)
    condition, body = op.regions
    block, returned = body.block, body.returned
    assert op.block is not None
    counted = [i for i in counters_of(op) if i in first]
    same = [i for i in first if returned[i] is block.args[i]]
    late = LatePart(
        block,
        early,
        free=[block.args[i] for i in (*rest, *same)],
        counters={block.args[i]: returned[i] for i in counted if i not in same},
    )
    tests = _early_ops(condition.block, early)
    tested = {v.index for t in tests for v in t.operands if v in condition.block.args}
    late.collect(returned[i] for i in rest)
    if rest:
        late.collect(block.args[i] for i in sorted({*([] if counter is None else [counter.index]), *tested}))
    stacked = late.residuals

    def loop(own: list[int], ops: list[Op], operands: Sequence[Value], values: list[Value], block: Block) -> Op:
        """Return the loop over some carried values and more, the `operands`, whose body is `ops`."""
        extra = [value.type for value in operands]
        inner = Block([*(op.results[i].type for i in own), *extra])
        mapping: dict[Value, Value] = {condition.block.args[i]: op.operand(i) for i in same}
        mapping.update(zip((condition.block.args[i] for i in own), inner.args, strict=False))
        tester = _region(inner, [t.clone(mapping) for t in tests], _mapped(condition.returned, mapping), condition)
        runner = _region(block, ops, values, body)
        return _with_regions(op, [*(op.operand(i) for i in own), *operands], own, extra, [tester, runner])

    # What the late part reads of an iteration is written to its row of an array.
    types = [_with_dim(value.type, 0 if counter is None else counter.trips) for value in stacked]
    zeros = [op.block.insert_before(op, make_zero(type, op.loc)).results[0] for type in types]
    early.update(zeros)
    inner = Block([*(op.results[i].type for i in first), *types])
    mapping: dict[Value, Value] = dict(zip((block.args[i] for i in first), inner.args, strict=False))
    ops = [one.clone(mapping) for one in _early_ops(block, early)]
    values = [mapping.get(returned[i], returned[i]) for i in first]
    if counter is not None and stacked:
        row = _row(counter, inner.args[first.index(counter.index)], ops)
        for value, buffer in zip(stacked, inner.args[len(first) :], strict=True):
            update = _reshaped(mapping.get(value, value), _with_dim(value.type, 1), ops)
            at = [*row[:1], *row[1:] * len(_shape(value.type))]
            ops.append(make_op("stablehlo.dynamic_update_slice", [buffer, update, *at], [buffer.type], loc=op.loc))
            values.append(ops[-1].results[0])
    ahead = loop(first, ops, zeros, values, inner)

    again = [i for i in counted if i not in same and late.reads(block.args[i])]
    own = [*rest, *again]
    inner = Block([op.results[i].type for i in own])
    mapping = dict(zip((block.args[i] for i in own), inner.args, strict=True))
    mapping.update((block.args[i], op.operand(i)) for i in same)
    ops = []
    if counter is not None and stacked:
        row = _row(counter, mapping[block.args[counter.index]], ops)
        for value, rows in zip(stacked, ahead.results[len(first) :], strict=True):
            at = [*row[:1], *row[1:] * len(_shape(value.type))]
            part = _with_dim(value.type, 1)
            props = {"slice_sizes": DenseArrayAttr.get(_shape(part))}
            ops.append(make_op("stablehlo.dynamic_slice", [rows, *at], [part], props=props, loc=op.loc))
            assert isinstance(value.type, TensorType)
            mapping[value] = _reshaped(ops[-1].results[0], value.type, ops)
    ops += late.clone(mapping)
    behind = loop(own, ops, [], [mapping.get(returned[i], returned[i]) for i in own], inner)
    return (ahead, behind), len(ahead.results)


def _row(counter: Counter, value: Value, ops: list[Op]) -> list[Value]:
    """Return the number of the iteration, and a zero of its type."""
    return [counter.iteration(value, ops), make_index(0, value, ops)]


def _divide_conditional(op: Op, first: list[int], rest: list[int], early: set[Value]) -> tuple[tuple[Op, Op], int]:
    """Return two conditionals on the same predicate; the first one also gives what the second one's branches read."""
    branches = [LatePart(region.block, early) for region in op.regions]
    for region, late in zip(op.regions, branches, strict=True):
        late.collect(region.returned[i] for i in rest)
    # Values of equal types of different branches have one place: one branch is taken.
    types: list[Type] = []
    places: list[dict[int, Value]] = []
    for late in branches:
        taken: dict[int, Value] = {}
        for value in late.residuals:
            place = next((i for i, t in enumerate(types) if t is value.type and i not in taken), len(types))
            if place == len(types):
                types.append(value.type)
            taken[place] = value
        places.append(taken)
    regions = []
    for region, taken in zip(op.regions, places, strict=True):
        mapping: dict[Value, Value] = {}
        ops = [one.clone(mapping) for one in _early_ops(region.block, early)]
        values = _mapped((region.returned[i] for i in first), mapping)
        for place, type in enumerate(types):
            if place in taken:
                values.append(mapping.get(taken[place], taken[place]))
            else:
                assert isinstance(type, TensorType)
                ops.append(make_zero(type, op.loc))
                values.append(ops[-1].results[0])
        regions.append(_region(Block(), ops, values, region))
    ahead = _with_regions(op, op.operands, first, types, regions)
    kept = ahead.results[len(first) :]
    regions = []
    for region, taken, late in zip(op.regions, places, branches, strict=True):
        mapping = {value: kept[place] for place, value in taken.items()}
        ops = late.clone(mapping)
        regions.append(_region(Block(), ops, _mapped((region.returned[i] for i in rest), mapping), region))
    return (ahead, _with_regions(op, op.operands, rest, (), regions)), len(ahead.results)


def _divide_manual(
    op: Op, first: list[int], rest: list[int], early: set[Value], mesh: MeshAttr
) -> tuple[tuple[Op, Op], int]:
    """Return two manual computations: what each device keeps for the second is a row of an array."""
    region = op.regions[0]
    block, returned = region.block, region.returned
    late = LatePart(block, early, given=block.args)
    late.collect(returned[i] for i in rest)
    kept = late.residuals
    sizes = dict(mesh.axes)
    axes = _manual_axes(op)
    devices = math.prod(sizes[name] for name in axes)
    shardings = {name: _shardings(op, name) for name in ("in_shardings", "out_shardings")}
    refers = [s.mesh for each in shardings.values() for s in each]
    rest_is_open = set(axes) != set(sizes)
    rows = [_row_sharding(refers[0], axes, len(_shape(value.type)), rest_is_open) for value in kept]
    local = [_with_dim(value.type, 1) for value in kept]
    whole = [_with_dim(value.type, devices) for value in kept]

    inputs = [arg.index for arg in block.args if arg in early]
    inner = Block([block.args[i].type for i in inputs])
    mapping: dict[Value, Value] = dict(zip((block.args[i] for i in inputs), inner.args, strict=True))
    ops = [one.clone(mapping) for one in _early_ops(block, early)]
    values = _mapped((returned[i] for i in first), mapping)
    values += [_reshaped(mapping.get(v, v), type, ops) for v, type in zip(kept, local, strict=True)]
    body = _region(inner, ops, values, region)
    ahead = _with_regions(op, [op.operand(i) for i in inputs], first, whole, [body])
    _set_shardings(ahead, [shardings["in_shardings"][i] for i in inputs], "in_shardings")
    _set_shardings(ahead, [*(shardings["out_shardings"][i] for i in first), *rows], "out_shardings")

    inputs = [arg.index for arg in block.args if late.reads(arg)]
    inner = Block([*(block.args[i].type for i in inputs), *local])
    mapping = dict(zip((block.args[i] for i in inputs), inner.args, strict=False))
    ops = []
    for value, arg in zip(kept, inner.args[len(inputs) :], strict=True):
        assert isinstance(value.type, TensorType)
        mapping[value] = _reshaped(arg, value.type, ops)
    ops += late.clone(mapping)
    body = _region(inner, ops, _mapped((returned[i] for i in rest), mapping), region)
    operands = [*(op.operand(i) for i in inputs), *ahead.results[len(first) :]]
    behind = _with_regions(op, operands, rest, (), [body])
    _set_shardings(behind, [*(shardings["in_shardings"][i] for i in inputs), *rows], "in_shardings")
    _set_shardings(behind, [shardings["out_shardings"][i] for i in rest], "out_shardings")
    return (ahead, behind), len(ahead.results)


def _manual_axes(op: Op) -> list[str]:
    text = op.props["manual_axes"].text
    return [name.strip().strip('"') for name in text[text.index("{") + 1 : text.rindex("}")].split(",") if name.strip()]


def _shardings(op: Op, name: str) -> Sequence[TensorShardingAttr]:
    attribute = op.props[name]
    assert isinstance(attribute, TensorShardingPerValueAttr)
    return attribute.shardings


def _set_shardings(op: Op, shardings: Sequence[TensorShardingAttr], name: str) -> None:
    op.props[name] = TensorShardingPerValueAttr.get(shardings)


def _row_sharding(mesh: str, axes: Sequence[str], rank: int, is_open: bool) -> TensorShardingAttr:
    """Return the sharding of an array with a row for each device, along the axes that are manual.

    Open dimensions may be sharded along the other axes as well; closed ones would be gathered over them.
    """
    names = ", ".join(f'"{name}"' for name in axes)
    more = ("?",) if is_open else ()
    dims = [", ".join((*([names] if names else ()), *more)), *["".join(more)] * rank]
    return parse_sharding_body(f"<{mesh}, [{', '.join('{' + dim + '}' for dim in dims)}]>")
