"""Attributes without sub-language of their own: strings, numbers, lists, dictionaries, and those of mpmd.

Attributes are interned: an attribute is equal to another iff it is the same object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from mpmd_trace.diagnostics.spelling import quote
from mpmd_trace.ir.interning import Interned, Interner

__all__ = [
    "ATTRIBUTES",
    "UNIT",
    "ArrayAttr",
    "Attribute",
    "BoolAttr",
    "DenseArrayAttr",
    "DictAttr",
    "IntegerAttr",
    "MeshAttr",
    "MeshesWithOriginsAttr",
    "ReductionAttr",
    "StringAttr",
    "SymbolRefAttr",
    "TopologyAttr",
    "UnitAttr",
    "UserOriginAttr",
    "dict_text",
    "intern",
]


class Attribute(Interned):
    """Any MLIR attribute.  `text` is its canonical spelling."""

    __slots__ = ()


ATTRIBUTES: Interner[Attribute] = Interner()
A = TypeVar("A", bound=Attribute)


def intern(text: str, make: Callable[[str], A]) -> A:
    """The attribute with this text, made if need be."""
    found = ATTRIBUTES.find(text)
    if found is None:
        found = ATTRIBUTES.keep(text, make(text))
    return found  # type: ignore[return-value]  # one text is always one class


class UnitAttr(Attribute):
    """Present or absent; `{remat}`."""

    __slots__ = ()


UNIT: UnitAttr = intern("unit", UnitAttr)


class StringAttr(Attribute):
    __slots__ = ("value",)
    value: str

    @staticmethod
    def get(value: str) -> StringAttr:
        def make(text: str) -> StringAttr:
            attr = StringAttr(text)
            attr.value = value
            return attr

        return intern(quote(value), make)


class BoolAttr(Attribute):
    __slots__ = ("value",)
    value: bool

    @staticmethod
    def get(value: bool) -> BoolAttr:
        def make(text: str) -> BoolAttr:
            attr = BoolAttr(text)
            attr.value = value
            return attr

        return intern("true" if value else "false", make)


class IntegerAttr(Attribute):
    """An integer with its type, e.g. `3 : ui32`."""

    __slots__ = ("type", "value")
    value: int
    type: str

    @staticmethod
    def get(value: int, type: str = "i64") -> IntegerAttr:
        def make(text: str) -> IntegerAttr:
            attr = IntegerAttr(text)
            attr.value, attr.type = value, type
            return attr

        return intern(f"{value} : {type}", make)


class SymbolRefAttr(Attribute):
    """`@f`; `name` is the (root) symbol without the @."""

    __slots__ = ("name",)
    name: str

    @staticmethod
    def get(name: str) -> SymbolRefAttr:
        def make(text: str) -> SymbolRefAttr:
            attr = SymbolRefAttr(text)
            attr.name = name
            return attr

        plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$.]*", name)
        return intern("@" + (name if plain else quote(name)), make)


class ArrayAttr(Attribute):
    __slots__ = ("elements",)
    elements: tuple[Attribute, ...]

    @staticmethod
    def get(elements: Iterable[Attribute]) -> ArrayAttr:
        elements = tuple(elements)

        def make(text: str) -> ArrayAttr:
            attr = ArrayAttr(text)
            attr.elements = elements
            return attr

        return intern("[" + ", ".join(e.text for e in elements) + "]", make)


class DenseArrayAttr(Attribute):
    """`array<i64: 1, 2>`."""

    __slots__ = ("element", "values")
    element: str
    values: tuple[int, ...]

    @staticmethod
    def get(values: Iterable[int], element: str = "i64") -> DenseArrayAttr:
        values = tuple(values)

        def make(text: str) -> DenseArrayAttr:
            attr = DenseArrayAttr(text)
            attr.values, attr.element = values, element
            return attr

        body = f"{element}: " + ", ".join(map(str, values)) if values else element
        return intern(f"array<{body}>", make)


_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*$")


def dict_text(items: Mapping[str, Attribute]) -> str:
    """The entries of a dictionary, sorted by name, as MLIR prints them between braces."""
    parts = []
    for key in sorted(items):
        shown = key if _PLAIN_KEY.match(key) else quote(key)
        value = items[key]
        parts.append(shown if value is UNIT else f"{shown} = {value.text}")
    return ", ".join(parts)


class DictAttr(Attribute):
    """An attribute dictionary; read it with `[]`, `get` and `items`, derive with `with_`/`without`."""

    __slots__ = ("entries",)
    entries: dict[str, Attribute]

    @staticmethod
    def get(items: Mapping[str, Attribute]) -> DictAttr:
        ordered = {key: items[key] for key in sorted(items)}

        def make(text: str) -> DictAttr:
            attr = DictAttr(text)
            attr.entries = ordered
            return attr

        return intern("{" + dict_text(ordered) + "}", make)

    def with_(self, key: str, value: Attribute) -> DictAttr:
        return DictAttr.get({**self.entries, key: value})

    def without(self, key: str) -> DictAttr:
        return DictAttr.get({k: v for k, v in self.entries.items() if k != key})


class UserOriginAttr(Attribute):
    """The name a user gave to a computation, and how often it was transposed (0: forward, 1: backward)."""

    __slots__ = ("name", "transpose_count")
    name: str
    transpose_count: int

    @staticmethod
    def get(name: str, transpose_count: int = 0) -> UserOriginAttr:
        def make(text: str) -> UserOriginAttr:
            attr = UserOriginAttr(text)
            attr.name, attr.transpose_count = name, transpose_count
            return attr

        count = f"({transpose_count})" if transpose_count else ""
        return intern(f"#mpmd.user_origin<{quote(name)}{count}>", make)

    @property
    def short(self) -> str:
        """`"f"(1)`."""
        return self.text[len("#mpmd.user_origin<") : -1]


class ReductionAttr(Attribute):
    """`#mpmd.reduction<add>`; kind is none, add, max, min, mul, or, and."""

    __slots__ = ("kind",)
    kind: str

    @staticmethod
    def get(kind: str) -> ReductionAttr:
        def make(text: str) -> ReductionAttr:
            attr = ReductionAttr(text)
            attr.kind = kind
            return attr

        return intern(f"#mpmd.reduction<{kind}>", make)


class MeshAttr(Attribute):
    """An sdy mesh: named axes with sizes, optionally explicit device ids.  `body` is `<["x"=2]>`."""

    __slots__ = ("axes", "body", "device_ids")
    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...]
    body: str

    @staticmethod
    def get(axes: Iterable[tuple[str, int]], device_ids: Iterable[int] = ()) -> MeshAttr:
        axes, device_ids = tuple(axes), tuple(device_ids)
        body = "[" + ", ".join(f"{quote(a)}={n}" for a, n in axes) + "]"
        if device_ids:
            body += f", device_ids=[{', '.join(map(str, device_ids))}]"

        def make(text: str) -> MeshAttr:
            attr = MeshAttr(text)
            attr.axes, attr.device_ids, attr.body = axes, device_ids, f"<{body}>"
            return attr

        return intern(f"#sdy.mesh<{body}>", make)

    @property
    def size(self) -> int:
        """The number of devices."""
        count = 1
        for _, n in self.axes:
            count *= n
        return count


class TopologyAttr(Attribute):
    """The meshes of a program, in order."""

    __slots__ = ("meshes",)
    meshes: dict[str, MeshAttr]

    @staticmethod
    def get(meshes: Mapping[str, MeshAttr]) -> TopologyAttr:
        copied = dict(meshes)

        def make(text: str) -> TopologyAttr:
            attr = TopologyAttr(text)
            attr.meshes = copied
            return attr

        body = ", ".join(f"<{quote(n)} : {m.body}>" for n, m in copied.items())
        return intern(f"#mpmd.topology<{body}>", make)


class MeshesWithOriginsAttr(Attribute):
    """Ordered meshes, each with ordered labels; the value of `mpmd.use_set` and `mpmd.src_set`."""

    __slots__ = ("meshes",)
    meshes: dict[str, tuple[str, ...]]

    @staticmethod
    def get(meshes: Mapping[str, Iterable[str]]) -> MeshesWithOriginsAttr:
        copied = {mesh: tuple(labels) for mesh, labels in meshes.items()}

        def make(text: str) -> MeshesWithOriginsAttr:
            attr = MeshesWithOriginsAttr(text)
            attr.meshes = copied
            return attr

        parts = [
            quote(mesh) + (f"[{', '.join(map(quote, labels))}]" if labels else "")
            for mesh, labels in copied.items()
        ]
        return intern(f"#mpmd.meshes_with_origins<{', '.join(parts)}>", make)
