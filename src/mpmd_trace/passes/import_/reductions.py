"""Which ops reduce values that may come from several meshes."""

from __future__ import annotations

import re

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.semantics import region_reduction_kind
from mpmd_trace.ir.types import TensorType

#: The attribute that marks an op as part of a reduction across meshes.
REDUCE = "mpmd.reduce"


def _single_integer(op: Op, name: str) -> int | None:
    """Return the value of an attribute that is one integer, or an array of one."""
    attribute = op.attr(name)
    if attribute is None:
        return None
    value = getattr(attribute, "value", None)
    values = getattr(attribute, "values", None)
    if value is not None:
        return int(value)
    return int(values[0]) if values is not None and len(values) == 1 else None


def concat_reduction(concat: Op) -> tuple[Op, str] | None:
    """Return the `stablehlo.reduce` that reduces, element by element, what the concatenate joins, and its kind.

    %c = stablehlo.concatenate %a, %b, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
    %r = stablehlo.reduce(%c init: %z) applies stablehlo.add across dimensions = [0]
    """
    if concat.name != "stablehlo.concatenate" or not concat.results[0].has_one_use:
        return None
    first = concat.operand(0).type
    if not isinstance(first, TensorType) or any(o.type is not first for o in concat.operands):
        return None
    reduce = concat.users[0]
    if reduce.name != "stablehlo.reduce" or reduce.num_operands != 2:
        return None
    dim = _single_integer(concat, "dimension")
    if dim is None or _single_integer(reduce, "dimensions") != dim:
        return None
    if reduce.operand(0) is not concat.results[0] or first.shape is None or first.shape[dim] != 1:
        return None
    kind = region_reduction_kind(reduce.regions[0])
    return None if kind is None else (reduce, kind)


#: The bits of minus infinity; infinity is the same without the sign.
_MINUS_INFINITY = {"f16": 0xFC00, "bf16": 0xFF80, "f32": 0xFF800000, "f64": 0xFFF0000000000000}
_CONSTANT = re.compile(r"dense<([^<>]*)> : tensor<([a-z0-9]+)>$")
_INTEGER_TYPE = re.compile(r"(ui|i)([0-9]+)$")


def is_neutral(value: Value, kind: str) -> bool:
    """Return whether the scalar is known to be a constant that does not change what it is reduced with."""
    op = value.defining_op
    constant = None if op is None or op.name != "stablehlo.constant" else op.attr("value")
    match = None if constant is None else _CONSTANT.match(constant.text)
    if match is None:
        return False
    text, element = match.groups()
    integer = _INTEGER_TYPE.match(element)
    if integer is not None:
        return _neutral_integer(text, kind, int(integer.group(2)), signed=integer.group(1) == "i")
    if text.startswith("0x"):
        bits = _MINUS_INFINITY.get(element)
        if bits is None:
            return False
        infinity = bits & ~(1 << bits.bit_length() - 1)
        return int(text, 16) == {"max": bits, "min": infinity}.get(kind)
    try:
        number = float(text)
    except ValueError:
        return False
    return number == {"add": 0.0, "mul": 1.0}.get(kind)


def _neutral_integer(text: str, kind: str, width: int, *, signed: bool) -> bool:
    number = {"true": 1, "false": 0}.get(text)
    if number is None:
        try:
            number = int(text)
        except ValueError:
            return False
    elif number:
        number = -1  # all bits
    mask = (1 << width) - 1
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed and width > 1 else (0, mask)
    wanted = {"add": 0, "mul": 1, "or": 0, "and": mask, "max": low, "min": high}[kind]
    return number & mask == wanted & mask
