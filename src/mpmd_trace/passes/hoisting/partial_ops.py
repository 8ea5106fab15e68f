"""Ops on sums that are not finished: see `partial_forms.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.attributes import (
    Attribute,
    DenseArrayAttr,
    IntegerAttr,
    TensorShardingAttr,
    parse_attribute,
    parse_sharding_body,
)
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.ops import tensor_of
from mpmd_trace.ir.stablehlo_attributes import integers, shape_of
from mpmd_trace.ir.types import TensorType, tensor
from mpmd_trace.passes.hoisting.partial_forms import Base, Form
from mpmd_trace.passes.placement.zeros import make_zero
from mpmd_trace.passes.sharding.axes import (
    Axes,
    axes_of,
    convolution_dimensions,
    dot_dimensions,
    scatter_dimensions,
    with_axes,
)
from mpmd_trace.passes.sharding.edges import CONSTRAINT, constrained, rank_of, sharding_list


def partial_type(value: Value, axes: Form, sizes: Mapping[str, int]) -> TensorType:
    """Return the type of the partial form of a value: a part for each device of the axes."""
    type = tensor_of(value)
    assert type is not None and type.shape is not None
    return tensor((math.prod(sizes[name] for name in axes), *type.shape), type.element)


def partial_sharding(
    value: Value, own: TensorShardingAttr | None, axes: Form, like: TensorShardingAttr
) -> TensorShardingAttr:
    """Return the sharding of the partial form of a value: dimensions lose the axes that the parts have."""
    dims = axes_of(own, rank_of(value)) or ((),) * rank_of(value)
    left = tuple(tuple(name for name in names if name not in axes) for names in dims)
    return with_axes(like, (axes, *left))


def _scatter_numbers(**listed: list[int] | int) -> Attribute:
    return parse_attribute(f"#stablehlo.scatter<{', '.join(f'{name} = {value}' for name, value in listed.items())}>")


class PartialOps:
    """Appends ops to a body.

    `like`: any sharding over the mesh.
    """

    def __init__(self, builder: BodyBuilder, sizes: Mapping[str, int], like: TensorShardingAttr) -> None:
        self.builder = builder
        self.sizes = sizes
        self.like = like

    def constrained(self, value: Value, axes: Axes) -> Value:
        return constrained(self.builder, value, with_axes(self.like, axes))

    def zero(self, type: TensorType, loc: Location) -> Value:
        return self.builder.block.append(make_zero(type, loc)).results[0]

    def total(self, parts: Value, whole: Value, sharding: TensorShardingAttr | None) -> Value:
        """Return the sum of the parts of `whole`, sharded as it was."""
        zero, loc = self.zero(_shaped(whole, ()), whole.location), whole.location
        block = Block([zero.type, zero.type])
        added = block.append(make_op("stablehlo.add", block.args, [zero.type], loc=loc))
        block.append(make_op("stablehlo.return", added.results))
        props = {"dimensions": DenseArrayAttr.get([0])}
        regions = [Region([block])]
        reduced = self.builder.op(
            "stablehlo.reduce", [parts, zero], [whole.type], props=props, regions=regions, loc=loc
        )
        axes = axes_of(sharding, rank_of(whole))
        return reduced.results[0] if axes is None else self.constrained(reduced.results[0], axes)

    def base(self, op: Op, base: Base, operands: Sequence[Value], shardings: Sequence[Axes]) -> Value:
        """Return the parts of a sum: of each device what it has.  `shardings` are those of the operands."""
        count = math.prod(self.sizes[name] for name in base.axes)
        if op.name == "stablehlo.scatter":
            return self._scatter(op, base, operands, shardings, count)
        if op.name == "stablehlo.convolution":
            return self._convolution(op, base, operands, shardings)
        split = [
            self._split(value, dim, count, axes, base.axes)
            for value, dim, axes in zip(operands, base.dims, shardings, strict=False)
        ]
        if op.name == "stablehlo.dot_general":
            return self._dot(op, base, split)
        return self._reduce(op, base, [*split, operands[1]], count)

    def _split(self, value: Value, dim: int, count: int, axes: Axes, over: Form) -> Value:
        """Return the value with dimension `dim` as two, the first of which is sharded."""
        shape = shape_of(value)
        split = _shaped(value, (*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]))
        reshaped = self.builder.op("stablehlo.reshape", [value], [split]).results[0]
        return self.constrained(reshaped, (*axes[:dim], over, (), *axes[dim + 1 :]))

    def _copy(self, op: Op, operands: Sequence[Value], type: TensorType, **props: Attribute) -> Value:
        """Return the op of other operands and another type, with changed properties, without its shardings."""
        copy = self.builder.block.append(op.clone(operands=operands))
        copy.results[0].type = type
        copy.props.update(props)
        copy.attrs.clear()
        return copy.results[0]

    def _dot(self, op: Op, base: Base, operands: Sequence[Value]) -> Value:
        dims = dot_dimensions(op)
        parts = []
        for which, side in enumerate(("lhs", "rhs")):
            at = base.dims[which]
            batch = [at, *(d + (d > at) for d in dims[which])]
            contracting = [d + (d >= at) for d in dims[2 + which]]
            parts.append((side, batch, contracting))
        listed = [f"{side}_batching_dimensions = {batch}" for side, batch, _ in parts]
        listed += [f"{side}_contracting_dimensions = {dims}" for side, _, dims in parts]
        numbers = parse_attribute(f"#stablehlo.dot<{', '.join(listed)}>")
        return self._copy(op, operands, partial_type(op.result, base.axes, self.sizes), dot_dimension_numbers=numbers)

    def _scatter(self, op: Op, base: Base, operands: Sequence[Value], shardings: Sequence[Axes], count: int) -> Value:
        row, update = base.dims
        rows = self._split(operands[1], row, count, shardings[1], base.axes)
        updates = self._split(operands[2], update, count, shardings[2], base.axes)
        dims = scatter_dimensions(op)
        numbers = _scatter_numbers(
            update_window_dims=[d + (d >= update) for d in dims.update_window],
            inserted_window_dims=[d + 1 for d in dims.inserted_window],
            input_batching_dims=[0],
            scatter_indices_batching_dims=[row],
            scatter_dims_to_operand_dims=[d + 1 for d in dims.to_operand],
            index_vector_dim=dims.index_vector + (dims.index_vector >= row),
        )
        type = partial_type(op.result, base.axes, self.sizes)
        operands = [self.zero(type, op.loc), rows, updates]
        return self._copy(op, operands, type, scatter_dimension_numbers=numbers)

    def _convolution(self, op: Op, base: Base, operands: Sequence[Value], shardings: Sequence[Axes]) -> Value:
        """Each device does its own: a convolution has no dimension of which there could be a part for each device."""
        dims = convolution_dimensions(op)
        assert dims is not None
        axes: list[tuple[str, ...]] = [()] * rank_of(op.result)
        axes[dims.batch], axes[dims.feature] = shardings[0][dims.left_batch], shardings[1][dims.right_output]
        block = Block([self._local(value, own) for value, own in zip(operands, shardings, strict=True)])
        copy = block.append(op.clone(operands=block.args))
        copy.results[0].type = self._local(op.result, tuple(axes))
        copy.attrs.clear()
        part = _shaped(copy.result, (1, *shape_of(copy.result)))
        own = block.append(make_op("stablehlo.reshape", copy.results, [part], loc=op.loc))
        block.append(make_op("sdy.return", own.results))
        names = ", ".join(f'"{name}"' for name in self.sizes)
        props = {
            "in_shardings": sharding_list(tuple(map(self._manual, shardings))),
            "out_shardings": sharding_list((self._manual((base.axes, *axes)),)),
            "manual_axes": parse_attribute(f"#sdy<manual_axes{{{names}}}>"),
        }
        types, regions = [partial_type(op.result, base.axes, self.sizes)], [Region([block])]
        made = self.builder.op("sdy.manual_computation", operands, types, props=props, regions=regions, loc=op.loc)
        return made.result

    def _local(self, value: Value, axes: Axes) -> TensorType:
        """Return the type of what a device has of a value."""
        parts = [math.prod(self.sizes[name] for name in names) for names in axes]
        return _shaped(value, tuple(size // n for size, n in zip(shape_of(value), parts, strict=True)))

    def _manual(self, axes: Axes) -> TensorShardingAttr:
        """Return a sharding that says of each axis of the mesh what it does."""
        left = [f'"{name}"' for name in self.sizes if not any(name in names for names in axes)]
        sharding = with_axes(self.like, axes)
        text = f", replicated={{{', '.join(left)}}}" if left else ""
        return parse_sharding_body(f"<{sharding.mesh}, [{', '.join(sharding.dims)}]{text}>")

    def _reduce(self, op: Op, base: Base, operands: Sequence[Value], count: int) -> Value:
        at, dims, whole = base.dims[0], integers(op, "dimensions"), shape_of(op.result)
        before = sum(1 for d in range(at) if d not in dims)
        reduced = DenseArrayAttr.get(sorted(d + (d >= at) for d in dims))
        parts = _shaped(op.result, (*whole[:before], count, *whole[before:]))
        value = self._copy(op, operands, parts, dimensions=reduced)
        if before:
            order = [before, *(d for d in range(len(whole) + 1) if d != before)]
            props = {"permutation": DenseArrayAttr.get(order)}
            types = [_shaped(value, (count, *whole))]
            value = self.builder.op("stablehlo.transpose", [value], types, props=props).result
        return value

    def linear(self, op: Op, operands: Sequence[Value], axes: Form) -> Value:
        """Return the op applied to each part; of its operands those of `parts_of` are parts."""
        if op.name == CONSTRAINT:
            return operands[0]
        whole = partial_type(op.result, axes, self.sizes)
        if op.name in ("stablehlo.multiply", "stablehlo.divide"):
            spread = {"broadcast_dimensions": DenseArrayAttr.get(range(1, whole.rank))}
            scale = self.builder.op("stablehlo.broadcast_in_dim", [operands[1]], [whole], props=spread).result
            operands = [operands[0], scale]
        first = whole.shape[0] if whole.shape else 1
        per_dimension = {"start_indices": 0, "limit_indices": first, "strides": 1}
        per_dimension |= dict.fromkeys(("edge_padding_low", "edge_padding_high", "interior_padding"), 0)
        props: dict[str, Attribute] = {}
        for name, attribute in op.props.items():
            if isinstance(attribute, IntegerAttr) and name == "dimension":
                props[name] = IntegerAttr.get(attribute.value + 1, attribute.type)
            elif isinstance(attribute, DenseArrayAttr) and name in per_dimension:
                props[name] = DenseArrayAttr.get([per_dimension[name], *attribute.values])
            elif isinstance(attribute, DenseArrayAttr) and name in ("permutation", "broadcast_dimensions"):
                props[name] = DenseArrayAttr.get([0, *(d + 1 for d in attribute.values)])
            elif isinstance(attribute, DenseArrayAttr) and name == "dimensions":
                props[name] = DenseArrayAttr.get(d + 1 for d in attribute.values)
        if op.name == "stablehlo.scatter":
            of = scatter_dimensions(op)
            props["scatter_dimension_numbers"] = _scatter_numbers(
                update_window_dims=[0, *(d + 1 for d in of.update_window)],
                inserted_window_dims=[d + 1 for d in of.inserted_window],
                scatter_dims_to_operand_dims=[d + 1 for d in of.to_operand],
                index_vector_dim=of.index_vector,
            )
        return self._copy(op, operands, whole, **props)


def _shaped(value: Value, shape: tuple[int, ...]) -> TensorType:
    """Return the type of the value with another shape."""
    assert isinstance(value.type, TensorType)
    return tensor(shape, value.type.element)
