"""What several import passes do: wrap an op in a fragment, chain transfers, follow calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.attributes import ArrayAttr, StringAttr
from mpmd_trace.ir.bodies import BodyBuilder, effective_operands, fingerprint, remembers
from mpmd_trace.ir.core import Block, Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import (
    AssignOp,
    CallOp,
    FragmentOp,
    FuncOp,
    Module,
    NamedComputationOp,
    UnassignOp,
    local_type,
    make_assign,
    make_fragment,
    make_transfer,
    make_unassign,
)
from mpmd_trace.ir.types import MeshTensorType, TensorType, Type, mesh_tensor
from mpmd_trace.passes.common.walks import enclosing_function, function_ops
from mpmd_trace.passes.greedy import Rewriter
from mpmd_trace.passes.mesh_order import sort_by_mesh_order
from mpmd_trace.passes.run_caches import run_cache

#: The attribute that names the passes to which an inferred fragment is due.
INFERRED_BY = "mpmd.inferred_by"


# Types and places.


def on_mesh(type: Type, mesh: str, memory_kind: str | None = None) -> Type:
    """Return the mesh tensor type of a (mesh) tensor type on `mesh`, without a sharding; a token stays a token."""
    inner = local_type(type)
    return mesh_tensor(mesh, inner, None, memory_kind) if isinstance(inner, TensorType) else type


def assign_before(
    anchor: Op,
    value: Value,
    mesh: str,
    label: str | None = None,
    *,
    memory_kind: str | None = None,
    loc: Location | None = None,
) -> Value:
    """Return the value on a mesh, by an assign in front of the op."""
    target = on_mesh(value.type, mesh, memory_kind)
    assert isinstance(target, MeshTensorType) and anchor.block is not None
    return anchor.block.insert_before(anchor, make_assign(value, target, label, loc=loc)).result


def unassign_before(anchor: Op, value: Value, label: str | None = None, *, loc: Location | None = None) -> Value:
    """Return the mesh tensor without its mesh, by an unassign in front of the op."""
    assert anchor.block is not None
    return anchor.block.insert_before(anchor, make_unassign(value, label, loc=loc)).result


def assign_operand(
    op: Op,
    index: int,
    mesh: str,
    label: str | None = None,
    *,
    memory_kind: str | None = None,
    loc: Location | None = None,
) -> None:
    """Assign an operand of the op to a mesh, directly in front of the op."""
    op.set_operand(index, assign_before(op, op.operand(index), mesh, label, memory_kind=memory_kind, loc=loc))


def put_behind(last: Op | None, op: Op, block: Block) -> Op:
    """Insert the op behind `last`, or at the front of the block where that is None."""
    return block.insert_front(op) if last is None else block.insert_after(last, op)


def redirect_other_uses(value: Value, op: Op, *, keep: Op | None = None) -> None:
    """All users of `value` but `keep` (`op` by default) use the result of `op` instead."""
    stays = op if keep is None else keep
    value.replace_uses_if(op.result, lambda use: use.owner is not stays)


def check_mesh(function: FuncOp, mesh: str, where: Op | Value | Location, why: str, diagnostics: Diagnostics) -> None:
    """Raise (after the diagnostic) unless the topology of the function has a mesh of that name."""
    topology = function.topology
    if topology is None or mesh not in topology.meshes:
        known = ", ".join(quote(m) for m in topology.meshes) if topology is not None else "none"
        raise diagnostics.fatal(
            where,
            f"{why} needs the mesh {quote(mesh)}, but the topology of @{function.sym_name} has no mesh of "
            f"that name (it has {known}); correct the assignment or add the mesh to the topology",
        )


def check_constraints(function: FuncOp, constraints: Iterable[tuple[int, int]], diagnostics: Diagnostics) -> None:
    """Raise (after the diagnostic) unless every input:output pair is in range."""
    inputs, outputs = len(function.type.inputs), len(function.type.results)
    for i, o in constraints:
        if not 0 <= i < inputs or not 0 <= o < outputs:
            raise diagnostics.fatal(
                function,
                f"the constraint {i}:{o} (input:output) is out of range: @{function.sym_name} has "
                f"{inputs} inputs and {outputs} outputs, counted from 0",
            )


def result_location(function: FuncOp, index: int) -> Location:
    """Return the location of an assign made for result `index`: its `jax.result_info`, else the returned value's."""
    info = function.res_attr(index, "jax.result_info")
    if isinstance(info, StringAttr):
        return Location(quote(info.value))
    return function.body.terminator.operand(index).location


# Bodies.


@remembers
def holds_computations(body: Region) -> bool:
    """Return whether there is a named computation in a frozen body."""
    return any(isinstance(op, NamedComputationOp) for op in body.walk())


_bodies: dict[str, Region] = run_cache()


def interned_body(body: Region) -> Region:
    """Return the one body that stands for all bodies that print the same as this one.

    The op that a pass wraps for microbatch 7 is the one it wrapped for microbatch 3; with one body object for
    both, what is derived from it later is derived once.
    """
    return _bodies.setdefault(fingerprint(body), body)


