"""Modules and optimizers on the meshes of a compiled program: moved there, or created there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from mpmd_trace.api import placing
from mpmd_trace.api.compiled import Compiled
from mpmd_trace.nnx import _objects


def place(compiled: Compiled, *args: Any) -> tuple[Any, ...]:
    """Move the leading arguments of the program to where it wants them: objects in place, arrays as results.

        place(compiled, model, optimizer)

    Raises:
        MpmdError: as `mpmd_trace.place`.
    """
    parts = _objects.split(args, None)
    placed = placing.place(compiled, *_objects.states(parts))
    for given, new in zip(args, placed, strict=True):
        if _objects.is_object(given):
            nnx.update(given, new)
    return tuple(x if _objects.is_object(x) else new for x, new in zip(args, placed, strict=True))


def create(fn: Callable[..., Any], compiled: Compiled, *args: Any, argnums: int | Sequence[int] = 0) -> Any:
    """Compute the object that `fn(*args)` returns (a tuple for several), each array created where the program wants it.

        model, optimizer = create(init, compiled, argnums=(0, 1))

    No device ever holds more than its part; see `mpmd_trace.create`.

    Raises:
        MpmdError: as `mpmd_trace.create`.
    """
    made: list[Any] = []

    def pure(*args: Any) -> Any:
        parts = _objects.split(fn(*args), None)
        made[:] = [parts]
        return _objects.states(parts)

    arrays = placing.create(pure, compiled, *args, argnums=argnums)
    parts = jax.tree.unflatten(jax.tree.structure(made[0]), jax.tree.leaves(arrays))
    return _objects.merged(parts, None, inner=False)
