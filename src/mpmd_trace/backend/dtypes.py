"""MLIR element types as numpy dtypes."""

from __future__ import annotations

import functools
import re

import jax.numpy as jnp
import numpy as np

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import local_type
from mpmd_trace.ir.types import TensorType, Type

#: What JAX calls elements: by kind, as in `float8_e4m3fn` for `f8E4M3FN`, and the others by name.
_KINDS = {"i": "int", "ui": "uint", "f": "float", "bf": "bfloat"}
_OTHERS = {"i1": "bool_", "complex<f32>": "complex64", "complex<f64>": "complex128"}
_ELEMENT = re.compile(r"([a-z]+)(\d+)(E\w+)?")


@functools.cache
def _dtype(element: str) -> np.dtype | None:
    name, match = _OTHERS.get(element), _ELEMENT.fullmatch(element)
    if name is None and match is not None and match[1] in _KINDS:
        name = f"{_KINDS[match[1]]}{match[2]}" + (f"_{match[3].lower()}" if match[3] else "")
    scalar = None if name is None else getattr(jnp, name, None)
    return None if scalar is None else np.dtype(scalar.dtype)


def dtype_of(type: TensorType) -> np.dtype:
    """Return the numpy dtype of the elements.  Raises `MpmdError` for an element type that arrays cannot have."""
    result = _dtype(type.element)
    if result is None:
        raise MpmdError(f"no array has the element type {type.element} of {type.text}")
    return result


def tensor_type(type: Type, what: str = "a value") -> TensorType:
    """Return the (global) tensor type of a tensor or mesh tensor with static shape.

    Raises `MpmdError` for another type; `what` names the value in the message.
    """
    result = local_type(type)
    if not isinstance(result, TensorType):
        raise MpmdError(f"{what} has type {type.text}; only tensors can be arrays")
    if result.shape is None or any(size < 0 for size in result.shape):
        raise MpmdError(f"{what} has type {type.text}; only tensors of static shape can be arrays")
    return result
