"""Constants as arrays: reads and writes `dense<...>` attributes.

Arrays hold all elements, or one when the attribute is a splat; element types are numpy's, or those of
ml_dtypes for bf16 and the small floats.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.core import Op, Value, make_op
from mpmd_trace.ir.types import TensorType, tensor
from mpmd_trace.jax_compat.mlir import normalize_attribute

Array = np.ndarray[Any, Any]

_DTYPES: dict[str, Any] = {
    "i1": np.dtype(bool),
    **{f"i{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"ui{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"f{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_DENSE = re.compile(r"dense<(.*)> : (tensor<.*>)$", re.S)
_TOKEN = re.compile(r"[^\[\],\s]+")


class Constant(NamedTuple):
    """The value of a constant: `values` has the shape of the tensor, or is 0-dimensional for a splat."""

    values: Array
    type: TensorType

    @property
    def is_splat(self) -> bool:
        return self.values.ndim == 0

    @property
    def full(self) -> Array:
        """All elements in the shape of the tensor."""
        assert self.type.shape is not None
        return np.broadcast_to(self.values, self.type.shape)


def _body(value: Value) -> tuple[str, TensorType] | None:
    """Return what stands between the brackets of the constant that defines `value`."""
    op = value.defining_op
    if op is None or op.name != "stablehlo.constant":
        return None
    match = _DENSE.match(op.props["value"].text)
    type_ = value.type
    if match is None or not isinstance(type_, TensorType) or type_.shape is None:
        return None
    return match.group(1), type_


def splat_text(value: Value) -> str | None:
    """Return the spelling of the one element that a splat constant repeats; None for other values.

    It is there for every element type, complex ones too.
    """
    body = _body(value)
    if body is None or not body[0] or body[0][0] in '["':
        return None
    return body[0]


def constant_of(value: Value) -> Constant | None:
    """Return the constant that defines `value`; None if it is something else, or of an unusual element type."""
    payload = _body(value)
    if payload is None:
        return None
    body, type_ = payload
    dtype = _DTYPES.get(type_.element)
    if dtype is None:
        return None
    assert type_.shape is not None
    if body.startswith('"0x'):
        if dtype.kind == "b":
            return None
        values = np.frombuffer(bytes.fromhex(body[3:-1]), dtype)
        return Constant(values.reshape(() if len(values) == 1 else type_.shape), type_)
    if body.startswith("["):
        tokens = [_scalar(t, dtype) for t in _TOKEN.findall(body)]
        return Constant(np.array(tokens, dtype).reshape(type_.shape), type_)
    if not body:
        return Constant(np.zeros(type_.shape, dtype), type_)
    return Constant(np.array(_scalar(body, dtype), dtype), type_)


def integer_of(value: Value) -> int | None:
    """Return the first element of the constant that defines `value`, as an integer; None if it is something else."""
    constant = constant_of(value)
    return None if constant is None else int(constant.full.reshape(-1)[0])


def _scalar(token: str, dtype: Any) -> Any:
    if dtype.kind == "b":
        return token == "true"
    if token.startswith("0x"):  # the bits of a float that has no decimal spelling
        return np.array(int(token, 16), f"<u{dtype.itemsize}").view(dtype)[()]
    if dtype.kind in "iu":
        return int(token)
    return dtype.type(float(token))


def dense_text(values: Array, type: TensorType) -> str:
    """Return the attribute that holds these values, spelled as MLIR does."""
    assert type.shape is not None
    dtype = _DTYPES[type.element]
    values = np.ascontiguousarray(values, dtype)
    if values.size == 0:
        return f"dense<> : {type.text}"
    flat = values.reshape(-1)
    bits = flat.view(f"<u{dtype.itemsize}")
    if flat.size > 1 and (bits == bits[0]).all():
        flat = flat[:1]
    if dtype.kind == "b":
        if flat.size == 1:
            return f"dense<{'true' if flat[0] else 'false'}> : {type.text}"
        return normalize_attribute(f"dense<{str(flat.reshape(type.shape).tolist()).lower()}> : {type.text}")
    if flat.size == 1 and dtype.kind in "iu":
        return f"dense<{int(flat[0])}> : {type.text}"
    return normalize_attribute(f'dense<"0x{flat.tobytes().hex().upper()}"> : {type.text}')


def make_constant(value: Array | str, type: TensorType, loc: Location) -> Op:
    """Return a detached constant: of these values, or the splat of an element spelled `value`."""
    text = f"dense<{value}> : {type.text}" if isinstance(value, str) else dense_text(value, type)
    return make_op("stablehlo.constant", [], [type], props={"value": parse_attribute(text)}, loc=loc)


def zeros_like(type: TensorType) -> Array:
    """One zero of the element type."""
    return np.zeros((), _DTYPES[type.element])


def is_foldable(type: TensorType) -> bool:
    """Return whether constants of this type can be read and written."""
    return type.shape is not None and -1 not in type.shape and type.element in _DTYPES


def with_shape(type: TensorType, shape: tuple[int, ...]) -> TensorType:
    return tensor(shape, type.element, type.encoding)
