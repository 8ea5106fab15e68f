"""Shardings of the sdy dialect: axes, the sharding of a tensor, the shardings of several values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mpmd_trace.diagnostics.spelling import quote, split_top_level, unquote
from mpmd_trace.ir.attribute_base import Attribute, SymbolRefAttr, intern

__all__ = ["SYMBOL", "Axis", "TensorShardingAttr", "TensorShardingPerValueAttr", "parse_sharding_body"]


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

    return intern("#sdy.sharding" + body.strip(), make)


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

        return intern(
            f"#sdy.sharding_per_value<[{', '.join(s.stripped for s in shardings)}]>", make
        )
