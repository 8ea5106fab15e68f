"""Errors of `equinox.error_if`: raised as `equinox.filter_jit` raises them, and not as those of a callback."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from mpmd_trace.config import Config
from mpmd_trace.diagnostics.source_files import is_users
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.frontend.traced import Traced
from mpmd_trace.jax_compat.tracing import CALLBACK_LOGGER, callback_of, opened, subjaxprs

_MODULE = "equinox._errors"


#: For each check the function that it calls, and the name of the computation that it is in.
Checks = Sequence[tuple[Any, str | None]]


def checks_of(traced: Traced) -> Checks:
    """Return the checks of Equinox in a program, which tell Python of an error while it runs."""
    if _MODULE not in sys.modules or traced.jaxpr is None:  # one from a file has no callbacks
        return ()
    result: list[tuple[Any, str | None]] = []
    visited: set[tuple[int, str | None]] = set()
    pending: list[tuple[Any, str | None]] = [(traced.jaxpr, None)]
    while pending:
        closed, name = pending.pop()
        if (id(closed), name) in visited:
            continue
        visited.add((id(closed), name))
        for eqn in opened(closed).eqns:
            callback = callback_of(eqn)
            if getattr(callback, "__module__", None) == _MODULE:
                result.append((callback, name))
            tag = tag_of(eqn)
            inside = tag.name if tag is not None and tag.kind == "named_computation" and name is None else name
            pending += [(inner, inside) for inner in subjaxprs(eqn)]
    return result


class _Quiet(logging.Filter):
    """Keeps JAX from logging what becomes an error."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and "_EquinoxRuntimeError" in type(record.exc_info[1]).__name__)


@contextlib.contextmanager
def errors_of_equinox(checks: Checks, config: Config) -> Iterator[None]:
    """While a program with such checks runs and is waited for."""
    logger = logging.getLogger(CALLBACK_LOGGER)
    quiet = _Quiet()
    logger.addFilter(quiet)
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raised = _raised(error, checks, config)
        if raised is None:
            raise
        raise raised from None  # XLA's is long and says nothing
    finally:
        logger.removeFilter(quiet)


def _raised(error: Exception, checks: Checks, config: Config) -> Exception | None:
    """Return the error of Equinox that `error` of XLA is due to, if it is."""
    module: Any = sys.modules["equinox._jit"]
    told = getattr(module, "last_error_info", None)
    if told is None or "_EquinoxRuntimeError: " not in str(error):
        return None
    message, pieces = told
    # Layers that are alike are traced once, and share the check.
    names = sorted({name for callback, name in checks if name is not None and _knows(callback, pieces)})
    where = f" (in {' or '.join(f'{n!r} on mesh {config.place(n)[0]!r}' for n in names)})" if names else ""
    frames = [piece for piece in pieces if isinstance(piece, str) and _is_users(piece)]
    result: Exception = module.EquinoxRuntimeError(
        f"{message}{where}\n\nThe stack inside of the step:\n{''.join(reversed(frames))}\nTo stop there in a debugger, "
        "set the environment variable EQX_ON_ERROR=breakpoint."
    )
    return result


def _knows(callback: Any, pieces: Any) -> bool:
    """Return whether this callback reported the error with this stack."""
    return any(cell.cell_contents is pieces for cell in callback.__closure__ or ())


def _is_users(frame: str) -> bool:
    match = re.search(r'File "([^"]*)"', frame)
    return match is None or is_users(match[1])
