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
from mpmd_trace.ir.types import TensorType, Type, tensor
from mpmd_trace.passes.hoisting.axes import (
    Axes,
    axes_of,
    convolution_dimensions,
    dot_dimensions,
    scatter_dimensions,
    with_axes,
)
from mpmd_trace.passes.hoisting.partial_forms import Base, Form
from mpmd_trace.passes.placement.zeros import make_zero
from mpmd_trace.passes.sharding.edges import CONSTRAINT, sharding_list

__all__ = ["PartialOps", "partial_sharding", "partial_type"]


def partial_type(type: TensorType, axes: Form, sizes: Mapping[str, int]) -> TensorType:
    """The type of the partial form: a part for each device of the axes."""
    assert type.shape is not None
    return tensor((math.prod(sizes[name] for name in axes), *type.shape), type.element)


def partial_sharding(
    own: TensorShardingAttr | None, axes: Form, type: TensorType, like: TensorShardingAttr
) -> TensorShardingAttr:
    """The sharding of the partial form of a value: dimensions lose the axes that the parts have."""
    dims = axes_of(own, type.rank) or ((),) * type.rank
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
        sharding = with_axes(self.like, axes)
        return self.builder.op(CONSTRAINT, [value], [value.type], props={"sharding": sharding}).results[0]

    def zero(self, type: TensorType, axes: Form, loc: Location) -> Value:
        """The partial form of zeros."""
        return self.builder.block.append(make_zero(partial_type(type, axes, self.sizes), loc)).results[0]

    def total(self, value: Value, type: TensorType, sharding: TensorShardingAttr | None, loc: Location) -> Value:
        """The sum of the parts, sharded as it was."""
        zero = self.builder.block.append(make_zero(tensor((), type.element), loc)).results[0]
        block = Block([zero.type, zero.type])
        added = block.append(make_op("stablehlo.add", block.args, [zero.type], loc=loc))
        block.append(make_op("stablehlo.return", added.results))
        props = {"dimensions": DenseArrayAttr.get([0])}
        regions = [Region([block])]
        found = self.builder.op("stablehlo.reduce", [value, zero], [type], props=props, regions=regions, loc=loc)
        axes = axes_of(sharding, type.rank)
        return found.results[0] if axes is None else self.constrained(found.results[0], axes)

    def base(self, op: Op, base: Base, operands: Sequence[Value], shardings: Sequence[Axes]) -> Value:
        """The parts of a sum: of each device what it has.  `shardings` are those of the operands."""
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
            return self._dot(op, base, split, count)
        return self._reduce(op, base, [*split, operands[1]], count)

    def _split(self, value: Value, dim: int, count: int, axes: Axes, over: Form) -> Value:
        """The value with dimension `dim` as two, the first of which is sharded."""
        type = value.type
        assert isinstance(type, TensorType) and type.shape is not None
        shape = (*type.shape[:dim], count, type.shape[dim] // count, *type.shape[dim + 1 :])
        found = self.builder.op("stablehlo.reshape", [value], [tensor(shape, type.element)]).results[0]
        return self.constrained(found, (*axes[:dim], over, (), *axes[dim + 1 :]))

    def _dot(self, op: Op, base: Base, operands: Sequence[Value], count: int) -> Value:
        dims = dot_dimensions(op)
        parts = []
        for which, side in enumerate(("lhs", "rhs")):
            at = base.dims[which]
            batch = [at, *(d + (d > at) for d in dims[which])]
            contracting = [d + (d >= at) for d in dims[2 + which]]
            parts.append((side, batch, contracting))
        listed = [f"{side}_batching_dimensions = {batch}" for side, batch, _ in parts]
        listed += [f"{side}_contracting_dimensions = {dims}" for side, _, dims in parts]
        copy = op.clone(operands=operands)
        copy.props["dot_dimension_numbers"] = parse_attribute(f"#stablehlo.dot<{', '.join(listed)}>")
        type = op.results[0].type
        assert isinstance(type, TensorType) and type.shape is not None
        copy.results[0].type = tensor((count, *type.shape), type.element)
        copy.attrs.clear()
        return self.builder.block.append(copy).results[0]

    def _scatter(self, op: Op, base: Base, operands: Sequence[Value], shardings: Sequence[Axes], count: int) -> Value:
        row, update = base.dims
        rows = self._split(operands[1], row, count, shardings[1], base.axes)
        updates = self._split(operands[2], update, count, shardings[2], base.axes)
        type = op.results[0].type
        assert isinstance(type, TensorType)
        dims = scatter_dimensions(op)
        copy = op.clone(operands=[self.zero(type, base.axes, op.loc), rows, updates])
        copy.props["scatter_dimension_numbers"] = _scatter_numbers(
            update_window_dims=[d + (d >= update) for d in dims.update_window],
            inserted_window_dims=[d + 1 for d in dims.inserted_window],
            input_batching_dims=[0],
            scatter_indices_batching_dims=[row],
            scatter_dims_to_operand_dims=[d + 1 for d in dims.to_operand],
            index_vector_dim=dims.index_vector + (dims.index_vector >= row),
        )
        copy.results[0].type = partial_type(type, base.axes, self.sizes)
        copy.attrs.clear()
        return self.builder.block.append(copy).results[0]

    def _convolution(self, op: Op, base: Base, operands: Sequence[Value], shardings: Sequence[Axes]) -> Value:
        """Each device does its own: a convolution has no dimension of which there could be a part for each device."""
        dims = convolution_dimensions(op)
        assert dims is not None
        type = op.results[0].type
        assert isinstance(type, TensorType)
        axes: list[tuple[str, ...]] = [()] * type.rank
        axes[dims.batch], axes[dims.feature] = shardings[0][dims.left_batch], shardings[1][dims.right_output]
        block = Block([self._local(value.type, own) for value, own in zip(operands, shardings, strict=True)])
        copy = block.append(op.clone(operands=block.args))
        copy.results[0].type = local = self._local(type, tuple(axes))
        copy.attrs.clear()
        part = tensor((1, *(local.shape or ())), local.element)
        own = block.append(make_op("stablehlo.reshape", copy.results, [part], loc=op.loc))
        block.append(make_op("sdy.return", own.results))
        names = ", ".join(f'"{name}"' for name in self.sizes)
        props = {
            "in_shardings": sharding_list(tuple(map(self._manual, shardings))),
            "out_shardings": sharding_list((self._manual((base.axes, *axes)),)),
            "manual_axes": parse_attribute(f"#sdy<manual_axes{{{names}}}>"),
        }
        found = partial_type(type, base.axes, self.sizes)
        regions = [Region([block])]
        return self.builder.op(
            "sdy.manual_computation", operands, [found], props=props, regions=regions, loc=op.loc
        ).results[0]

    def _local(self, type: Type, axes: Axes) -> TensorType:
        """The type of what a device has of a value."""
        assert isinstance(type, TensorType) and type.shape is not None
        parts = (math.prod(self.sizes[name] for name in names) for names in axes)
        return tensor(tuple(size // n for size, n in zip(type.shape, parts, strict=True)), type.element)

    def _manual(self, axes: Axes) -> TensorShardingAttr:
        """A sharding that says of each axis of the mesh what it does."""
        left = [f'"{name}"' for name in self.sizes if not any(name in names for names in axes)]
        found = with_axes(self.like, axes)
        text = f", replicated={{{', '.join(left)}}}" if left else ""
        return parse_sharding_body(f"<{found.mesh}, [{', '.join(found.dims)}]{text}>")

    def _reduce(self, op: Op, base: Base, operands: Sequence[Value], count: int) -> Value:
        at = base.dims[0]
        dims = op.props["dimensions"]
        assert isinstance(dims, DenseArrayAttr)
        before = sum(1 for d in range(at) if d not in dims.values)
        copy = op.clone(operands=operands)
        copy.props["dimensions"] = DenseArrayAttr.get(sorted(d + (d >= at) for d in dims.values))
        type = op.results[0].type
        assert isinstance(type, TensorType) and type.shape is not None
        shape = (*type.shape[:before], count, *type.shape[before:])
        copy.results[0].type = tensor(shape, type.element)
        copy.attrs.clear()
        value = self.builder.block.append(copy).results[0]
        if before:
            order = [before, *(d for d in range(len(shape)) if d != before)]
            props = {"permutation": DenseArrayAttr.get(order)}
            first = tensor(tuple(shape[d] for d in order), type.element)
            value = self.builder.op("stablehlo.transpose", [value], [first], props=props).results[0]
        return value

    def linear(self, op: Op, operands: Sequence[Value], axes: Form) -> Value:
        """The op applied to each part; of its operands those of `parts_of` are parts."""
        type = op.results[0].type
        assert isinstance(type, TensorType)
        if op.name == CONSTRAINT:
            return operands[0]
        whole = partial_type(type, axes, self.sizes)
        if op.name in ("stablehlo.multiply", "stablehlo.divide"):
            props = {"broadcast_dimensions": DenseArrayAttr.get(range(1, type.rank + 1))}
            spread = self.builder.op("stablehlo.broadcast_in_dim", [operands[1]], [whole], props=props).results[0]
            operands = [operands[0], spread]
        copy = op.clone(operands=operands)
        copy.results[0].type = whole
        copy.attrs.clear()
        first = whole.shape[0] if whole.shape else 1
        per_dimension = {"start_indices": 0, "limit_indices": first, "strides": 1}
        per_dimension |= dict.fromkeys(("edge_padding_low", "edge_padding_high", "interior_padding"), 0)
        for name, of_parts in per_dimension.items():
            listed = copy.props.get(name)
            if isinstance(listed, DenseArrayAttr):
                copy.props[name] = DenseArrayAttr.get([of_parts, *listed.values])
        for name, with_parts in (("permutation", True), ("broadcast_dimensions", True), ("dimensions", False)):
            dims = copy.props.get(name)
            if isinstance(dims, DenseArrayAttr):
                moved = [d + 1 for d in dims.values]
                copy.props[name] = DenseArrayAttr.get([0, *moved] if with_parts else moved)
        along = copy.props.get("dimension")
        if isinstance(along, IntegerAttr):
            copy.props["dimension"] = IntegerAttr.get(along.value + 1, along.type)
        if op.name == "stablehlo.scatter":
            of = scatter_dimensions(op)
            copy.props["scatter_dimension_numbers"] = _scatter_numbers(
                update_window_dims=[0, *(d + 1 for d in of.update_window)],
                inserted_window_dims=[d + 1 for d in of.inserted_window],
                scatter_dims_to_operand_dims=[d + 1 for d in of.to_operand],
                index_vector_dim=of.index_vector,
            )
        return self.builder.block.append(copy).results[0]
