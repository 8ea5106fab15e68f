"""What the library knows of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from mpmd_trace.schedules._schedule import Schedule


@dataclass(frozen=True)
class Entry:
    """A schedule of the library.

    `options` are the keyword arguments beside meshes and microbatches: `chunks`, `group_size`,
    `costs`, `memory_limit`, `weight_fraction`. `chunks` is the number of chunks per mesh it has
    when it cannot choose.
    """

    name: str
    summary: str
    source: str
    function: str
    aliases: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    placement: str = "one stage per mesh"
    needs: str = ""
    forward_only: bool = False

    def generator(self) -> Callable[..., Schedule]:
        """The function that makes the schedule; its module is imported now, not before."""
        module, function = self.function.split(":")
        made = getattr(import_module(f"mpmd_trace.schedules.{module}"), function)
        return partial(made, **dict(self.fixed)) if self.fixed else made

    @property
    def flow(self) -> str:
        """How several stages a mesh follow each other: "loop", "v" (back again), or "no" where there are none."""
        return "loop" if "chunks" in self.options else "v" if self.placement.endswith("in a V") else "no"
