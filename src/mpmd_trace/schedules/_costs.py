"""Costs of actions and transfers. Any unit of time will do, as long as it is one unit."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mpmd_trace.schedules._actions import Action, Step
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._schedule import Schedule

PerStage: TypeAlias = float | tuple[float, ...]
"""A number for a whole mesh (all its chunks together), or one number for each stage."""

PerLink: TypeAlias = float | Mapping[tuple[int, int], float]
"""A number for every pair of meshes, or one for each (source, target); absent pairs have 0."""


@dataclass(frozen=True)
class Costs:
    """Times of the actions, and of the transfers between meshes.

    A single number is the time of a *mesh* for one microbatch, with all of its chunks: if a mesh has V
    chunks, each takes 1/V of the time. (This is the convention of the papers.) A tuple has the time of
    each *stage*.

    - `forward`, `input_grad`, `weight_grad`: F, I and W;
    - `backward`: a full backward; the sum of I and W unless given;
    - `collectives`: by letter, F, I and W: what an action takes besides, in which the devices of its mesh send
      and do not compute;
    - `exposed`: likewise, the part of `collectives` that no block hides, such as those of a kind that XLA does
      not run in the background;
    - `fused`: a block of a forward and a backward; unless given, the sum of its parts, less the collectives
      that the computation of the other part hides;
    - `optimizer`: an optimizer step of a stage (of a mesh, when a single number);
    - `actions`: the time of single actions, which beats everything above;
    - `latency`: time from the end of an action to the arrival of its output on another mesh;
    - `size` and `bandwidth`: the size of a stage's output (and gradient) and the size a link
      moves per unit of time; outputs on one link queue up. Without bandwidth, size costs nothing;
    - `sends`: instead of `size`, what a stage sends to another one, by (from, to): outputs to later
      stages, gradients to earlier ones. What several stages of a mesh read counts for one of them.
    """

    forward: PerStage = 1.0
    input_grad: PerStage = 1.0
    weight_grad: PerStage = 1.0
    backward: PerStage | None = None
    fused: PerStage | None = None
    optimizer: PerStage = 0.0
    latency: PerLink = 0.0
    bandwidth: PerLink | None = None
    size: PerStage = 0.0
    sends: Mapping[tuple[int, int], float] = field(default_factory=dict)
    actions: Mapping[Action, float] = field(default_factory=dict)
    collectives: Mapping[str, PerStage] = field(default_factory=dict)
    exposed: Mapping[str, PerStage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("forward", "input_grad", "weight_grad", "backward", "fused", "optimizer", "size")
        for name in names:
            value = getattr(self, name)
            if value is not None or name not in ("backward", "fused"):
                object.__setattr__(self, name, amounts(f"cost '{name}'", value))
        for link in ("latency", "bandwidth"):
            value = getattr(self, link)
            if isinstance(value, Mapping):
                object.__setattr__(self, link, _by_pair(link, value, "meshes"))
            elif value is not None or link == "latency":
                object.__setattr__(self, link, _amount(f"cost '{link}'", value))
        object.__setattr__(self, "sends", _by_pair("sends", self.sends, "stages"))
        if not isinstance(self.actions, Mapping) or not all(isinstance(a, Action) for a in self.actions):
            raise ScheduleError("cost 'actions' maps actions, such as forward(0, 3), to times")
        times = {a: _amount(f"cost 'actions' of {a}", value) for a, value in self.actions.items()}
        object.__setattr__(self, "actions", times)
        for name in ("collectives", "exposed"):
            given = getattr(self, name)
            if not isinstance(given, Mapping) or not given.keys() <= set("FIW"):
                raise ScheduleError(f"cost '{name}' maps the letters F, I and W to times; got {given!r}")
            times_of = {kind: amounts(f"{name} of {kind}", value) for kind, value in sorted(given.items())}
            object.__setattr__(self, name, times_of)
        widths = self.bandwidth.values() if isinstance(self.bandwidth, Mapping) else (self.bandwidth,)
        if 0 in widths:
            raise ScheduleError("bandwidth is 0, so no transfer would ever end")

    def delay(self, source: int, target: int) -> float:
        """Return the latency of a link; 0 within a mesh."""
        if source == target:
            return 0.0
        if isinstance(self.latency, Mapping):
            return self.latency.get((source, target), 0.0)
        return self.latency

    def seconds_per_size(self, source: int, target: int) -> float:
        """Time to move one unit of size over a link, latency aside."""
        width = self.bandwidth.get((source, target)) if isinstance(self.bandwidth, Mapping) else self.bandwidth
        return 1.0 / width if width and source != target else 0.0


def amounts(what: str, value: Any) -> PerStage:
    """Return a number, or a tuple of one for each stage; lists and arrays will do."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(float(_amount(what, number)) for number in value)
    return _amount(what, value)


def _amount(what: str, value: Any) -> float:
    """Return a finite number, 0 or more, of Python or of numpy."""
    number = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(number, (int, float)) or not 0 <= number <= sys.float_info.max:
        shown = value if isinstance(value, (int, float)) else repr(value)
        raise ScheduleError(f"{what} is {shown}; it must be a number, 0 or more")
    return number


