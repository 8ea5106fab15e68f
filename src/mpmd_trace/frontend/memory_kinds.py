"""Moves between the memories of a mesh: `jax.device_put` in a program, and results that belong to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Sharding

from mpmd_trace.frontend.arg_shardings import Spec
from mpmd_trace.jax_compat.tracing import Closed, Equation, is_literal, opened

HOST = "pinned_host"
_SPACES = {"device": jax.memory.Space.Device, HOST: jax.memory.Space.Host}


def names_devices(eqn: Equation) -> bool:
    """Return whether `eqn` is a `device_put` to certain devices, and not only to a memory."""
    if eqn.primitive.name != "device_put":
        return False
    return any(isinstance(target, Sharding | jax.Device) for target in eqn.params["devices"])


def put(x: Any, target: Any) -> Any:
    """Return `x` in the memory of the `target` of a `device_put`: where it runs, the assignment of names says."""
    if isinstance(target, jax.Device):
        return x
    space = _SPACES.get(target.memory_kind) if isinstance(target, Sharding) else target
    return x if space is None else jax.device_put(x, space)


def divide_results(
    closed: Closed, specs: Sequence[Spec | None], platform: str
) -> tuple[tuple[Spec | None, ...], tuple[str | None, ...]]:
    """Return the specs of the results of `closed`, and for each the memory to which it must be moved in the end.

    A spec keeps the memory of what the program itself puts there (on a CPU, JAX leaves it where it is).
    """
    kept: list[Spec | None] = []
    moved: list[str | None] = []
    for atom, spec in zip(opened(closed).outvars, specs, strict=True):
        wanted = None if spec is None else spec.memory
        on_host = not is_literal(atom) and atom.aval.memory_space == jax.memory.Space.Host
        there = on_host and platform != "cpu"
        kind = HOST if wanted is None and on_host else wanted
        kept.append(spec if kind is None else (spec or Spec())._replace(memory=kind if there else None))
        moved.append(None if there else kind)
    return tuple(kept), tuple(moved)


def returned_arguments(closed: Closed) -> dict[int, int]:
    """Return the results that are arguments as they came, each with the number of the argument."""
    parts = opened(closed)
    numbers = {var: i for i, var in enumerate(parts.invars)}
    return {i: numbers[v] for i, v in enumerate(parts.outvars) if not is_literal(v) and v in numbers}
