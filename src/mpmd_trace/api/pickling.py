"""Pickling the structure of arguments and results: pytrees whose static leaves may be functions of a library."""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import jax

from mpmd_trace.diagnostics.messages import MpmdError


class _Pickler(pickle.Pickler):
    """Functions by name, also those that a decorator of their module has wrapped (`jax.nn.relu`)."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, jax.tree_util.PyTreeDef):
            # By a value: nodes may have sentinels in their structure that a pickle would copy.
            return jax.tree.structure, (jax.tree.unflatten(obj, range(obj.num_leaves)),)
        module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
        if isinstance(obj, type) or not callable(obj) or not isinstance(module, str) or not isinstance(name, str):
            return NotImplemented
        for depth, layer in enumerate(_layers(module, name)):
            if layer is obj:
                return (_layer, (module, name, depth)) if depth else name
        return NotImplemented


def _layers(module: str, name: str) -> Iterator[Any]:
    """Yield what a module has under a name, and what that wraps, outermost first."""
    try:
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError):
        return
    while target is not None:
        yield target
        target = getattr(target, "__wrapped__", None)


def _layer(module: str, name: str, depth: int) -> Any:
    return list(_layers(module, name))[depth]


def dumps(value: Any) -> bytes:
    """`value` as bytes.  Raises `MpmdError` for what cannot be found again by its name."""
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise MpmdError(
            f"the structure of arguments or results cannot be written to a file: {error}. Static parts of them must "
            "be plain values, or functions and classes that a module has under their names (no lambdas)"
        ) from None
    return file.getvalue()


loads: Callable[[bytes], Any] = pickle.loads
