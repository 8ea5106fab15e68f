"""Attributes of the IR: interned, immutable, printed exactly as MLIR prints them.

An attribute is equal to another iff it is the same object.  Attributes that no pass looks into stay opaque
(`Attribute`): their text is their value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from .types import Type, parse_type

__all__ = [
    "UNIT",
    "ArrayAttr",
    "Attribute",
    "Axis",
    "BoolAttr",
    "DenseArrayAttr",
    "DictAttr",
    "IntegerAttr",
    "MeshAttr",
    "MeshesWithOriginsAttr",
    "ReductionAttr",
    "StringAttr",
    "SymbolRefAttr",
    "TensorShardingAttr",
    "TensorShardingPerValueAttr",
    "TopologyAttr",
    "TypeAttr",
    "UnitAttr",
    "UserOriginAttr",
    "matching_bracket",
    "parse_attribute",
    "parse_dict_body",
    "parse_sharding_body",
    "quote",
    "split_top_level",
    "unquote",
]

_OPEN, _CLOSE = "<([{", ">)]}"


def quote(text: str) -> str:
    """`text` as an MLIR string literal."""
    out = []
    for byte in text.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        if char == "\\":
            out.append("\\\\")
        elif 0x20 <= byte < 0x7F and char != '"':
            out.append(char)
        else:
            out.append(f"\\{byte:02X}")
    return '"' + "".join(out) + '"'


def unquote(text: str) -> str:
    """The value of an MLIR string literal."""
    text = text.strip()
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        raise ValueError(f"not a string literal: {text}")
    body = text[1:-1]
    if "\\" not in body:
        return body
    out, i = bytearray(), 0
    while i < len(body):
        if body[i] == "\\":
            nxt = body[i + 1]
            simple = {"n": 10, "t": 9, "\\": 92, '"': 34}
            if nxt in simple:
                out.append(simple[nxt])
                i += 2
            else:
                out.append(int(body[i + 1 : i + 3], 16))
                i += 3
        else:
            out += body[i].encode("utf-8")
            i += 1
    return out.decode("utf-8", errors="surrogateescape")


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>]=|[<(\[{>)\]},]', re.S)


def split_top_level(text: str, separator: str = ",") -> list[str]:
    """The parts of `text` between separators that are outside of brackets and strings, stripped."""
    parts: list[str] = []
    depth = start = 0
    for match in _TOKENS.finditer(text):
        token = match.group()
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
        elif token == separator and depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    last = text[start:].strip()
    if last or parts:
        parts.append(last)
    return parts


def matching_bracket(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`; strings and `->` are skipped."""
    depth = 0
    for match in _TOKENS.finditer(text, start):
        token = match.group()
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
            if depth == 0:
                return match.start()
    raise ValueError(f"unbalanced bracket in {text[start : start + 60]!r}")


class Attribute:
    """Any MLIR attribute.  `text` is its canonical spelling."""

    __slots__ = ("__weakref__", "text")

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text}>"


_attributes: dict[str, Attribute] = {}
A = TypeVar("A", bound=Attribute)


def _intern(text: str, make: Callable[[str], A]) -> A:
    found = _attributes.get(text)
    if found is None:
        found = _attributes[text] = make(text)
    return found  # type: ignore[return-value]  # one text is always one class


class UnitAttr(Attribute):
    """Present or absent; `{remat}`."""

    __slots__ = ()


UNIT: UnitAttr = _intern("unit", UnitAttr)


class StringAttr(Attribute):
    __slots__ = ("value",)
    value: str

    @staticmethod
    def get(value: str) -> StringAttr:
        def make(text: str) -> StringAttr:
            attr = StringAttr(text)
            attr.value = value
            return attr

        return _intern(quote(value), make)


class BoolAttr(Attribute):
    __slots__ = ("value",)
    value: bool

    @staticmethod
    def get(value: bool) -> BoolAttr:
        def make(text: str) -> BoolAttr:
            attr = BoolAttr(text)
            attr.value = value
            return attr

        return _intern("true" if value else "false", make)


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

        return _intern(f"{value} : {type}", make)


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
        return _intern("@" + (name if plain else quote(name)), make)


class TypeAttr(Attribute):
    __slots__ = ("type",)
    type: Type

    @staticmethod
    def get(type: Type) -> TypeAttr:
        def make(text: str) -> TypeAttr:
            attr = TypeAttr(text)
            attr.type = type
            return attr

        return _intern(type.text, make)


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

        return _intern("[" + ", ".join(e.text for e in elements) + "]", make)


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
        return _intern(f"array<{body}>", make)


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

        return _intern("{" + dict_text(ordered) + "}", make)

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
        return _intern(f"#mpmd.user_origin<{quote(name)}{count}>", make)

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

        return _intern(f"#mpmd.reduction<{kind}>", make)


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

        return _intern(f"#sdy.mesh<{body}>", make)

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
        return _intern(f"#mpmd.topology<{body}>", make)


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
        return _intern(f"#mpmd.meshes_with_origins<{', '.join(parts)}>", make)


