"""Propagation in a program without any sharding: nothing spreads, only the bodies change.

Shardy still rewrites what is inside of fragments (constants are duplicated for propagation and merged again
afterwards), each body for itself.  What it does to most bodies is known (`constants_apart.py`).  It is enough
to show it every distinct one of the others once, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.ir.attributes import IntegerAttr
from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import Block, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, make_return
from mpmd_trace.passes.equal_bodies import first_equal
from mpmd_trace.passes.plain_bodies import op_names
from mpmd_trace.passes.sharding.constants_apart import can_do, with_constants_apart
from mpmd_trace.passes.sharding.reduction import NUMBER, numbered, with_body
from mpmd_trace.passes.sharding.shardy import run_shardy

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
        names = {name for op in body.walk() for name in (*op.attrs, *op.props)}
        ops = op_names(body) or {op.name for op in body.walk()}
        return any("sharding" in name for name in names) or any(name.startswith("sdy.") for name in ops)

    return remembered(body, "mentions shardings", look)


def propagate_in_bodies(module: Module, function: FuncOp, diagnostics: Diagnostics, *, chlo: bool = False) -> bool:
    """Replace every body by what Shardy makes of it.  Gives False, and changes nothing, when that fails.

    Equal bodies should be one object.  `chlo`: Shardy is given rules for CHLO.
    """
    fragments = [op for op in function.body if isinstance(op, FragmentOp)]
    firsts: dict[Region, FragmentOp] = {}
    for op in fragments:
        firsts.setdefault(op.body, op)
    new_body = {body: with_constants_apart(body) for body in firsts if can_do(body, chlo=chlo)}
    shown = {body: op for body, op in firsts.items() if body not in new_body}
    if shown:
        made = _propagated(module, function, list(shown.values()), diagnostics)
        if made is None:
            return False
        new_body.update(zip(shown, made, strict=True))
    shared = first_equal(new_body.values())  # bodies that differed before may be equal now
    for op in fragments:
        op.body = shared[new_body[op.body]]
    return True


def _propagated(
    module: Module, function: FuncOp, fragments: Sequence[FragmentOp], diagnostics: Diagnostics
) -> list[Region] | None:
    """What Shardy makes of the bodies of these fragments of the function; None when it fails."""
    block = Block()
    returned: list[Value] = []
    for number, fragment in enumerate(fragments):
        copy = numbered(fragment, [block.add_arg(v.type) for v in fragment.operands], number)
        returned += block.append(copy).results
    block.append(make_return(returned, "func.return"))
    small, _ = with_body(module, function, block)
    after = run_shardy(small, diagnostics)
    done = after.lookup(function.sym_name) if after is not None else None
    made: dict[int, Region] = {}
    for op in done.body if done is not None else ():
        mark = op.attrs.get(NUMBER)
        if isinstance(op, FragmentOp) and isinstance(mark, IntegerAttr):
            made[mark.value] = op.body
    return [made[number] for number in sorted(made)] if len(made) == len(fragments) else None
