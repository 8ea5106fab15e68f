"""Annotations that show in a profile of `jax.profiler`."""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax
from jax._src.lib import _profiler


def is_profiling() -> bool:
    """Return whether a profile is being taken, by whomever."""
    return bool(_profiler.TraceMe.is_enabled())


def annotation(name: str, **details: object) -> AbstractContextManager[object]:
    """Show what is done inside of it by this thread, when a profile is taken."""
    result: AbstractContextManager[object] = jax.profiler.TraceAnnotation(name, **details)
    return result


def step_annotation(name: str, number: int) -> AbstractContextManager[object]:
    """Show a step, when a profile is taken."""
    result: AbstractContextManager[object] = jax.profiler.StepTraceAnnotation(name, step_num=number)
    return result
