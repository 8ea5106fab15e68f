"""Control operands: extra operands of fragments that only say "after that one".

They have no block argument, so a fragment that has them does not verify; passes put them in, sort, and take
them out again.
"""

from __future__ import annotations

from mpmd_trace.ir.attributes import IntegerAttr
from mpmd_trace.ir.ops import FragmentOp, FuncOp

#: The index of the first control operand.
CONTROL_START = "mpmd.control_operand_start_idx"


def add_control_dependency(first: FragmentOp, second: FragmentOp) -> None:
    """Make `second` wait for `first`, which must have a result."""
    if CONTROL_START not in second.attrs:
        second.attrs[CONTROL_START] = IntegerAttr.get(second.num_operands, "i64")
    second.append_operands([first.results[0]])


def remove_control_dependencies(function: FuncOp) -> bool:
    """Take all control operands of the function's fragments out.  Says whether there were any."""
    changed = False
    for op in function.body:
        start = op.attrs.get(CONTROL_START) if isinstance(op, FragmentOp) else None
        if isinstance(start, IntegerAttr):
            op.erase_operands(range(start.value, op.num_operands))
            del op.attrs[CONTROL_START]
            changed = True
    return changed
