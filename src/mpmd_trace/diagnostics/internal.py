"""Errors that are bugs of this package: they say so, and what to send."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mpmd_trace.diagnostics.source_files import is_ours, is_users

P = ParamSpec("P")
T = TypeVar("T")


class FrozenBodyError(RuntimeError):
    """Something tried to change a body that ops share."""


#: What is a bug of whoever raises it.  Other errors, such as JAX's own or those of the system, tell their causes.
_BUGS = (
    AssertionError,
    AttributeError,
    FrozenBodyError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
    ZeroDivisionError,
)
#: What Python says of a call with other arguments than a function takes, which may be one of the user's.
_CALL = re.compile(r"missing \d+ required|takes .* argument|got an unexpected keyword|got multiple values|not callable")


class InternalError(Exception):
    """A bug of mpmd_trace, not of the program.  The error that it comes from is its `__cause__`."""


def internal_error(error: BaseException) -> InternalError | None:
    """Return what to raise in place of an error that is a bug of this package, None for any other."""
    if _place(error) is None:
        return None
    return InternalError(
        f"{in_words(error)}\n"
        "This is a bug in mpmd_trace, not in your program. Please report it with\n"
        "  - the traceback above, of all processes where there are several\n"
        f"  - the versions: {_versions()}\n"
        "  - the program: a file that shows it, or what mpmd-trace show FILE --stage ir prints "
        "(in Python: print(mpmd_trace.compiler.trace(fn, *args).mlir_text()))"
    )


def in_words(error: BaseException) -> str:
    """Return the type of an error and the first line of its text; of a bug of this package also its place."""
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, InternalError):
        return text
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = _place(error)
    if place is None:
        return words
    folder, name = os.path.split(place.filename)
    return f"internal error: {words} ({os.path.basename(folder)}/{name}:{place.lineno}, in {place.name})"


def _place(error: BaseException) -> traceback.FrameSummary | None:
    """Return where our code raised an error that is a bug, or called JAX, in which an assertion failed; else None."""
    if not isinstance(error, _BUGS):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    while len(frames) > 1 and isinstance(error, AssertionError | RecursionError) and _is_jax(frames[-1].filename):
        frames.pop()
    while len(frames) > 1 and isinstance(error, FrozenBodyError) and is_ours(frames[-1].filename, "ir"):
        frames.pop()  # which is notified of the change; its caller may be a user
    if not frames or not is_ours(frames[-1].filename) or frames[-1].filename == __file__:
        return None
    is_filtered = any("JAX has removed its internal frames" in note for note in getattr(error, "__notes__", ()))
    if is_filtered and isinstance(error, ValueError | TypeError | NotImplementedError) and not _raises(frames[-1]):
        return None  # the frames below ours, which raised it
    if isinstance(error, TypeError) and _CALL.search(str(error)):
        return None
    if isinstance(error, TypeError | AttributeError) and _raises(frames[-1]):
        return None  # of a wrong argument, or a name that there is not
    return frames[-1]


def _raises(frame: traceback.FrameSummary) -> bool:
    return (frame.line or "").startswith("raise ")


def explains_internal_errors(fn: Callable[P, T]) -> Callable[P, T]:
    """Return a function that users call, whose bugs are `InternalError`s."""

    @functools.wraps(fn)
    def explained(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            result = internal_error(error)
            if result is None:
                _hide_in_notebooks(error)
                raise
            raise result from error

    return explained


def _hide_in_notebooks(error: BaseException) -> None:
    """Mark the frames of this package and of JAX as those that IPython leaves out of a traceback, as JAX does."""
    if "IPython" not in sys.modules:
        return
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_ours(file) or _is_jax(file) or file == contextlib.__file__:  # a decorator of both
            frame.f_locals["__tracebackhide__"] = True


def _is_jax(file: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in file and not is_users(file) for name in ("jax", "jaxlib"))


def _versions() -> str:
    result = []
    for name in ("mpmd_trace", "jax", "jaxlib"):
        try:
            result.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            result.append(f"{name} (not installed as a package)")
    return ", ".join([*result, f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"])
