"""Shardings of the sdy dialect: axes, the sharding of a tensor, the shardings of several values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from mpmd_trace.diagnostics.mlir_text import quote, split_top_level, unquote
from mpmd_trace.ir.attribute_base import Attribute, SymbolRefAttr


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
        """Return the axes that shard this dimension, major first."""
        return _axes_in(self.dims[dim])

    def is_open(self, dim: int) -> bool:
        """Return whether propagation may shard this dimension further."""
        return "?" in split_top_level(_in_braces(self.dims[dim]))

    @property
    def is_fully_replicated(self) -> bool:
        """No dimension has an axis."""
        return all(not self.dim_axes(i) for i in range(len(self.dims)))

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        """Axes of the dimensions, then the replicated, then the unreduced ones."""
        of_dims = [axis for i in range(len(self.dims)) for axis in self.dim_axes(i)]
        return (*of_dims, *self.replicated, *self.unreduced)

    def with_mesh(self, name: str) -> TensorShardingAttr:
        """Return the same sharding on another mesh symbol."""
        dims = ", ".join(self.dims)
        return parse_sharding_body(f"<{SymbolRefAttr.get(name).text}, [{dims}]{self.suffix}>")


SYMBOL = re.compile(r'@([A-Za-z_][A-Za-z0-9_$.]*|"(?:[^"\\]|\\.)*")')


def _in_braces(text: str) -> str:
    return text[text.index("{") + 1 : text.rindex("}")]


@cache
def _axes_in(text: str) -> tuple[Axis, ...]:
    """Return the axes between braces; programs have few such lists, and ask for them often."""
    axes = []
    for part in split_top_level(_in_braces(text)):
        if part in ("?", ""):
            continue
        match = re.fullmatch(r'("(?:[^"\\]|\\.)*")(?::\((\d+)\)(\d+))?', part)
        if match is None:
            raise ValueError(f"not an axis: {part}")
        name, pre, size = match.groups()
        axes.append(Axis(unquote(name), int(pre) if pre else None, int(size) if size else None))
    return tuple(axes)


def parse_sharding_body(body: str) -> TensorShardingAttr:
    """Return the sharding spelled `<@mesh, [{"x"}, {}], ...>` (without the `#sdy.sharding` in front)."""
    body = body.strip()
    text = "#sdy.sharding" + body
    result = Attribute.known.get(text)
    if result is not None:
        assert isinstance(result, TensorShardingAttr)
        return result
    mesh, dims, *rest = split_top_level(body[1:-1])
    lists: dict[str, tuple[Axis, ...]] = {"replicated": (), "unreduced": ()}
    for part in rest:
        key, _, value = part.partition("=")
        if key.strip() in lists:
            lists[key.strip()] = _axes_in(value)
    return TensorShardingAttr.interned(
        text,
        mesh=mesh,
        dims=tuple(split_top_level(dims[1:-1])),
        suffix="".join(", " + part for part in rest),
        stripped=body,
        **lists,
    )


class TensorShardingPerValueAttr(Attribute):
    """`#sdy.sharding_per_value<[<@mesh, [..]>, ...]>`: one sharding per operand or result."""

    __slots__ = ("shardings",)
    shardings: tuple[TensorShardingAttr, ...]

    @staticmethod
    def get(shardings: Iterable[TensorShardingAttr]) -> TensorShardingPerValueAttr:
        shardings = tuple(shardings)
        text = f"#sdy.sharding_per_value<[{', '.join(s.stripped for s in shardings)}]>"
        return TensorShardingPerValueAttr.interned(text, shardings=shardings)
