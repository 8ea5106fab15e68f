"""Choosing a schedule for a program: costs, transfers, rules of users, the bridge from schedules to passes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpmd_trace.scheduling.auto_schedule import AutoSchedule
    from mpmd_trace.scheduling.transfers import Link, Links

__all__ = ["AutoSchedule", "Link", "Links"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        importlib.import_module(f"{__name__}.{'auto_schedule' if name == 'AutoSchedule' else 'transfers'}"), name
    )
