"""Constants that passes of the placement add.  NumPy comes with the first, since the list of passes does without."""

from __future__ import annotations

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.types import TensorType


def can_be_zero(type: TensorType) -> bool:
    """Return whether there are constants of the type here."""
    from mpmd_trace.passes.stablehlo.elements import is_foldable  # NumPy, which is slow to import

    return is_foldable(type)


def make_zero(type: TensorType, loc: Location) -> Op:
    """Return a constant of zeros."""
    from mpmd_trace.passes.stablehlo.elements import make_constant, zeros_like  # NumPy, which is slow to import

    return make_constant(zeros_like(type), type, loc)
