"""Counting errors up to a limit."""

from __future__ import annotations

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics


class ErrorCounter:
    """Reports and counts errors; passes stop, or fail, at `limit` of them (-1: no limit)."""

    def __init__(self, limit: int, pass_name: str, diagnostics: Diagnostics) -> None:
        if limit != -1 and limit <= 0:
            raise diagnostics.fatal(
                None, f"{pass_name}: error-limit is a positive number, or -1 for no limit, not {limit}"
            )
        self.limit = limit
        self.count = 0
        self.emitted = 0
        self.diagnostics = diagnostics

    @property
    def full(self) -> bool:
        """True if the count is exactly at the limit, where the checks stop (they do not above it)."""
        return self.count == self.limit

    @property
    def too_many(self) -> bool:
        """True if the limit is reached or exceeded."""
        return self.limit != -1 and self.count >= self.limit

    def report(self, where: Op | Value, message: str) -> None:
        self.count += 1
        self.emitted += 1
        self.diagnostics.error(where, message)

    def suppress(self) -> None:
        """Count an error that follows from one that was reported."""
        self.count += 1
