"""Calls of outlined functions: pure functions of which passes see no more than their name.

An outlined function is no part of the module's body.  What calls it is an op like others,

    %0 = stablehlo.custom_call @mpmd_trace.outlined(%key) {backend_config = "_uniform", mpmd_trace.work = 4096 : i64}

which passes may move, copy, unify and remove; export makes a `func.call` of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.diagnostics.spelling import quote
from mpmd_trace.ir.attributes import Attribute, IntegerAttr, StringAttr, SymbolRefAttr
from mpmd_trace.ir.core import Op, Region, Value, make_op
from mpmd_trace.ir.types import Type

#: The target of these calls, and the attribute that their functions have in text.
OUTLINED = "mpmd_trace.outlined"
#: The attribute with the number of elements that a call computes.
_WORK = "mpmd_trace.work"
_TARGET = StringAttr.get(OUTLINED)


def outlined_callee(op: Op) -> str | None:
    """Return the function that a call of an outlined function calls; None for other ops."""
    if op.name != "stablehlo.custom_call" or op.props.get("call_target_name") is not _TARGET:
        return None
    callee = op.props.get("backend_config")
    return callee.value if isinstance(callee, StringAttr) else None


def outlined_work(op: Op) -> int:
    """Return the number of elements that a call of an outlined function computes."""
    work = op.attrs.get(_WORK)
    return work.value if isinstance(work, IntegerAttr) else 0


def make_outlined_call(
    callee: str, work: int, operands: Sequence[Value], results: Sequence[Type], loc: Location = UNKNOWN
) -> Op:
    """Return a call of an outlined function that computes so many elements."""
    props: dict[str, Attribute] = {"call_target_name": _TARGET, "backend_config": StringAttr.get(callee)}
    attrs = {_WORK: IntegerAttr.get(work, "i64")}
    return make_op("stablehlo.custom_call", operands, results, props=props, attrs=attrs, loc=loc)


def outlined_attributes(callee: str, work: int) -> dict[str, str]:
    """Return the attributes of such a call, as MLIR text."""
    return {"call_target_name": quote(OUTLINED), "backend_config": quote(callee), _WORK: f"{work} : i64"}


def insert_calls(region: Region) -> bool:
    """Make calls of outlined functions in a mutable region `func.call`s.  Says whether there are any."""
    calls = [(op, callee) for op in region.walk() if (callee := outlined_callee(op)) is not None]
    for op, callee in calls:
        props = {"callee": SymbolRefAttr.get(callee)}
        call = make_op("func.call", op.operands, [r.type for r in op.results], props=props, loc=op.loc)
        replace_op(op, call)
    return bool(calls)


def replace_op(op: Op, new: Op) -> None:
    """Put `new`, which has results of the same types, in the place of `op`."""
    assert op.block is not None
    op.block.insert_before(op, new)
    op.replace_all_uses_with(new.results)
    op.erase()
