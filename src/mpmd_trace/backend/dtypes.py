"""MLIR element types as numpy dtypes, and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import local_type
from mpmd_trace.ir.types import TensorType, Type

_DTYPES: dict[str, np.dtype] = {
    "i1": np.dtype(np.bool_),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
for _element, _name in {
    "bf16": "bfloat16",
    "i2": "int2",
    "i4": "int4",
    "ui2": "uint2",
    "ui4": "uint4",
    "f4E2M1FN": "float4_e2m1fn",
    "f8E3M4": "float8_e3m4",
    "f8E4M3": "float8_e4m3",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2": "float8_e5m2",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E8M0FNU": "float8_e8m0fnu",
}.items():
    if hasattr(ml_dtypes, _name):
        _DTYPES[_element] = np.dtype(getattr(ml_dtypes, _name))


def dtype_of(type: TensorType) -> np.dtype:
    """Return the numpy dtype of the elements.  Raises `MpmdError` for an element type that arrays cannot have."""
    result = _DTYPES.get(type.element)
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
