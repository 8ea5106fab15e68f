"""Attributes without sub-language of their own: strings, numbers, lists, dictionaries, and those of mpmd.

Attributes are interned: an attribute is equal to another iff it is the same object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.interning import Interned


class Attribute(Interned):
    """Any MLIR attribute.  `text` is its canonical spelling."""

    __slots__ = ()
    known: ClassVar = WeakValueDictionary()

    def __reduce__(self) -> tuple[Callable[..., Attribute], tuple[Any, ...]]:
        slots: tuple[str, ...] = type(self).__slots__
        return _again, (type(self), self.text, {name: getattr(self, name) for name in slots})


def _again(cls: type[Attribute], text: str, fields: dict[str, Any]) -> Attribute:
    """Return the one object with this text, for one that was copied or pickled."""
    return cls.interned(text, **fields)


class UnitAttr(Attribute):
    """Present or absent; `{remat}`."""

    __slots__ = ()


UNIT: UnitAttr = UnitAttr.interned("unit")


class StringAttr(Attribute):
    __slots__ = ("value",)
    value: str

    @staticmethod
    def get(value: str) -> StringAttr:
        return StringAttr.interned(quote(value), value=value)


class BoolAttr(Attribute):
    __slots__ = ("value",)
    value: bool

    @staticmethod
    def get(value: bool) -> BoolAttr:
        return BoolAttr.interned("true" if value else "false", value=value)


class IntegerAttr(Attribute):
    """An integer with its type, e.g. `3 : ui32`."""

    __slots__ = ("type", "value")
    value: int
    type: str

    @staticmethod
    def get(value: int, type: str = "i64") -> IntegerAttr:
        return IntegerAttr.interned(f"{value} : {type}", value=value, type=type)


def integer_in(entries: Mapping[str, Attribute], name: str) -> int | None:
    """Return the value of an integer among attributes; None where there is none of that name."""
    attribute = entries.get(name)
    return attribute.value if isinstance(attribute, IntegerAttr) else None


class SymbolRefAttr(Attribute):
    """`@f`; `name` is the (root) symbol without the @."""

    __slots__ = ("name",)
    name: str

    @staticmethod
    def get(name: str) -> SymbolRefAttr:
        plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$.]*", name)
        return SymbolRefAttr.interned("@" + (name if plain else quote(name)), name=name)


class ArrayAttr(Attribute):
    __slots__ = ("elements",)
    elements: tuple[Attribute, ...]

    @staticmethod
    def get(elements: Iterable[Attribute]) -> ArrayAttr:
        elements = tuple(elements)
        return ArrayAttr.interned("[" + ", ".join(e.text for e in elements) + "]", elements=elements)


class DenseArrayAttr(Attribute):
    """`array<i64: 1, 2>`."""

    __slots__ = ("element", "values")
    element: str
    values: tuple[int, ...]

    @staticmethod
    def get(values: Iterable[int], element: str = "i64") -> DenseArrayAttr:
        values = tuple(values)
        body = f"{element}: " + ", ".join(map(str, values)) if values else element
        return DenseArrayAttr.interned(f"array<{body}>", values=values, element=element)


_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*$")


def dict_text(items: Mapping[str, Attribute]) -> str:
    """Return the entries of a dictionary, sorted by name, as MLIR prints them between braces."""
    parts = []
    for key in sorted(items):
        shown = key if _PLAIN_KEY.match(key) else quote(key)
        value = items[key]
        parts.append(shown if value is UNIT else f"{shown} = {value.text}")
    return ", ".join(parts)


class DictAttr(Attribute):
    """An attribute dictionary: its `entries`, sorted by name.  Derive others with `with_` and `without`."""

    __slots__ = ("entries",)
    entries: dict[str, Attribute]

    @staticmethod
    def get(items: Mapping[str, Attribute]) -> DictAttr:
        ordered = {key: items[key] for key in sorted(items)}
        return DictAttr.interned("{" + dict_text(ordered) + "}", entries=ordered)

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
        count = f"({transpose_count})" if transpose_count else ""
        text = f"#mpmd.user_origin<{quote(name)}{count}>"
        return UserOriginAttr.interned(text, name=name, transpose_count=transpose_count)

    @property
    def short(self) -> str:
        """The origin as text: `"f"(1)`."""
        return self.text[len("#mpmd.user_origin<") : -1]


class ReductionAttr(Attribute):
    """`#mpmd.reduction<add>`; kind is none, add, max, min, mul, or, and."""

    __slots__ = ("kind",)
    kind: str

    @staticmethod
    def get(kind: str) -> ReductionAttr:
        return ReductionAttr.interned(f"#mpmd.reduction<{kind}>", kind=kind)


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
        return MeshAttr.interned(f"#sdy.mesh<{body}>", axes=axes, device_ids=device_ids, body=f"<{body}>")

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(n for _, n in self.axes)


class TopologyAttr(Attribute):
    """The meshes of a program, in order."""

    __slots__ = ("meshes",)
    meshes: dict[str, MeshAttr]

    @staticmethod
    def get(meshes: Mapping[str, MeshAttr]) -> TopologyAttr:
        copied = dict(meshes)
        body = ", ".join(f"<{quote(n)} : {m.body}>" for n, m in copied.items())
        return TopologyAttr.interned(f"#mpmd.topology<{body}>", meshes=copied)


class MeshesWithOriginsAttr(Attribute):
    """Ordered meshes, each with ordered labels; the value of `mpmd.use_set` and `mpmd.src_set`."""

    __slots__ = ("meshes",)
    meshes: dict[str, tuple[str, ...]]

    @staticmethod
    def get(meshes: Mapping[str, Iterable[str]]) -> MeshesWithOriginsAttr:
        copied = {mesh: tuple(labels) for mesh, labels in meshes.items()}
        parts = [
            quote(mesh) + (f"[{', '.join(map(quote, labels))}]" if labels else "") for mesh, labels in copied.items()
        ]
        return MeshesWithOriginsAttr.interned(f"#mpmd.meshes_with_origins<{', '.join(parts)}>", meshes=copied)
