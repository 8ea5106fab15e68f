"""Errors and warnings about schedules, for the person who wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a schedule, and the action it is about.

    `row` is the mesh and `column` the position in the mesh's list, both counted from 0; they are
    -1 where the mistake has no single place. Text names meshes by these numbers, as everywhere, and
    counts actions from 1. `code` is one of `range`, `placement`, `duplicate`,
    `missing`, `order`, `fused`, `graph`, `deadlock`, `blocking`, `memory`, `text`.
    """

    code: str
    message: str
    row: int = -1
    column: int = -1
    action: str = ""
    hint: str = ""

    def __str__(self) -> str:
        place = f", action {self.column + 1}" if self.column >= 0 else ""
        action = f" ({self.action})" if self.action else ""
        where = f"mesh {self.row}{place}{action}: " if self.row >= 0 else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{hint}"


class ScheduleError(ValueError):
    """A schedule, or a request for one, makes no sense; `problems` lists every reason."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, code: str, message: str, *, row: int = -1, hint: str = "") -> ScheduleError:
        """Return the error for one mistake, without context."""
        return cls(f"{message}; {hint}" if hint else message, [Problem(code, message, row, hint=hint)])


class ScheduleWarning(UserWarning):
    """A schedule is legal, but it is unlikely to be what its name promises."""


def counted(count: int, what: str) -> str:
    """Return `1 mesh`, `2 meshes`."""
    plural = "es" if what.endswith(("s", "sh", "ch")) else "s"
    return f"{count} {what}{'' if count == 1 else plural}"
