"""Errors and warnings about a user's program or configuration."""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError, MpmdWarning, Note
from mpmd_trace.diagnostics.source_files import is_users


class FrontendError(MpmdError):
    """A program, argument or configuration that cannot be used; lists every problem found."""


def problem(message: str, where: str | None = None) -> Diagnostic:
    """Return an error at `where` (`file:line`)."""
    location = UNKNOWN
    if where is not None:
        file, _, line = where.rpartition(":")
        location = _location(file, int(line), 0)
    return Diagnostic("error", message, location)


def _location(file: str, line: int, column: int) -> Location:
    escaped = file.replace("\\", "\\\\").replace('"', '\\"')
    return Location(f'"{escaped}":{line}:{column}')


#: A text is an error without a place.
Problem: TypeAlias = Diagnostic | str


def raise_problems(problems: Iterable[Problem], where: str | None = None) -> None:
    """Raise one `FrontendError` for all `problems`, in order and without repetitions.

    Those without a place get the place `where` (`file:line`).
    """
    place = problem("", where).location
    diagnostics = [problem(p) if isinstance(p, str) else p for p in problems]
    diagnostics = [dataclasses.replace(p, location=place) if p.location is UNKNOWN else p for p in diagnostics]
    if diagnostics:
        raise FrontendError(list(dict.fromkeys(diagnostics)))


def at_users_place(error: MpmdError, where: str | None = None) -> MpmdError:
    """Return the error with places in the user's files: the line that called the library where an op was made.

    What has no place gets the place `where` (`file:line`).
    """
    return MpmdError([_at_users_place(d, where) for d in error.diagnostics], pass_name=error.pass_name)


def _at_users_place(diagnostic: Diagnostic, where: str | None) -> Diagnostic:
    files = list(diagnostic.location.files)
    if not files:
        unknown = diagnostic.location is UNKNOWN and where is not None
        return dataclasses.replace(diagnostic, location=problem("", where).location) if unknown else diagnostic
    place = users_place(diagnostic.location)
    if place is diagnostic.location:
        return diagnostic
    inner = Note("this is where it is in the library", _location(*files[0]))
    return dataclasses.replace(diagnostic, location=place, notes=(*diagnostic.notes, inner))


def users_place(location: Location) -> Location:
    """Return the innermost place of a location that is in the user's files; the location itself if that is all."""
    files = list(location.files)
    own = next((place for place in files if is_users(place[0])), None)
    return location if own is None or own == files[0] else _location(*own)


def mistake(message: str) -> FrontendError:
    """Return the error for a call of this library that cannot be right, at the line of the user's code with it."""
    return FrontendError([problem(message, callers_place())])


#: Lists that take what is warned of, innermost last; None in `without_warnings`.
_RECORDS: ContextVar[tuple[list[tuple[str, str | None]], ...] | None] = ContextVar("mpmd_trace_warnings", default=())


@contextmanager
def recorded_warnings(taken: list[tuple[str, str | None]]) -> Iterator[None]:
    """Add what is warned of inside to `taken`, for a time when it is not found out again: text and place."""
    token = _RECORDS.set((*(_RECORDS.get() or ()), taken))
    try:
        yield
    finally:
        _RECORDS.reset(token)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress warnings, for what is made again: they were given the first time."""
    token = _RECORDS.set(None)
    try:
        yield
    finally:
        _RECORDS.reset(token)


def warn(message: str, where: str | None = None) -> None:
    """Warn at `where` (`file:line`), by default the line of the user's code that called the library."""
    records = _RECORDS.get()
    if records is None:
        return
    for taken in records:
        taken.append((message, where))
    file, _, line = (where or callers_place() or "mpmd_trace:0").rpartition(":")
    warnings.warn_explicit(message, MpmdWarning, file, int(line))


def callers_place() -> str | None:
    """Return `file:line` of the innermost frame of the user's code."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def place_of(fn: Callable[..., Any]) -> str | None:
    """Return `file:line` of the definition of `fn`, None for what is not written in Python."""
    while hasattr(fn, "__wrapped__") or isinstance(fn, functools.partial):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None
