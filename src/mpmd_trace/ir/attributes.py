"""Attributes of the IR: interned, immutable, printed exactly as MLIR prints them.

An attribute is equal to another iff it is the same object.  Attributes that no pass looks into stay opaque
(`Attribute`): their text is their value.  This module reads their text; the classes come from its siblings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from mpmd_trace.diagnostics.mlir_text import TOKENS, split_top_level, unquote
from mpmd_trace.ir.attribute_base import UNIT as UNIT
from mpmd_trace.ir.attribute_base import ArrayAttr as ArrayAttr
from mpmd_trace.ir.attribute_base import Attribute as Attribute
from mpmd_trace.ir.attribute_base import BoolAttr as BoolAttr
from mpmd_trace.ir.attribute_base import DenseArrayAttr as DenseArrayAttr
from mpmd_trace.ir.attribute_base import DictAttr as DictAttr
from mpmd_trace.ir.attribute_base import IntegerAttr as IntegerAttr
from mpmd_trace.ir.attribute_base import MeshAttr as MeshAttr
from mpmd_trace.ir.attribute_base import MeshesWithOriginsAttr as MeshesWithOriginsAttr
from mpmd_trace.ir.attribute_base import ReductionAttr as ReductionAttr
from mpmd_trace.ir.attribute_base import StringAttr as StringAttr
from mpmd_trace.ir.attribute_base import SymbolRefAttr as SymbolRefAttr
from mpmd_trace.ir.attribute_base import TopologyAttr as TopologyAttr
from mpmd_trace.ir.attribute_base import UserOriginAttr as UserOriginAttr
from mpmd_trace.ir.attribute_base import dict_text as dict_text
from mpmd_trace.ir.attribute_base import integer_in as integer_in
from mpmd_trace.ir.sharding_attributes import SYMBOL as SYMBOL
from mpmd_trace.ir.sharding_attributes import Axis as Axis
from mpmd_trace.ir.sharding_attributes import TensorShardingAttr as TensorShardingAttr
from mpmd_trace.ir.sharding_attributes import TensorShardingPerValueAttr as TensorShardingPerValueAttr
from mpmd_trace.ir.sharding_attributes import parse_sharding_body as parse_sharding_body
from mpmd_trace.ir.types import TypeAttr as TypeAttr
from mpmd_trace.ir.types import parse_type

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


def _parse_topology(body: str) -> TopologyAttr:
    meshes = {}
    for entry in split_top_level(body[1:-1]):
        match = re.match(r'<\s*("(?:[^"\\]|\\.)*")\s*:\s*', entry)
        if match is None:
            raise ValueError(f"not a named mesh: {entry}")
        meshes[unquote(match.group(1))] = _parse_mesh_body(entry[match.end() : -1].strip())
    return TopologyAttr.get(meshes)


def _parse_meshes_with_origins(body: str) -> MeshesWithOriginsAttr:
    meshes: dict[str, Sequence[str]] = {}
    for entry in split_top_level(body[1:-1]):
        match = re.fullmatch(r'("(?:[^"\\]|\\.)*")(?:\[(.*)\])?', entry, re.S)
        if match is None:
            raise ValueError(f"not a mesh with origins: {entry}")
        labels = match.group(2)
        meshes[unquote(match.group(1))] = [unquote(p) for p in split_top_level(labels or "")]
    return MeshesWithOriginsAttr.get(meshes)


def _parse_user_origin(body: str) -> UserOriginAttr:
    match = re.fullmatch(r'<("(?:[^"\\]|\\.)*")(?:\((\d+)\))?>', body)
    if match is None:
        raise ValueError(f"not a user origin: {body}")
    return UserOriginAttr.get(unquote(match.group(1)), int(match.group(2) or 0))


def _parse_shardings(body: str) -> TensorShardingPerValueAttr:
    return TensorShardingPerValueAttr.get(map(parse_sharding_body, split_top_level(body[1:-1].strip()[1:-1])))


def parse_dict_body(text: str) -> dict[str, Attribute]:
    """Return the entries of an attribute dictionary, given what stands between its braces."""
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
    """Return the attribute that `text` (as printed by MLIR) spells.  What no pass reads stays opaque."""
    result: Attribute | None = Attribute.known.get(text)
    return Attribute.keep(text, _parse(text)) if result is None else result


def _parse(text: str) -> Attribute:
    first = text[0]
    if first == '"' and text[-1] == '"' and len(TOKENS.match(text).group()) == len(text):  # type: ignore[union-attr]
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
        return ArrayAttr.get(list(map(parse_attribute, split_top_level(text[1:-1]))))
    if first == "{":
        return DictAttr.get(parse_dict_body(text[1:-1]))
    if first == "(" or text.startswith(("tensor<", "!")):
        return TypeAttr.get(parse_type(text))
    if text.startswith("array<i") and not text.startswith("array<i1:"):
        kind, _, values = text[len("array<") : -1].partition(":")
        return DenseArrayAttr.get((int(v) for v in split_top_level(values)), kind.strip())
    name = text.partition("<")[0]
    parse = _PARSERS.get(name)
    return Attribute.interned(text) if parse is None else parse(text[len(name) :])


#: By the name of an attribute, the function that reads its parameters, `<...>`.
_PARSERS: dict[str, Callable[[str], Attribute]] = {
    "#mpmd.user_origin": _parse_user_origin,
    "#mpmd.topology": _parse_topology,
    "#mpmd.meshes_with_origins": _parse_meshes_with_origins,
    "#mpmd.reduction": lambda body: ReductionAttr.get(body[1:-1].strip()),
    "#sdy.mesh": _parse_mesh_body,
    "#sdy.sharding": parse_sharding_body,
    "#sdy.sharding_per_value": _parse_shardings,
}
