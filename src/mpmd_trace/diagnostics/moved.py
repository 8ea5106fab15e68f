"""Names that are elsewhere now: they work where they were, for one release."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved(old: str, new: str, names: Mapping[str, str] | None = None, stacklevel: int = 2) -> Callable[[str], Any]:
    """Return the `__getattr__` of the module `old`, which finds names in the module `new`, with a warning.

    `names`: those that it finds, and what they are called now; by default all, under the same names.
    """

    def getattr_(name: str) -> Any:
        now = name if names is None else names.get(name)
        if now is None or name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}", name=name)
        result = getattr(importlib.import_module(new), now)
        # An import of names from a module asks first whether it has them.
        if sys._getframe(stacklevel - 1).f_globals.get("__name__") != "importlib._bootstrap":
            warnings.warn(f"{old}.{name} is {new}.{now}", DeprecationWarning, stacklevel=stacklevel)
        return result

    return getattr_
