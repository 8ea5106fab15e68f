"""Propagation in a program without any sharding: nothing spreads, only the bodies change.

Shardy still rewrites what is inside of fragments (constants are duplicated for propagation and merged again
afterwards), each body for itself.  So it is enough to show it every distinct body once, side by side.
"""

from __future__ import annotations

from ...ir.attributes import IntegerAttr
from ...ir.bodies import fingerprint, remembered
from ...ir.core import Block, Region, Value
from ...ir.diagnostics import Diagnostics
from ...ir.ops import FragmentOp, FuncOp, Module, make_return
from .reduction import HIDDEN_ATTRIBUTES, NUMBER
from .shardy import run_shardy

__all__ = ["has_no_shardings", "propagate_in_bodies"]


def has_no_shardings(module: Module, function: FuncOp) -> bool:
    """Whether nothing in the module mentions a sharding, and every op of the function is used."""
    if any(op is not function for op in module.body):
        return False
    for entries in (*function.arg_attrs, *function.res_attrs):
        if any("sharding" in name for name in entries.entries):
            return False
    terminator = function.body.terminator
    for op in function.body:
        if op is terminator:
            continue
        if not op.has_uses or any("sharding" in name for name in (*op.attrs, *op.props)):
            return False
        if isinstance(op, FragmentOp) and _mentions_shardings(op.body):
            return False
    return True


def _mentions_shardings(body: Region) -> bool:
    def look() -> bool:
        return any(
            op.name.startswith("sdy.") or any("sharding" in name for name in (*op.attrs, *op.props))
            for op in body.walk()
        )

    return remembered(body, "mentions shardings", look)


def propagate_in_bodies(module: Module, function: FuncOp, diagnostics: Diagnostics) -> bool:
    """Replace every body by what Shardy makes of it.  Gives False, and changes nothing, when that fails."""
    firsts: dict[str, FragmentOp] = {}
    for op in function.body:
        if isinstance(op, FragmentOp):
            firsts.setdefault(fingerprint(op.body), op)
    block = Block()
    returned: list[Value] = []
    for number, op in enumerate(firsts.values()):
        copy = op.clone(operands=[block.add_arg(v.type) for v in op.operands])
        for name in HIDDEN_ATTRIBUTES:
            copy.attrs.pop(name, None)
        copy.attrs[NUMBER] = IntegerAttr.get(number, "i64")
        returned += copy.results
        block.append(copy)
    block.append(make_return(returned, "func.return"))
    small = Module()
    small.op.props, small.op.attrs = dict(module.op.props), dict(module.op.attrs)
    alone = FuncOp(function.name, props=function.props, attrs=function.attrs, regions=[Region([block])])
    alone.props.pop("arg_attrs", None)
    alone.props.pop("res_attrs", None)
    alone.refresh_type()
    small.body.append(alone)
    small.resources = module.resources
    after = run_shardy(small, diagnostics)
    if after is None:
        return False
    made: dict[int, Region] = {}
    done = after.lookup(function.sym_name)
    for op in done.body if done is not None else ():
        mark = op.attrs.get(NUMBER)
        if isinstance(op, FragmentOp) and isinstance(mark, IntegerAttr):
            made[mark.value] = op.body
    if len(made) != len(firsts):
        return False
    texts: dict[str, Region] = {}  # bodies that differed before may be equal now
    new_body = {
        text: texts.setdefault(fingerprint(made[i]), made[i]) for i, text in enumerate(firsts)
    }
    for op in function.body:
        if isinstance(op, FragmentOp):
            op.body = new_body[fingerprint(op.body)]
    return True
