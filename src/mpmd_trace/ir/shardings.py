"""Reading and deriving shardings: which mesh, which local shape, which two mean the same.

Source: the shardings of the sdy dialect, as mesh tensors of the mpmd dialect carry them (Shardy).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import cast

from mpmd_trace.ir.attributes import (
    ArrayAttr,
    Attribute,
    DictAttr,
    MeshAttr,
    StringAttr,
    SymbolRefAttr,
    TensorShardingAttr,
    TensorShardingPerValueAttr,
    parse_attribute,
    parse_sharding_body,
)
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.types import MeshTensorType, TensorType


def mesh_symbols(module: Module) -> dict[str, MeshAttr]:
    """Return the meshes that `sdy.mesh` ops of the module define, by symbol name."""
    result: dict[str, MeshAttr] = {}
    for op in module.body:
        if op.name == "sdy.mesh":
            name, mesh = op.attr("sym_name"), op.attr("mesh")
            if isinstance(name, StringAttr) and isinstance(mesh, MeshAttr):
                result[name.value] = mesh
    return result


def mesh_of(sharding: TensorShardingAttr, symbols: dict[str, MeshAttr]) -> MeshAttr | None:
    """Return the mesh that a sharding refers to, by symbol or inlined; None for an unknown symbol."""
    if sharding.mesh.startswith("@"):
        return symbols.get(sharding.mesh_name)
    return cast(MeshAttr, parse_attribute("#sdy." + sharding.mesh))


def fully_open(mesh_ref: str, rank: int) -> TensorShardingAttr:
    """Return every dimension `{?}`; `mesh_ref` is spelled as in a sharding, e.g. `@mesh`."""
    return parse_sharding_body(f"<{mesh_ref}, [{', '.join(['{?}'] * rank)}]>")


def fully_closed(mesh_ref: str, rank: int) -> TensorShardingAttr:
    """Return every dimension `{}`."""
    return parse_sharding_body(f"<{mesh_ref}, [{', '.join(['{}'] * rank)}]>")


def mesh_ref(name: str) -> str:
    """Return how a sharding spells a reference to the mesh with this symbol name."""
    return SymbolRefAttr.get(name).text


def sharding_like(
    sharding: TensorShardingAttr, *, mesh_ref: str | None = None, dims: Sequence[str] | None = None
) -> TensorShardingAttr:
    """Return the sharding with another mesh reference or other dimensions."""
    mesh_ref = sharding.mesh if mesh_ref is None else mesh_ref
    dims = sharding.dims if dims is None else dims
    return parse_sharding_body(f"<{mesh_ref}, [{', '.join(dims)}]{sharding.suffix}>")


def map_shardings(attribute: Attribute, change: Callable[[TensorShardingAttr], TensorShardingAttr]) -> Attribute:
    """Return the attribute with every sharding in it replaced."""
    if isinstance(attribute, TensorShardingAttr):
        return change(attribute)
    if isinstance(attribute, TensorShardingPerValueAttr):
        return TensorShardingPerValueAttr.get(change(s) for s in attribute.shardings)
    if isinstance(attribute, ArrayAttr):
        return ArrayAttr.get(map_shardings(e, change) for e in attribute.elements)
    if isinstance(attribute, DictAttr):
        return DictAttr.get({k: map_shardings(v, change) for k, v in attribute.entries.items()})
    return attribute


def map_attributes(op: Op, change: Callable[[Attribute], Attribute]) -> bool:
    """Replace the properties and attributes of an op by what `change` gives for each; return whether any changed."""
    changed = False
    for held in (op.props, op.attrs):
        for key, old in held.items():
            held[key] = change(old)
            changed = changed or held[key] is not old
    return changed


def sharding_class(sharding: TensorShardingAttr | None) -> tuple[object, ...] | None:
    """Return what distinguishes shardings in effect: two are equivalent iff this is equal.

    None when nothing is sharded; openness of dimensions and replicated axes do not count.
    """
    if sharding is None:
        return None
    axes = tuple(sharding.dim_axes(i) for i in range(len(sharding.dims)))
    if not any(axes) and not sharding.unreduced:
        return None
    return (sharding.mesh, axes, sharding.unreduced)


def equivalent_shardings(a: TensorShardingAttr | None, b: TensorShardingAttr | None) -> bool:
    """Return whether values with these shardings need no resharding between them."""
    return a is b or sharding_class(a) == sharding_class(b)


def local_shape(tensor: TensorType, sharding: TensorShardingAttr | None, mesh: MeshAttr | None) -> tuple[int, ...]:
    """Return the shape of the part of a tensor on one device, each dimension rounded up."""
    shape = tensor.shape or ()
    if sharding is None or mesh is None:
        return shape
    sizes = dict(mesh.axes)
    local = []
    for i, size in enumerate(shape):
        axes = sharding.dim_axes(i) if i < len(sharding.dims) else ()
        parts = math.prod(sizes.get(axis.name, 1) if axis.size is None else axis.size for axis in axes)
        local.append(-(-size // parts))
    return tuple(local)


_WIDTH = re.compile(r"(?:ui|si|i|bf|f|tf)(\d+)")


def bit_width(element: str) -> int:
    """Return the bits that an element takes in memory.  Raises `ValueError` for types without a size."""
    if element == "i1":
        return 8  # XLA packs all other small numbers
    if element.startswith("complex<"):
        return 2 * bit_width(element[len("complex<") : -1])
    if element.startswith("!quant.uniform<"):
        return bit_width(element[len("!quant.uniform<") :])
    match = _WIDTH.match(element)
    if match is None:
        raise ValueError(f"elements of type {element} have no size")
    return 19 if element == "tf32" else int(match.group(1))


def byte_size(type: MeshTensorType, symbols: dict[str, MeshAttr]) -> float:
    """Return the bytes that a value of this type takes on one device (a fraction for elements of some bits)."""
    mesh = None if type.sharding is None else mesh_of(type.sharding, symbols)
    return math.prod(local_shape(type.tensor, type.sharding, mesh)) * bit_width(type.tensor.element) / 8
