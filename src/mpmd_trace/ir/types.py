"""Types of the IR: interned, immutable, printed exactly as MLIR prints them.

Two types are equal iff they are the same object, which makes comparison and hashing free.  Build them with
the functions below or with `parse_type`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import ClassVar
from weakref import WeakValueDictionary

from mpmd_trace.diagnostics.mlir_text import matching_bracket, quote, split_top_level, unquote
from mpmd_trace.ir.attribute_base import Attribute
from mpmd_trace.ir.interning import Interned
from mpmd_trace.ir.sharding_attributes import TensorShardingAttr, parse_sharding_body


class Type(Interned):
    """Any MLIR type.  `text` is its canonical spelling."""

    __slots__ = ()
    known: ClassVar = WeakValueDictionary()

    def __reduce__(self) -> tuple[Callable[[str], Type], tuple[str]]:
        return parse_type, (self.text,)  # pickled, it is the one object with this text again

    @property
    def is_token(self) -> bool:
        """True if this is a StableHLO token, the only non-tensor value that fragments may carry."""
        return self.text == "!stablehlo.token"

    @property
    def is_scalar(self) -> bool:
        """True if this is a tensor without dimensions, on no mesh."""
        return False

    @property
    def is_empty(self) -> bool:
        """True if this is a tensor without elements, on no mesh."""
        return False

    @property
    def is_dynamic(self) -> bool:
        """True if a size is not known."""
        return "?" in self.text


class TensorType(Type):
    """A builtin tensor.  `shape` is None when unranked; a dynamic dimension is -1."""

    __slots__ = ("_on_meshes", "element", "encoding", "is_dynamic", "is_empty", "shape")
    shape: tuple[int, ...] | None
    element: str
    encoding: str | None
    is_empty: bool  # this and `is_dynamic` are asked of all values of a program
    is_dynamic: bool
    #: What `mesh_tensor` gave for this tensor: it is asked very often, and its text is long.
    _on_meshes: dict[tuple[str, TensorShardingAttr | None, str | None], MeshTensorType]

    @property
    def is_scalar(self) -> bool:
        return self.shape == ()

    @property
    def is_ranked(self) -> bool:
        return self.shape is not None

    @property
    def rank(self) -> int:
        if self.shape is None:
            raise ValueError(f"{self.text} has no rank")
        return len(self.shape)

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape or ())


class MeshTensorType(Type):
    """A tensor that lives on a mesh: `!mpmd.mesh_tensor<"m", tensor<..>, sharding=.., memory_kind=..>`.

    Source: the types of the mpmd dialect (Shardy).
    """

    __slots__ = ("memory_kind", "mesh", "sharding", "tensor")
    mesh: str
    tensor: TensorType
    sharding: TensorShardingAttr | None
    memory_kind: str | None

    @property
    def on_host(self) -> bool:
        """True if the value lives in pinned host memory."""
        return self.memory_kind == "pinned_host"

    def with_sharding(self, sharding: TensorShardingAttr | None) -> MeshTensorType:
        return mesh_tensor(self.mesh, self.tensor, sharding, self.memory_kind)

    def with_mesh(self, mesh: str) -> MeshTensorType:
        return mesh_tensor(mesh, self.tensor, self.sharding, self.memory_kind)

    def with_memory_kind(self, memory_kind: str | None) -> MeshTensorType:
        return mesh_tensor(self.mesh, self.tensor, self.sharding, memory_kind)


class FunctionType(Type):
    """`(inputs) -> results`."""

    __slots__ = ("inputs", "results")
    inputs: tuple[Type, ...]
    results: tuple[Type, ...]


class TypeAttr(Attribute):
    """A type as an attribute."""

    __slots__ = ("type",)
    type: Type

    @staticmethod
    def get(type: Type) -> TypeAttr:
        return TypeAttr.interned(type.text, type=type)


_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*|\*x)(.*)>$", re.DOTALL)


def tensor(shape: tuple[int, ...] | None, element: str, encoding: str | None = None) -> TensorType:
    """Return the tensor type with this shape (None: unranked) and element type, e.g. `tensor((4, 2), "f32")`.

    The size of a dynamic dimension is -1.
    """
    dims = "*x" if shape is None else "".join("?x" if size < 0 else f"{size}x" for size in shape)
    text = f"tensor<{dims}{element}{', ' + encoding if encoding else ''}>"
    is_dynamic = "?" in text
    return TensorType.interned(
        text,
        shape=shape,
        element=element,
        encoding=encoding,
        is_empty=not is_dynamic and 0 in (shape or ()),
        is_dynamic=is_dynamic,
        _on_meshes={},
    )


def mesh_tensor(
    mesh: str, tensor: TensorType, sharding: TensorShardingAttr | None = None, memory_kind: str | None = None
) -> MeshTensorType:
    """Return the mesh tensor type of `tensor` on `mesh`."""
    key = (mesh, sharding, memory_kind)
    known = tensor._on_meshes.get(key)
    if known is not None:
        return known
    text = f"!mpmd.mesh_tensor<{quote(mesh)}, {tensor.text}"
    if sharding is not None:
        text += f", sharding={sharding.stripped}"
    if memory_kind is not None:
        text += f", memory_kind={quote(memory_kind)}"
    text += ">"
    result = MeshTensorType.interned(text, mesh=mesh, tensor=tensor, sharding=sharding, memory_kind=memory_kind)
    tensor._on_meshes[key] = result
    return result


def function_type(inputs: tuple[Type, ...], results: tuple[Type, ...]) -> FunctionType:
    """Return the function type; printed without parentheses around a single plain result, as MLIR does."""
    left = ", ".join(t.text for t in inputs)
    if len(results) == 1 and not isinstance(results[0], FunctionType):
        right = results[0].text
    else:
        right = "(" + ", ".join(t.text for t in results) + ")"
    return FunctionType.interned(f"({left}) -> {right}", inputs=inputs, results=results)


def parse_type(text: str) -> Type:
    """Return the type that `text` (as printed by MLIR) spells.  Unknown types stay opaque.

    Raises `ValueError` when the text of a tensor, mesh tensor or function type is malformed.
    """
    result: Type | None = Type.known.get(text)
    return Type.keep(text, _parse(text.strip())) if result is None else result


def _parse(text: str) -> Type:
    if text.startswith("tensor<"):
        return _parse_tensor(text)
    if text.startswith("!mpmd.mesh_tensor<"):
        return _parse_mesh_tensor(text)
    if text.startswith("("):
        return _parse_function(text)
    return Type.interned(text)


def _parse_tensor(text: str) -> TensorType:
    match = _TENSOR.match(text)
    if match is None:
        raise ValueError(f"not a tensor type: {text}")
    dims, element = match.groups()
    more: list[str] = []
    if "<" in element or "," in element:  # few have an encoding, or an element type with parameters
        element, *more = split_top_level(element)
    shape = None if dims == "*x" else tuple(-1 if d == "?" else int(d) for d in dims.split("x")[:-1])
    return tensor(shape, element, ", ".join(more) or None)


def _parse_mesh_tensor(text: str) -> MeshTensorType:
    parts = split_top_level(text[len("!mpmd.mesh_tensor<") : -1])
    inner = parse_type(parts[1])
    if not isinstance(inner, TensorType):
        raise ValueError(f"mesh tensor of a non-tensor: {text}")
    sharding, memory_kind = None, None
    for part in parts[2:]:
        key, _, value = part.partition("=")
        if key.strip() == "sharding":
            sharding = parse_sharding_body(value.strip())
        elif key.strip() == "memory_kind":
            memory_kind = unquote(value.strip())
        else:
            raise ValueError(f"unknown part '{part}' in {text}")
    return mesh_tensor(unquote(parts[0]), inner, sharding, memory_kind)


#: Many calls take and give nothing else, and thousands of them.
_PLAIN_TENSORS = re.compile(r"tensor<[^<>,]*>(?:, tensor<[^<>,]*>)*")


def _parse_types(text: str) -> tuple[Type, ...]:
    return tuple(map(parse_type, text.split(", ") if _PLAIN_TENSORS.fullmatch(text) else split_top_level(text)))


def _parse_function(text: str) -> FunctionType:
    close = matching_bracket(text, 0)
    inputs = _parse_types(text[1:close])
    rest = text[close + 1 :].strip()
    if not rest.startswith("->"):
        raise ValueError(f"not a function type: {text}")
    rest = rest[2:].strip()
    if rest.startswith("(") and matching_bracket(rest, 0) == len(rest) - 1:
        results = _parse_types(rest[1:-1])
    else:
        results = (parse_type(rest),)
    return function_type(inputs, results)
