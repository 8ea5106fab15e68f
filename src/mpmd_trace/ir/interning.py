"""Equal types and equal attributes are one object, found by its text and kept for as long as someone uses it."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

_LOCK = threading.RLock()  # a collection inside of `keep` may run code that comes here again


class Interned:
    """A type or an attribute.  `text` is its canonical spelling; equality is identity.

    An object is made without a lock and becomes known under it, so that threads which make the same one at once
    end up with one; finding what is known takes no lock.  Nothing is kept alive.
    """

    __slots__ = ("__weakref__", "text")
    text: str
    #: The objects of one kind (types, or attributes) that are in use, by text.
    known: ClassVar[WeakValueDictionary[str, Any]]

    @classmethod
    def interned(cls, text: str, **fields: Any) -> Self:
        """Return the object with this text, made with these fields if need be."""
        result: Self | None = cls.known.get(text)
        if result is None:
            made = cls()
            made.text = text
            for name, value in fields.items():
                setattr(made, name, value)
            result = cls.keep(text, made)
        return result

    @classmethod
    def keep(cls, text: str, made: Self) -> Self:
        """Return the one object with this text: `made`, unless there is one by now."""
        with _LOCK:
            result: Self = cls.known.setdefault(text, made)
            return result

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text}>"
