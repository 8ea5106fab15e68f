"""What a recipe is: a training or inference step as people write it, and its plan as a person would draw it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Move:
    """A value that a person would send, with the reason."""

    what: str
    source: str
    target: str
    #: Bytes of one transfer, and how many of them there are in a step.
    bytes: int
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A step of one argument list, and the drawing of its plan."""

    name: str
    step: Callable[..., Any]
    args: tuple[Any, ...]
    #: The meshes in order of the data flow, one device each.
    meshes: tuple[str, ...]
    #: The mesh of each named computation.
    names: Mapping[str, str]
    #: The home of the arguments, by prefixes of their paths (`jax.tree_util.keystr` of the argument list); the longest
    #: counts.  "" stands for "anywhere": small, or needed on several meshes.
    homes: Mapping[str, str]
    moves: Sequence[Move]
    #: What a mesh holds at its peak besides the arguments at home: (what, bytes).
    held: Mapping[str, Sequence[tuple[str, int]]]
    #: Why the drawing is as it is.
    reason: str = ""
    schedule: str | None = "1F1B"
    donate: tuple[int, ...] = ()
    #: Whether the numbers of the two programs must be equal to rounding (else only finite).
    rtol: float = 2e-4

    @property
    def bytes(self) -> int:
        """What the drawing moves in a step."""
        return sum(m.bytes * m.times for m in self.moves)

    def peak(self) -> int:
        """The largest peak of the drawing over the meshes."""
        peaks = dict.fromkeys(self.meshes, 0)
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.args):
            home = self.home(jax.tree_util.keystr(path))
            if home:
                peaks[home] += size(leaf)
        for mesh, parts in self.held.items():
            peaks[mesh] += sum(n for _, n in parts)
        return max(peaks.values())

    def home(self, path: str) -> str:
        """The mesh of the argument at `path`, "" when it may be anywhere."""
        found = max((p for p in self.homes if path.startswith(p)), key=len, default=None)
        if found is None:
            raise ValueError(f"recipe {self.name}: the drawing has no home for {path}")
        return self.homes[found]


def size(tree: Any) -> int:
    """The bytes of a pytree of arrays or shapes."""
    return sum(int(jnp.size(x)) * jnp.result_type(x).itemsize for x in jax.tree.leaves(tree))


def saved(fn: Callable[..., Any], parameters: Any, *inputs: Any) -> int:
    """The bytes that the backward of `fn(parameters, *inputs)` needs from its forward, parameters left out."""
    kept = jax.eval_shape(lambda p, xs: jax.vjp(fn, p, *xs)[1], parameters, inputs)
    left = [(x.shape, x.dtype) for x in jax.tree.leaves(parameters)]
    total = 0
    for x in jax.tree.leaves(kept):
        if (x.shape, x.dtype) in left:
            left.remove((x.shape, x.dtype))
        else:
            total += size(x)
    return total


def in_flight(schedule: str | None, meshes: int, microbatches: int, mesh: int) -> int:
    """How many microbatches' activations a mesh holds at once."""
    return microbatches if schedule in (None, "GPipe") else min(meshes - mesh, microbatches)
