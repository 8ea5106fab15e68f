"""Moves between the memories of a mesh: `jax.device_put` in a program, and results that belong to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Sharding

from mpmd_trace.jax_compat.tracing import Closed, Equation, is_literal, opened

#: The text of the sharding of an argument or result, and its memory.
Spec = tuple[str | None, str | None] | None

_HOST = "pinned_host"
_SPACES = {"device": jax.memory.Space.Device, _HOST: jax.memory.Space.Host}


def names_devices(eqn: Equation) -> bool:
    """Whether `eqn` is a `device_put` to certain devices, and not only to a memory."""
    if eqn.primitive.name != "device_put":
        return False
    return any(isinstance(target, Sharding | jax.Device) for target in eqn.params["devices"])


def put(x: Any, target: Any) -> Any:
    """`x` in the memory of the `target` of a `device_put`: where it runs, the assignment of names says."""
    if isinstance(target, jax.Device):
        return x
    space = _SPACES.get(target.memory_kind) if isinstance(target, Sharding) else target
    return x if space is None else jax.device_put(x, space)


def divide_results(
    closed: Closed, specs: Sequence[Spec], inputs: Sequence[Spec], platform: str
) -> tuple[tuple[Spec, ...], tuple[str | None, ...]]:
    """The specs of the results of `closed`, and for each the memory to which it must be moved in the end.

    A spec keeps the memory of what is there already: arguments that are returned, and what the program itself
    puts there (on a CPU, JAX leaves it where it is).
    """
    parts = opened(closed)
    given = dict(zip(parts.invars, inputs, strict=True))
    kept: list[Spec] = []
    moved: list[str | None] = []
    for atom, spec in zip(parts.outvars, specs, strict=True):
        text, wanted = spec or (None, None)
        on_host = not is_literal(atom) and atom.aval.memory_space == jax.memory.Space.Host
        source = None if is_literal(atom) else given.get(atom)
        there = (source is not None and source[1] == _HOST) or (on_host and platform != "cpu")
        kind = _HOST if wanted is None and (on_host or there) else wanted
        kept.append(spec if kind is None else (text, kind if there else None))
        moved.append(kind if kind == _HOST and not there else None)
    return tuple(kept), tuple(moved)
