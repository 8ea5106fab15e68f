"""Frozen things refuse every change: bodies are shared, and a change to one would change other fragments, too.

Freezing swaps the class of a node for one with a guard and its containers for ones without mutators, so that
nodes that may change pay nothing.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from mpmd_trace.diagnostics.internal import FrozenBodyError

__all__ = ["NO_ATTRIBUTES", "NO_ENTRIES", "Frozen", "FrozenBodyError", "FrozenDict", "FrozenList", "refuse"]

T = TypeVar("T")


def refuse(what: str) -> NoReturn:
    """Raise `FrozenBodyError`, which says how to derive another body."""
    raise FrozenBodyError(
        f"{what} cannot change: this is part of a frozen body, which other fragments may share and which remembers "
        f"what was derived from it. Make another body and give it to the op: "
        f"`op.body = map_ops(op.body, key, change)`, where `change` gets a copy that it may change; or use "
        f"`dce` or `BodyBuilder`, all in mpmd_trace.ir.bodies"
    )


class Frozen:
    """Mixed into the class of a node, in front: no attribute of it can be set."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        refuse(f"'{name.lstrip('_')}' of {self!r}")

    def __delattr__(self, name: str) -> None:
        refuse(f"'{name.lstrip('_')}' of {self!r}")


def _refused(self: object, *args: object, **kwargs: object) -> NoReturn:
    refuse("the attributes of an op" if isinstance(self, dict) else "this list")


class FrozenDict(dict[str, T]):
    """The attributes of a frozen op; `copy` gives a dictionary that can change."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refused  # type: ignore[assignment]


class FrozenList(list[T]):
    """A list of a frozen node: arguments, blocks, results; `copy` gives one that can change."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refused  # type: ignore[assignment]
    append = clear = extend = insert = pop = remove = reverse = sort = _refused  # type: ignore[assignment]


#: For the many ops that have none.
NO_ATTRIBUTES: FrozenDict[Any] = FrozenDict()
NO_ENTRIES: FrozenList[Any] = FrozenList()
