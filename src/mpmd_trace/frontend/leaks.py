"""Values that leave the function that made them without being returned: in a global, an attribute, a handler.

JAX traces a named computation on its own, as it does a function under `jax.jit`, so nothing else can use what it makes
but does not return.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax

from mpmd_trace.frontend.errors import FrontendError, place_of, problem
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.jax_compat import tracing

_TYPE = re.compile(r"intermediate value with type (\S+) wrapped")
_FUNCTION = re.compile(r"function being traced when the value leaked was mpmd_trace\.(\w+)\[(.*?)\]")
_LINE = re.compile(r"was created on line (.*?):(\d+)(?::\d+)? ")
_KINDS = {"named_computation": "the named computation", "call": "the call of", "loop": "a microbatch of"}


def leak(fn: Callable[..., Any], value: jax.core.Tracer | jax.errors.UnexpectedTracerError) -> FrontendError:
    """Say that `fn` uses a value that left the function that made it: which one, where it was made, and what to do.

    Args:
        fn: the function of the user that was running, or that contains what was.
        value: the value, or the error of JAX about it.
    """
    text = str(tracing.leak_error(value) if isinstance(value, jax.core.Tracer) else value)
    kind, function, line = _TYPE.search(text), _FUNCTION.search(text), _LINE.search(text)
    what = "a value" if kind is None else f"a value of type {kind[1]}"
    made = "" if line is None else f" at {line[1]}:{line[2]}"
    if function is None or function[1] not in _KINDS:
        message = (
            f"{name_of(fn)} uses {what} that belongs to another trace{f', made{made}' if made else ''}: a tracer was "
            "kept (in a global, an attribute or a cache) or closed over. Pass it as an argument."
        )
    else:
        source = f"{_KINDS[function[1]]} {function[2]!r}"
        message = (
            f"{name_of(fn)} uses {what} that {source} made{made} and did not return. It was kept in a global, an "
            "attribute or a handler (a stream of random numbers, numpyro.sample, a log). Return it, or make it outside "
            f"of {source} and pass it in as an argument."
        )
    return FrontendError([problem(message, place_of(fn))])