class Axis:
    """An axis or sub-axis of a sharding: `"x"` or `"x":(2)4` (pre-size 2, size 4)."""

    __slots__ = ("name", "pre_size", "size")

    def __init__(self, name: str, pre_size: int | None = None, size: int | None = None) -> None:
        self.name, self.pre_size, self.size = name, pre_size, size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axis) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return quote(self.name) + ("" if self.size is None else f":({self.pre_size}){self.size}")


class TensorShardingAttr(Attribute):
    """`#sdy.sharding<@mesh, [{"x"}, {?}], replicated={"y"}, unreduced={"z"}>`.

    `dims` holds per dimension the text between the braces (axes, `?`, priority kept); use `dim_axes` to
    look inside.  `mesh` is the text of the mesh reference (`@mesh` or an inlined `mesh<...>`).
    """

    __slots__ = ("dims", "mesh", "replicated", "stripped", "suffix", "unreduced")
    mesh: str
    dims: tuple[str, ...]
    replicated: tuple[Axis, ...]
    unreduced: tuple[Axis, ...]
    suffix: str  # everything behind the dims, as printed
    stripped: str

    @property
    def mesh_name(self) -> str:
        """The referenced mesh symbol, without @; empty for an inlined mesh."""
        return SYMBOL.match(self.mesh).group(1).strip('"') if self.mesh.startswith("@") else ""  # type: ignore[union-attr]

    def dim_axes(self, dim: int) -> tuple[Axis, ...]:
        """The axes that shard this dimension, major first."""
        return _parse_axes(_dim_braces(self.dims[dim]))

    def is_open(self, dim: int) -> bool:
        """Whether propagation may shard this dimension further."""
        return "?" in split_top_level(_dim_braces(self.dims[dim]))

    @property
    def is_fully_replicated(self) -> bool:
        """No dimension has an axis."""
        return all(not self.dim_axes(i) for i in range(len(self.dims)))

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        """Axes of the dimensions, then the replicated, then the unreduced ones."""
        found: list[Axis] = []
        for i in range(len(self.dims)):
            found += self.dim_axes(i)
        return (*found, *self.replicated, *self.unreduced)

    def with_mesh(self, name: str) -> TensorShardingAttr:
        """The same sharding on another mesh symbol."""
        dims = ", ".join(self.dims)
        return parse_sharding_body(f"<{SymbolRefAttr.get(name).text}, [{dims}]{self.suffix}>")


SYMBOL = re.compile(r'@([A-Za-z_][A-Za-z0-9_$.]*|"(?:[^"\\]|\\.)*")')


def _dim_braces(dim: str) -> str:
    return dim[dim.index("{") + 1 : dim.rindex("}")]


def _parse_axes(text: str) -> tuple[Axis, ...]:
    axes = []
    for part in split_top_level(text):
        if part in ("?", ""):
            continue
        match = re.fullmatch(r'("(?:[^"\\]|\\.)*")(?::\((\d+)\)(\d+))?', part)
        if match is None:
            raise ValueError(f"not an axis: {part}")
        name, pre, size = match.groups()
        axes.append(Axis(unquote(name), int(pre) if pre else None, int(size) if size else None))
    return tuple(axes)


def parse_sharding_body(body: str) -> TensorShardingAttr:
    """The sharding spelled `<@mesh, [{"x"}, {}], ...>` (without the `#sdy.sharding` in front)."""

    def make(text: str) -> TensorShardingAttr:
        attr = TensorShardingAttr(text)
        parts = split_top_level(body.strip()[1:-1])
        attr.mesh = parts[0]
        attr.dims = tuple(split_top_level(parts[1][1:-1]))
        attr.replicated = attr.unreduced = ()
        for part in parts[2:]:
            key, _, value = part.partition("=")
            value = value.strip()
            axes = _parse_axes(value[value.index("{") + 1 : value.rindex("}")])
            if key.strip() == "replicated":
                attr.replicated = axes
            elif key.strip() == "unreduced":
                attr.unreduced = axes
        attr.suffix = "".join(", " + p for p in parts[2:])
        attr.stripped = body.strip()
        return attr

    return _intern("#sdy.sharding" + body.strip(), make)


class TensorShardingPerValueAttr(Attribute):
    """`#sdy.sharding_per_value<[<@mesh, [..]>, ...]>`: one sharding per operand or result."""

    __slots__ = ("shardings",)
    shardings: tuple[TensorShardingAttr, ...]

    @staticmethod
    def get(shardings: Iterable[TensorShardingAttr]) -> TensorShardingPerValueAttr:
        shardings = tuple(shardings)

        def make(text: str) -> TensorShardingPerValueAttr:
            attr = TensorShardingPerValueAttr(text)
            attr.shardings = shardings
            return attr

        return _intern(
            f"#sdy.sharding_per_value<[{', '.join(s.stripped for s in shardings)}]>", make
        )


_INTEGER = re.compile(r"(-?\d+) : ((?:ui|si|i)\d+|index)$")


