"""Arrays whose values are in other processes: JAX's text and error do not say how to get them."""

from __future__ import annotations

from typing import Any

from jax._src.array import ArrayImpl

_ADVICE = "mpmd_trace.fetch(x), called in all processes, gives the value"
_VALUE = ArrayImpl._value
_REPR = ArrayImpl.__repr__


def point_to_fetch() -> None:
    """Name `mpmd_trace.fetch` in the text of an array, and in JAX's error, where this process lacks the value."""
    ArrayImpl.__repr__ = _repr
    ArrayImpl._value = property(_value)


def _repr(x: Any) -> str:
    text: str = _REPR(x)
    is_here = x.is_deleted() or x.is_fully_addressable
    if is_here or (x.is_fully_replicated and x.sharding.has_addressable_devices):
        return text
    return f"{text[:-1]}, on devices of other processes; {_ADVICE})"


def _value(x: Any) -> Any:
    try:
        return _VALUE.fget(x)
    except RuntimeError as error:
        if not x.is_deleted() and not x.is_fully_addressable:
            error.add_note(f"This array is on devices of other processes: {_ADVICE}.")
        raise
