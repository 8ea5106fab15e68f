"""Plain bodies: those of ops that MLIR's general passes treat by their general rules alone.

For none of the ops listed here has `canonicalize` a pattern or a folder of its own (measured for the releases
of jaxlib that this package supports; a test asks the installed one).  In a body of such ops it therefore
moves constants and removes dead code, and nothing else.  None of them commutes in MLIR's sense.
"""

from __future__ import annotations

from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.outlined import OUTLINED, outlined_callee
from mpmd_trace.ir.semantics import is_constant_like

_ELEMENTWISE = """
    abs add and atan2 cbrt ceil clamp compare complex convert cosine count_leading_zeros divide exponential
    exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or
    popcnt power real reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left
    shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor
"""
ELEMENTWISE = frozenset(f"stablehlo.{name}" for name in _ELEMENTWISE.split())
#: Other ops without regions.
_SIMPLE = """
    after_all batch_norm_grad batch_norm_inference batch_norm_training bitcast_convert broadcast_in_dim cholesky
    concatenate constant convolution create_token custom_call dot_general dynamic_slice dynamic_update_slice fft
    gather get_dimension_size iota optimization_barrier pad partition_id replica_id reshape return reverse rng
    rng_bit_generator slice transpose triangular_solve
"""
#: The ops with regions that see the values around them.
_NESTING = "case map reduce reduce_window scatter select_and_scatter sort while"
#: The elementwise ops of CHLO with one operand.
CHLO_UNARY = "acos acosh asin asinh atan atanh cosh digamma erf erf_inv erfc lgamma sinh square tan"
_CHLO = f"{CHLO_UNARY} ragged_dot top_k"
PLAIN_OPS = frozenset(
    {
        *ELEMENTWISE,
        *(f"stablehlo.{name}" for name in f"{_SIMPLE} {_NESTING}".split()),
        *(f"chlo.{name}" for name in _CHLO.split()),
        "mpmd.return",
        "sdy.propagation_barrier",
        "sdy.sharding_constraint",
        "sdy.sharding_group",
    }
)
_PLAIN = PLAIN_OPS | {OUTLINED}


def is_plain(body: Region) -> bool:
    """Return whether the frozen body consists of plain ops, at every depth; calls of outlined functions are plain."""
    names = op_names(body)
    return names is not None and names <= _PLAIN


@remembers
def op_names(body: Region) -> frozenset[str] | None:
    """Return the names of the ops of a frozen body, at every depth; `OUTLINED` for calls of outlined functions.

    None if a region has several blocks, if a body is nested in it, or if canonicalization knows a branch.
    """
    return all_names(body)


def all_names(region: Region) -> frozenset[str] | None:
    """As `op_names`, of a region that need not be frozen."""
    names: set[str] = set()
    return frozenset(names) if _collect_names(region, names) else None


def _collect_names(region: Region, names: set[str]) -> bool:
    if len(region.blocks) != 1:
        return False
    for op in region.blocks[0]:
        names.add(op.name if outlined_callee(op) is None else OUTLINED)
        if op.successors:
            return False
        if op.regions:
            if op.name == "stablehlo.case" and _is_known(op):
                return False
            for nested in op.regions:
                if nested.frozen or not _collect_names(nested, names):
                    return False
    return True


def _is_known(case: Op) -> bool:
    """Return whether the branch is known, so that canonicalization takes it."""
    index = case.operand(0).defining_op
    return index is not None and is_constant_like(index)


def as_read(region: Region) -> Region:
    """Return a frozen copy with its uses in the order in which they would be if it had been read from text."""
    return freeze(region.clone())