_op_bodies: dict[Hashable, Region] = run_cache()


def op_as_body(op: Op, values: Sequence[Value]) -> Region:
    """Return the body that takes `values`, which are all that `op` reads, and returns the results of a copy of `op`.

    Equal ops give the same object.
    """

    def make() -> Region:
        builder = BodyBuilder()
        mapping = {v: builder.arg(local_type(v.type)) for v in values}
        return builder.finish(builder.add(op, mapping).results)

    if op.regions:
        return interned_body(make())
    operands = op.operands
    read: tuple[int, ...] | None = None
    if operands != values:
        number = {value: i for i, value in enumerate(values)}
        read = tuple([number[v] for v in operands])
    key = (
        op.name,
        frozenset(op.props.items()) if op.props else None,
        frozenset(op.attrs.items()) if op.attrs else None,
        read,
        tuple([v.type for v in values]),
        tuple([r.type for r in op.results]),
    )
    result = _op_bodies.get(key)
    if result is None:
        result = _op_bodies[key] = interned_body(make())
    return result


# Fragments.


def wrap_in_fragment(
    op: Op,
    mesh: str,
    label: str,
    diagnostics: Diagnostics,
    *,
    accept: Callable[[Op], bool] | None = None,
    rewriter: Rewriter | None = None,
) -> FragmentOp:
    """Put a copy of `op` into an inferred fragment on `mesh`, right before it; `op` itself stays.

    The users of its results that `accept` (all by default) take the fragment's results, through an unassign
    unless they are tokens.

        %r = stablehlo.add %a, %b      =>   %0 = mpmd.assign %a ; %1 = mpmd.assign %b
                                            %2 = mpmd.fragment<mesh="m", origin=[]> (%0, %1) {..} ...
                                            %3 = mpmd.unassign %2
                                            %r = stablehlo.add %a, %b
    """
    check_mesh(enclosing_function(op), mesh, op, f"'{op.name}'", diagnostics)
    rewriter = rewriter or Rewriter()
    values = effective_operands(op)
    body = op_as_body(op, values)
    operands: list[Value] = []
    for value in values:
        target = on_mesh(value.type, mesh)
        if isinstance(target, MeshTensorType):
            assign = make_assign(value, target, loc=op.loc)
            rewriter.insert_before(op, assign)
            operands.append(assign.result)
        else:
            operands.append(value)
    fragment = make_fragment(
        mesh,
        operands,
        [on_mesh(r.type, mesh) for r in op.results],
        body,
        attrs={INFERRED_BY: ArrayAttr.get([StringAttr.get(label)])},
        loc=op.loc,
    )
    rewriter.insert_before(op, fragment)
    for result, new in zip(op.results, fragment.results, strict=True):
        outside: Value = new
        if isinstance(new.type, MeshTensorType):
            unassign = make_unassign(new, loc=op.loc)
            rewriter.insert_before(op, unassign)
            outside = unassign.result
        rewriter.replace_uses_if(result, outside, accept or (lambda _: True))
    return fragment


# Transfers.


def cross_mesh_assigns(unassign: UnassignOp) -> list[AssignOp]:
    """Return the assigns among the users of the unassign that name another mesh, newest use first."""
    return [
        user
        for user in unassign.result.users
        if isinstance(user, AssignOp) and user.mesh_type.mesh != unassign.mesh_type.mesh
    ]


def chain_of_transfers(assigns: Iterable[AssignOp], source: Value, rewriter: Rewriter | None = None) -> None:
    """Replace assigns by transfers, each from the one before, in mesh order, where the first assign is.

    A value on m1 that is needed on m2 and m3 goes m1 -> m2 -> m3.  Assigns to one type share a transfer.
    """
    rewriter = rewriter or Rewriter()
    ordered = sort_by_mesh_order(assigns, lambda a: a.mesh_type.mesh)
    if not ordered:
        return
    earliest = ordered[0]
    for assign in ordered[1:]:
        if assign.block is earliest.block and assign.is_before(earliest):
            earliest = assign
    # The earliest assign goes when its turn comes: insert before the first op that stays.
    assert earliest.block is not None
    anchor: Op | None = earliest
    gone = set(ordered)
    while anchor in gone:
        assert anchor is not None
        anchor = anchor.next_op
    assert anchor is not None, "a block ends with a terminator"
    previous = source
    for assign in ordered:
        target = assign.mesh_type
        if target is not previous.type:
            transfer = make_transfer(previous, target, loc=assign.loc)
            rewriter.insert_before(anchor, transfer)
            previous = transfer.result
        rewriter.replace_op(assign, [previous])


# Calls.


def calls_of(module: Module, callee: str) -> list[CallOp]:
    """Return the calls of `callee` that have a used result, in module order.

    Calls stand at the top level of mpmd functions and in the bodies of loops there.
    """
    return [call for call in all_calls(module) if call.callee == callee and call.has_uses]


def all_calls(module: Module) -> list[CallOp]:
    """Return every `mpmd.call` of the mpmd functions and their loops, in module order."""
    return [op for function in module.mpmd_functions for op in function_ops(function) if isinstance(op, CallOp)]
