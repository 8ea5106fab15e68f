"""Actions: what a mesh does for one stage and one microbatch.

The letters are those of torch's pipelining package: F forward, I input-gradient half of the
backward, W weight-gradient half, B the whole backward, O optimizer step. The text of an action is
stage, letter, microbatch: `2F0`. Two actions that run as one overlapped block are written
`(0F7;7B3)OVERLAP_F_B`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from mpmd_trace.schedules._errors import Problem, ScheduleError

Kind: TypeAlias = Literal["F", "I", "W", "B", "O"]

KINDS: tuple[Kind, ...] = ("F", "I", "W", "B", "O")

KIND_NAMES: dict[Kind, str] = {
    "F": "forward",
    "I": "input-gradient",
    "W": "weight-gradient",
    "B": "full backward",
    "O": "optimizer",
}

#: The colors of pictures.
COLORS: dict[Kind, str] = {"F": "#5b8fc7", "I": "#e8a04c", "W": "#8fbf78", "B": "#d9775f", "O": "#9a8fb8"}

NO_MICROBATCH = -1
"""The microbatch of an optimizer action, which belongs to all of them."""


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One stage does one kind of work for one microbatch."""

    stage: int
    kind: Kind
    microbatch: int = NO_MICROBATCH

    @property
    def parts(self) -> tuple[Action, ...]:
        """The plain actions inside: here the action itself."""
        return (self,)

    @property
    def stage_id(self) -> int:
        """The stage, under its name in the reference's fragment predicates."""
        return self.stage

    @property
    def call_counter(self) -> int:
        """The microbatch, under its name in the reference's fragment predicates."""
        return self.microbatch

    @property
    def transpose_count(self) -> int:
        """0 for a forward, 1 for anything backward, as in the reference's fragment predicates."""
        return 0 if self.kind == "F" else 1

    @property
    def is_weight_gradient(self) -> bool:
        """True if this is a weight gradient, as in the reference's fragment predicates."""
        return self.kind == "W"

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch if self.microbatch >= 0 else ''}"


@dataclass(frozen=True, slots=True)
class Fused:
    """Several actions of one mesh that run as one block.

    The block starts when the inputs of all parts are there, and all outputs appear at its end.
    """

    parts: tuple[Action, ...]

    def __str__(self) -> str:
        kinds = "_".join(part.kind for part in self.parts)
        return f"({';'.join(map(str, self.parts))})OVERLAP_{kinds}"


Step: TypeAlias = Action | Fused
"""An entry of a mesh's list."""

_PLAIN = re.compile(r"(\d{1,9})([A-Z_]+)(\d{0,9})", re.ASCII)
_FUSED = re.compile(r"\(([^()]*)\)OVERLAP_([A-Z_]+)")


def forward(stage: int, microbatch: int) -> Action:
    """Return the forward pass of a stage."""
    return Action(stage, "F", microbatch)


def backward(stage: int, microbatch: int) -> Action:
    """Return the full backward pass of a stage."""
    return Action(stage, "B", microbatch)


def input_grad(stage: int, microbatch: int) -> Action:
    """Return the input-gradient half of the backward pass."""
    return Action(stage, "I", microbatch)


def weight_grad(stage: int, microbatch: int) -> Action:
    """Return the weight-gradient half of the backward pass."""
    return Action(stage, "W", microbatch)


def fused(*parts: Action) -> Fused:
    """Return a block in which the parts overlap."""
    return Fused(parts)


def parse_action(text: str) -> Step:
    """Return the action written as `text`; `ScheduleError` says what is wrong with other text."""
    text = text.strip()
    overlap = _FUSED.fullmatch(text)
    if overlap is not None:
        parts = tuple(_plain(part, text) for part in overlap.group(1).split(";"))
        named = tuple(overlap.group(2).split("_"))
        if named != tuple(part.kind for part in parts):
            raise _bad(text, "the kinds after OVERLAP_ are not those of the parts, in order")
        return Fused(parts)
    return _plain(text, text)


def _plain(text: str, whole: str) -> Action:
    match = _PLAIN.fullmatch(text.strip())
    if match is None:
        raise _bad(whole, f"'{text}' is not stage, letter, microbatch")
    kind = match.group(2)
    if kind not in KINDS:
        raise _bad(whole, f"the letter '{kind}' is not one of {', '.join(KINDS)}")
    if (kind == "O") != (match.group(3) == ""):
        raise _bad(whole, "an optimizer action has no microbatch, any other action has one")
    microbatch = int(match.group(3)) if match.group(3) else NO_MICROBATCH
    return Action(int(match.group(1)), cast(Kind, kind), microbatch)


def _bad(text: str, why: str) -> ScheduleError:
    hint = "write actions as 2F0, 1I3, 0W3, 2B1, 2O or (0F7;7B3)OVERLAP_F_B"
    problem = Problem("text", f"cannot read action '{text}': {why}", hint=hint)
    return ScheduleError(str(problem), [problem])
