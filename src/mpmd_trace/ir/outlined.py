"""Calls of outlined functions: pure functions of which passes see no more than their name.

An outlined function is no part of the module's body.  What calls it is an op like others,

    %0 = stablehlo.custom_call @mpmd_trace.outlined(%key) {backend_config = "_uniform", mpmd_trace.work = 4096 : i64}

which passes may move, copy, unify and remove; export makes a `func.call` of it.
"""

from __future__ import annotations

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.attributes import StringAttr, SymbolRefAttr, integer_in
from mpmd_trace.ir.core import Op, Region, make_op

#: The target of these calls, and the attribute that their functions have in text.
OUTLINED = "mpmd_trace.outlined"
#: The attribute with the work of a call.
_WORK = "mpmd_trace.work"
_TARGET = StringAttr.get(OUTLINED)


def outlined_callee(op: Op) -> str | None:
    """Return the function that a call of an outlined function calls; None for other ops."""
    if op.name != "stablehlo.custom_call" or op.props.get("call_target_name") is not _TARGET:
        return None
    callee = op.props.get("backend_config")
    return callee.value if isinstance(callee, StringAttr) else None


def outlined_work(op: Op) -> int:
    """Return the work of a call of an outlined function."""
    return integer_in(op.attrs, _WORK) or 0


def outlined_attributes(callee: str, work: int) -> dict[str, str]:
    """Return the attributes of such a call, as MLIR text."""
    return {"call_target_name": quote(OUTLINED), "backend_config": quote(callee), _WORK: f"{work} : i64"}


def insert_calls(region: Region) -> bool:
    """Make calls of outlined functions in a mutable region `func.call`s.  Says whether there are any."""
    calls = [(op, callee) for op in region.walk() if (callee := outlined_callee(op)) is not None]
    for op, callee in calls:
        props = {"callee": SymbolRefAttr.get(callee)}
        call = make_op("func.call", op.operands, [r.type for r in op.results], props=props, loc=op.loc)
        call.move_before(op)
        op.replace_all_uses_with(call.results)
        op.erase()
    return bool(calls)
