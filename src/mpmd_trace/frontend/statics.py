"""Leaves that are no arrays: apart from the arrays of their tree, or as a part of its structure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax


class _ArrayPlace:
    def __repr__(self) -> str:
        return "<array>"


#: Marks, among static leaves, the place of an array.
ARRAY = _ArrayPlace()


@dataclass(frozen=True, slots=True)
class Statics:
    """The leaves of a pytree that are not arrays: equal and hashable by value."""

    treedef: Any
    leaves: tuple[Any, ...]


def divided(tree: Any, is_array: Callable[[Any], bool]) -> tuple[list[Any], Statics]:
    """Return the arrays of `tree`, in order, and the rest."""
    leaves, treedef = jax.tree.flatten(tree)
    rest = tuple(ARRAY if is_array(leaf) else leaf for leaf in leaves)
    return [leaf for leaf in leaves if is_array(leaf)], Statics(treedef, rest)


def join(arrays: Iterable[Any], statics: Statics) -> Any:
    """Return the pytree that was taken apart, with `arrays` in place of its arrays."""
    fill = iter(arrays)
    return jax.tree.unflatten(statics.treedef, [next(fill) if leaf is ARRAY else leaf for leaf in statics.leaves])


@jax.tree_util.register_pytree_node_class
class StaticLeaf:
    """A leaf that is no array, as a part of the structure of its tree: compared by type and value.

    `1`, `1.0` and `True` are equal in Python and make different programs; so do `0.0` and `-0.0`.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], StaticLeaf]:
        return (), self

    @classmethod
    def tree_unflatten(cls, leaf: StaticLeaf, _: tuple[()]) -> StaticLeaf:
        return leaf

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticLeaf):
            return NotImplemented
        if type(self.value) is not type(other.value):
            return False
        if isinstance(self.value, float | complex):
            return repr(self.value) == repr(other.value)
        return bool(self.value == other.value)

    def __hash__(self) -> int:
        # The type of a NaN counts, not the object.
        value = repr(self.value) if isinstance(self.value, float | complex) else self.value
        return hash((type(self.value), value))

    def __repr__(self) -> str:
        return repr(self.value)


def without_statics(tree: Any) -> Any:
    """Return `tree` with each `StaticLeaf` replaced by what it holds."""
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, StaticLeaf) else leaf,
        tree,
        is_leaf=lambda x: isinstance(x, StaticLeaf),
    )


def is_hashable(value: object) -> bool:
    """Return whether `value` has a hash (a tuple of a list says that it is hashable, and is not)."""
    try:
        hash(value)
    except TypeError:
        return False
    return True
