"""Equal types and equal attributes are one object, found by its text and kept for as long as someone uses it."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar
from weakref import WeakValueDictionary


class Interned:
    """A type or an attribute.  `text` is its canonical spelling; equality is identity."""

    __slots__ = ("__weakref__", "text")

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text}>"


T = TypeVar("T", bound=Interned)


class Interner(Generic[T]):
    """The objects of one kind that are in use, by text.

    An object is made without a lock and becomes known under it, so that threads which make the same one at once
    end up with one; finding what is known takes no lock.  Nothing is kept alive.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, T] = WeakValueDictionary()
        self._lock = threading.RLock()  # a collection inside of `keep` may run code that comes here again
        #: The object with this text, or None.
        self.find = self._known.get

    def keep(self, text: str, made: T) -> T:
        """Return the one object with this text: `made`, unless there is one by now."""
        with self._lock:
            return self._known.setdefault(text, made)
