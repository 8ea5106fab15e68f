"""Propagation in a program without any sharding: nothing spreads, only the bodies change.

Shardy still rewrites what is inside of fragments (constants are duplicated for propagation and merged again
afterwards), each body for itself.  What it does to most bodies is known (`plain_bodies.py`).  It is enough
to show it every distinct one of the others once, side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpmd_trace.ir.attributes import IntegerAttr, MeshAttr, StringAttr, TensorShardingAttr
from mpmd_trace.ir.bodies import remembers, replace_bodies, without_dead_ops
from mpmd_trace.ir.core import Block, Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp, make_return
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.mlir_parts import frozen_bodies
from mpmd_trace.passes.sharding.edges import SHARDING
from mpmd_trace.passes.sharding.plain_bodies import can_do, with_constants_apart
from mpmd_trace.passes.sharding.reduced_program import NUMBER, numbered, with_body
from mpmd_trace.passes.sharding.shardy import run_shardy


def has_no_shardings(module: Module, function: FuncOp) -> bool:
    """Return whether nothing spreads in the function: no shardings but constraints without axes, and no unused op.

    JAX constrains typed keys to such a mesh, which tells nothing outside of the body.
    """
    bare: set[str | None] = set()
    for op in module.body:
        if op is function:
            continue
        if op.name != "sdy.mesh" or "stablehlo.mesh" not in op.attrs:  # Shardy adds that attribute
            return False
        if _has_no_axes(op):
            bare.add(_name_of(op))
    for entries in (*function.arg_attrs, *function.res_attrs):
        if any("sharding" in name for name in entries.entries):
            return False
    ops = function.body.ops[:-1]
    if _mention_shardings(ops) or not all(op.has_uses for op in ops):
        return False
    return all(bare.issuperset(_meshes_of_shardings(body)) for body in frozen_bodies([function]))


def _mention_shardings(ops: Iterable[Op]) -> bool:
    names: set[str] = set()
    for op in ops:
        names.update(op.attrs, op.props)
    return any("sharding" in name for name in names)


def drop_whole_shardings(module: Module, function: FuncOp) -> None:
    """Erase the shardings of arguments and results, and meshes for them, if all say that values are whole everywhere.

    So do arrays that were put on the meshes, without any axis, say: parameters after the first step.
    """
    arguments, results = function.arg_attrs, function.res_attrs
    given = [d.entries[SHARDING] for d in (*arguments, *results) if SHARDING in d.entries]
    if not given or not all(isinstance(s, TensorShardingAttr) and not s.all_axes for s in given):
        return
    ops = function.body.ops[:-1]
    if _mention_shardings(ops):
        return
    mentioned = {mesh for body in {r for op in ops for r in op.regions} for mesh in _meshes_of_shardings(body)}
    bare = {_name_of(op) for op in module.body.ops if op.name == "sdy.mesh" and _has_no_axes(op)} - {None}
    if not bare.issuperset(mentioned):  # a constraint in a body would spread to what has no sharding any more
        return
    function.set_all_arg_attrs([d.without(SHARDING) for d in arguments])
    function.set_all_res_attrs([d.without(SHARDING) for d in results])
    for op in module.body.ops:
        if op.name == "sdy.mesh" and _name_of(op) not in mentioned:
            op.erase()


def drop_unused_transfers(function: FuncOp) -> None:
    """Erase the transfers that nothing reads, as Shardy's pipeline does."""
    for op in reversed(function.body):
        if isinstance(op, TransferOp) and not op.has_uses:
            op.erase()


def _name_of(mesh: Op) -> str | None:
    name = mesh.props.get("sym_name")
    return name.value if isinstance(name, StringAttr) else None


def _has_no_axes(mesh: Op) -> bool:
    value = mesh.props.get("mesh")
    return isinstance(value, MeshAttr) and not value.axes and not value.device_ids


@remembers
def _meshes_of_shardings(body: Region) -> frozenset[str | None]:
    """Return the meshes of the sharding constraints in the body; None among them for anything else about shardings."""
    meshes: set[str | None] = set()
    for op in body.walk():
        sharding = op.props.get("sharding")
        if op.name == "sdy.sharding_constraint" and isinstance(sharding, TensorShardingAttr):
            meshes.add(sharding.mesh_name)
        elif op.name.startswith("sdy.") or any("sharding" in name for name in (*op.attrs, *op.props)):
            meshes.add(None)
    return frozenset(meshes)


def propagate_in_bodies(module: Module, function: FuncOp, diagnostics: Diagnostics, *, chlo: bool) -> bool:
    """Replace every body by what Shardy makes of it.  Gives False, and changes nothing, when that fails.

    Equal bodies should be one object.  `chlo`: Shardy is given rules for CHLO, and bodies that it need not see stay as
    they are, without dead ops: without shardings, copies of constant expressions are of no use.
    """
    derive = without_dead_ops if chlo else with_constants_apart
    new_body = {body: derive(body) for body in frozen_bodies([function]) if can_do(body, chlo=chlo)}
    shown: dict[Region, FragmentOp] = {}
    for op in function.body:
        if isinstance(op, FragmentOp) and op.body not in new_body:
            shown.setdefault(op.body, op)
    if shown:
        made = _propagated(module, function, list(shown.values()), diagnostics)
        if made is None:
            return False
        new_body.update(zip(shown, made, strict=True))
    shared = first_equal(new_body.values())  # bodies that differed before may be equal now
    replace_bodies(function.regions[0], lambda body: shared[new_body[body]])
    return True


def _propagated(
    module: Module, function: FuncOp, fragments: Sequence[FragmentOp], diagnostics: Diagnostics
) -> list[Region] | None:
    """Return what Shardy makes of the bodies of these fragments of the function; None when it fails."""
    block = Block()
    returned: list[Value] = []
    for number, fragment in enumerate(fragments):
        copy = numbered(fragment, [block.add_arg(v.type) for v in fragment.operands], number)
        returned += block.append(copy).results
    block.append(make_return(returned, "func.return"))
    small, _ = with_body(module, function, block)
    propagated = run_shardy(small, diagnostics)
    done = None if propagated is None else propagated[0].lookup(function.sym_name)
    made: dict[int, Region] = {}
    for op in done.body if done is not None else ():
        mark = op.attrs.get(NUMBER)
        if isinstance(op, FragmentOp) and isinstance(mark, IntegerAttr):
            made[mark.value] = op.body
    return [made[number] for number in sorted(made)] if len(made) == len(fragments) else None