def _by_pair(name: str, table: Any, ends: str) -> dict[tuple[int, int], float]:
    """Return a number for each pair; a key of another form would never be looked up."""
    if not isinstance(table, Mapping):
        raise ScheduleError(f"cost '{name}' maps pairs of {ends}, as (0, 1), to numbers; got {table!r}")
    for pair in table:
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(n, int) for n in pair)):
            raise ScheduleError(f"cost '{name}' has the key {pair!r}; its keys are pairs of {ends}, as (0, 1)")
    return {pair: _amount(f"cost '{name}' of {pair}", value) for pair, value in table.items()}


def per_stage(value: PerStage, schedule: Schedule, what: str = "cost") -> list[float]:
    """Return the number of each stage: a tuple as it is, a single number divided by the mesh's chunks."""
    if isinstance(value, tuple):
        if len(value) != schedule.stages:
            raise ScheduleError(
                f"{what} lists {len(value)} stages, but schedule '{schedule.name}' has {schedule.stages}"
            )
        return [float(v) for v in value]
    chunks = schedule.chunks_of
    return [value / (chunks[m] or 1.0) for m in schedule.placement.mesh_of]


class Timer:
    """Looks up how long each step of a schedule takes."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.table: dict[str, list[float]] = {
            "F": per_stage(costs.forward, schedule, "forward"),
            "I": per_stage(costs.input_grad, schedule, "input_grad"),
            "W": per_stage(costs.weight_grad, schedule, "weight_grad"),
        }
        self.table["B"] = (
            [i + w for i, w in zip(self.table["I"], self.table["W"], strict=True)]
            if costs.backward is None
            else per_stage(costs.backward, schedule, "backward")
        )
        #: Of each stage what it computes, and the collectives that a block hides; nothing where there are none.
        self.hiding: dict[str, list[tuple[float, float]]] = {}
        if costs.collectives:
            sent = _by_kind(costs.collectives, schedule, "collectives")
            exposed = _by_kind(costs.exposed, schedule, "exposed")
            for kind, own in sent.items():
                hidden = (max(s - e, 0.0) for s, e in zip(own, exposed[kind], strict=True))
                self.hiding[kind] = list(zip(self.table[kind], hidden, strict=True))
                self.table[kind] = [c + s for c, s in zip(self.table[kind], own, strict=True)]
        if isinstance(costs.optimizer, tuple):
            self.table["O"] = per_stage(costs.optimizer, schedule, "optimizer")
        else:
            stages_on = schedule.placement.stages_on
            self.table["O"] = [costs.optimizer / len(stages_on[m]) for m in schedule.placement.mesh_of]
        self._fused = None if costs.fused is None else per_stage(costs.fused, schedule, "fused")
        self._actions = costs.actions

    def part(self, action: Action) -> float:
        """Return the time of a plain action."""
        if self._actions:
            own = self._actions.get(action)
            if own is not None:
                return own
        return self.table[action.kind][action.stage]

    def step(self, step: Step) -> float:
        """Return the time of a step; a fused block costs what its parts cost and do not hide, or what `fused` says."""
        if isinstance(step, Action):
            return self.part(step)
        if self._fused is not None:
            return self._fused[step.parts[0].stage]
        return self.work(step)

    def work(self, step: Step) -> float:
        """Return the time of the parts of a step, less what is hidden of their collectives."""
        return sum(self.part(p) for p in step.parts) - self.hidden(step)

    def hidden(self, step: Step) -> float:
        """Return how much time a block saves: its forwards and backwards hide the collectives of each other."""
        return 0.0 if isinstance(step, Action) else self.most_hidden(step.parts)

    def most_hidden(self, actions: Iterable[Action]) -> float:
        """Return how much time blocks of these actions of a mesh save at most, whichever they are made of."""
        known = [part for part in actions if part.kind in self.hiding and part not in self._actions]
        return most_hidden((part.kind == "F", *self.hiding[part.kind][part.stage]) for part in known)


def _by_kind(given: Mapping[str, PerStage], schedule: Schedule, name: str) -> dict[str, list[float]]:
    """Return the time of each stage by letter, also of whole backwards."""
    times = {kind: per_stage(given.get(kind, 0.0), schedule, f"{name} of {kind}") for kind in "FIW"}
    return times | {"B": [i + w for i, w in zip(times["I"], times["W"], strict=True)]}


def most_hidden(parts: Iterable[tuple[bool, float, float]]) -> float:
    """Return how much time blocks of these parts save: each hides collectives behind what the other kind computes.

    `parts` are given as whether each is a forward, what it computes, and those of its collectives that can be hidden.
    """
    computed, hidden = [0.0, 0.0], [0.0, 0.0]
    for is_forward, time, own in parts:
        computed[is_forward] += time
        hidden[is_forward] += own
    return min(hidden[0], computed[1]) + min(hidden[1], computed[0])
