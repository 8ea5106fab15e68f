"""Errors of JAX while a function is traced, in the user's words: what they mean, and what to do.

Modules of Equinox in the arguments may have Python numbers among their fields, such as the rate of a dropout.  These
are leaves, of which `jax.jit` makes arrays and which `equinox.filter_jit` leaves alone.  Modules are written for the
latter, and branch on them.

A value may leave the function that made it without being returned: in a global, an attribute, a handler.  JAX traces a
named computation on its own, as it does a function under `jax.jit`, so nothing else can use what it makes but does not
return.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax

from mpmd_trace.diagnostics.messages import MpmdError, listed
from mpmd_trace.diagnostics.source_files import is_users
from mpmd_trace.frontend.errors import FrontendError, place_of, problem
from mpmd_trace.frontend.functions import labels, name_of
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


def explained(
    error: Exception, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FrontendError | None:
    """Say what to do about an error when `fn` is traced on these arguments; None where that is not known."""
    return _of_changed_object(error, fn) or _of_unlike_names(error) or _of_numbers(error, fn, args, kwargs)


def _of_changed_object(error: Exception, fn: Callable[..., Any]) -> FrontendError | None:
    """Return what to do about NNX's error that `fn` changes an object which it closes over, if it is this error."""
    if "flax.nnx" not in sys.modules or "different trace level" not in str(error):
        return None
    text = str(error).partition("\n")[0].partition("(")[0].strip()
    message = (
        f"{name_of(fn)} changes an object that is not among the arguments of the function that changes it: {text}. "
        "Pass modules, optimizers and random streams as arguments, and use mpmd_trace.nnx: its jit, name_layers, "
        "named_computation and value_and_grad keep such changes."
    )
    return FrontendError([problem(message, place_of(fn))])


def _of_unlike_names(error: Exception) -> FrontendError | None:
    """Say what to do about an error of JAX about two trees whose layers differ only in their names; None for others."""
    if not isinstance(error, ValueError):
        return None
    classes = re.findall(r"<class '[\w.<>]*?(\w+(?:\['.+?'\])?)'>", str(error))
    pairs = ((a, b) for a in classes for b in classes if a != b and a.partition("[")[0] == b.partition("[")[0])
    one, other = next(pairs, (None, None))
    if one is None:
        return None
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    message = (
        f"the step combines two trees whose layers have different names: one has the layer {one}, the other {other}. "
        "Usually the optimizer state was made before the layers were named. Call mpmd_trace.equinox.name_layers first, "
        "and make the optimizer state from the model that it returns."
    )
    return FrontendError([problem(message, f"{own[-1].filename}:{own[-1].lineno}" if own else None)])


def _of_numbers(
    error: Exception, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FrontendError | None:
    """Say what to do when `fn` cannot be traced and its arguments have such fields; None where that is not why."""
    if isinstance(error, MpmdError) or not isinstance(error, TypeError | jax.errors.ConcretizationTypeError):
        return None
    named = {**dict(zip(labels(fn, len(args)), args, strict=True)), **kwargs}
    fields = [field for name, value in named.items() for field in numbers_in_modules(name, value)]
    if not fields:
        return None
    first = str(error).split("\n", 1)[0]
    message = (
        f"{name_of(fn)} cannot be traced: {type(error).__name__}: {first} Equinox modules in its arguments have fields "
        f"that are Python numbers ({listed(fields, 3)}), and mpmd_trace.jit makes arrays of them, like "
        "jax.jit. Use mpmd_trace.filter_jit (filter_jit=True in a Program), which leaves them as they are."
    )
    return FrontendError([problem(message, place_of(fn))])


def numbers_in_modules(root: str, tree: Any) -> list[str]:
    """Return where in `tree`, which is called `root`, Equinox modules have fields that are Python numbers."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return []

    def is_module(node: Any) -> bool:
        return isinstance(node, equinox.Module)

    return [
        f"{root}{jax.tree_util.keystr((*path, *inside))}"
        for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_module)
        if is_module(node)
        for inside, leaf in jax.tree_util.tree_leaves_with_path(node)
        if isinstance(leaf, bool | int | float | complex)
    ]