def _parse_mesh_body(body: str) -> MeshAttr:
    parts = split_top_level(body.strip()[1:-1])
    axes, ids = [], []
    for part in parts:
        if part.startswith("["):
            for axis in split_top_level(part[1:-1]):
                match = re.fullmatch(r'("(?:[^"\\]|\\.)*")\s*=\s*(\d+)', axis)
                if match is None:
                    raise ValueError(f"not a mesh axis: {axis}")
                axes.append((unquote(match.group(1)), int(match.group(2))))
        elif part.startswith("device_ids"):
            ids = [int(i) for i in split_top_level(part[part.index("[") + 1 : part.rindex("]")])]
    return MeshAttr.get(axes, ids)


def _parse_topology(text: str) -> TopologyAttr:
    meshes = {}
    for entry in split_top_level(text[len("#mpmd.topology<") : -1]):
        match = re.match(r'<\s*("(?:[^"\\]|\\.)*")\s*:\s*', entry)
        if match is None:
            raise ValueError(f"not a named mesh: {entry}")
        meshes[unquote(match.group(1))] = _parse_mesh_body(entry[match.end() : -1].strip())
    return TopologyAttr.get(meshes)


def _parse_meshes_with_origins(text: str) -> MeshesWithOriginsAttr:
    meshes: dict[str, Sequence[str]] = {}
    for entry in split_top_level(text[len("#mpmd.meshes_with_origins<") : -1]):
        match = re.fullmatch(r'("(?:[^"\\]|\\.)*")(?:\[(.*)\])?', entry, re.S)
        if match is None:
            raise ValueError(f"not a mesh with origins: {entry}")
        labels = match.group(2)
        meshes[unquote(match.group(1))] = [unquote(p) for p in split_top_level(labels or "")]
    return MeshesWithOriginsAttr.get(meshes)


def _parse_user_origin(text: str) -> UserOriginAttr:
    match = re.fullmatch(r'#mpmd\.user_origin<("(?:[^"\\]|\\.)*")(?:\((\d+)\))?>', text)
    if match is None:
        raise ValueError(f"not a user origin: {text}")
    return UserOriginAttr.get(unquote(match.group(1)), int(match.group(2) or 0))


def parse_dict_body(text: str) -> dict[str, Attribute]:
    """The entries of an attribute dictionary, given what stands between its braces."""
    entries: dict[str, Attribute] = {}
    for part in split_top_level(text):
        match = re.match(r'([A-Za-z_][A-Za-z0-9_$.]*|"(?:[^"\\]|\\.)*")\s*(=\s*)?', part)
        if match is None:
            raise ValueError(f"not a dictionary entry: {part}")
        key = match.group(1)
        key = unquote(key) if key.startswith('"') else key
        entries[key] = parse_attribute(part[match.end() :]) if match.group(2) else UNIT
    return entries


def parse_attribute(text: str) -> Attribute:
    """The attribute that `text` (as printed by MLIR) spells.  What no pass reads stays opaque."""
    found = _attributes.get(text)
    if found is None:
        found = _parse(text)
        _attributes[text] = found
    return found


def _parse(text: str) -> Attribute:
    first = text[0]
    if first == '"' and text[-1] == '"' and len(_TOKENS.match(text).group()) == len(text):  # type: ignore[union-attr]
        return StringAttr.get(unquote(text))
    if first in "0123456789-":
        match = _INTEGER.match(text)
        if match is not None:
            return IntegerAttr.get(int(match.group(1)), match.group(2))
    if text in ("true", "false"):
        return BoolAttr.get(text == "true")
    if first == "@":
        match = SYMBOL.fullmatch(text)
        if match is not None:
            name = match.group(1)
            return SymbolRefAttr.get(unquote(name) if name.startswith('"') else name)
    if first == "[":
        return ArrayAttr.get(parse_attribute(p) for p in split_top_level(text[1:-1]))
    if first == "{":
        return DictAttr.get(parse_dict_body(text[1:-1]))
    if first == "(" or text.startswith(("tensor<", "!")):
        return TypeAttr.get(parse_type(text))
    if text.startswith("array<i") and not text.startswith("array<i1:"):
        kind, _, values = text[len("array<") : -1].partition(":")
        return DenseArrayAttr.get((int(v) for v in split_top_level(values)), kind.strip())
    if text.startswith("#mpmd."):
        if text.startswith("#mpmd.user_origin<"):
            return _parse_user_origin(text)
        if text.startswith("#mpmd.topology<"):
            return _parse_topology(text)
        if text.startswith("#mpmd.meshes_with_origins<"):
            return _parse_meshes_with_origins(text)
        if text.startswith("#mpmd.reduction<"):
            return ReductionAttr.get(text[len("#mpmd.reduction<") : -1].strip())
    if text.startswith("#sdy.mesh<"):
        return _parse_mesh_body(text[len("#sdy.mesh") :])
    if text.startswith("#sdy.sharding<"):
        return parse_sharding_body(text[len("#sdy.sharding") :])
    if text.startswith("#sdy.sharding_per_value<"):
        body = text[len("#sdy.sharding_per_value<") : -1].strip()
        return TensorShardingPerValueAttr.get(
            parse_sharding_body(p) for p in split_top_level(body[1:-1])
        )
    return _attributes.setdefault(text, Attribute(text))
