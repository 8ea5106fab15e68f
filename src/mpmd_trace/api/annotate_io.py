"""Add memories and layouts of arguments and results to a partitioned program, for `mpmd_trace.jit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from mpmd_trace.frontend.arg_shardings import Spec
from mpmd_trace.ir.attributes import StringAttr
from mpmd_trace.ir.core import BlockArg, OpResult, Value
from mpmd_trace.ir.ops import FragmentCallOp, FuncOp, TransferOp, make_transfer
from mpmd_trace.ir.types import MeshTensorType, mesh_tensor

LAYOUT_MODE = "mhlo.layout_mode"
_HOST = "pinned_host"


def put_on_host(
    main: FuncOp, functions: Mapping[str, FuncOp], index: int, *, moved: bool, returned: Mapping[int, bool]
) -> None:
    """Argument `index`, which was compiled as one in device memory, is in host memory.

    Args:
        main: the partitioned program.
        functions: what it calls.
        index: which argument.
        moved: whether programs get it from the device, where it is moved first, or read it where it is.
        returned: the results that are this argument, each with whether it stays in host memory.
    """
    argument = main.args[index]
    device = argument.type
    assert isinstance(device, MeshTensorType)
    host = mesh_tensor(device.mesh, device.tensor, device.sharding, _HOST)
    argument.type = host
    terminator = main.body.terminator
    for result, stays in returned.items():
        value = terminator.operand(result)
        if stays and _source(value, functions) is argument:
            terminator.set_operand(result, argument)
            _erase_unused(value)
    upward: list[tuple[int, object]] = []
    for use in argument.uses:
        if isinstance(use.owner, TransferOp):
            if use.owner.target_type is host:
                use.owner.results[0].replace_all_uses_with(argument)
        elif moved if use.owner is not terminator else not returned.get(use.index, False):
            upward.append((use.index, use.owner))
    if upward:
        transfer = make_transfer(argument, device)
        main.body.insert_front(transfer)
        for position, owner in upward:
            owner.set_operand(position, transfer.results[0])  # type: ignore[attr-defined]
    main.refresh_type()


def _source(value: Value, functions: Mapping[str, FuncOp]) -> Value:
    """Return the source of `value`, through transfers to the same place and programs that return their arguments."""
    while isinstance(value, OpResult):
        op = value.op
        if isinstance(op, TransferOp):
            source = op.operand(0)
        elif isinstance(op, FragmentCallOp):
            inside = functions[op.callee].body.terminator.operand(value.index)
            if not isinstance(inside, BlockArg):
                break
            source = op.operand(inside.index)
        else:
            break
        if not _alike(cast(MeshTensorType, source.type), cast(MeshTensorType, value.type)):
            break
        value = source
    return value


def _alike(source: MeshTensorType, target: MeshTensorType) -> bool:
    """Return whether values of the types have the same parts on the same devices."""
    unsharded = all(t.sharding is None or t.sharding.is_fully_replicated for t in (source, target))
    return source.mesh == target.mesh and (source.sharding is target.sharding or unsharded)


def _erase_unused(value: Value) -> None:
    """Drop the op that made `value` if nothing uses it, and what only that op used."""
    op = value.defining_op
    if op is not None and not any(result.has_uses for result in op.results):
        operands = list(op.operands)
        op.erase()
        for operand in operands:
            _erase_unused(operand)


def keep_memory_kinds(main: FuncOp, kinds: Mapping[int, str | None]) -> None:
    """Send results to the memory that was asked for, which mesh inference forgets for inferred fragments."""
    terminator = main.body.terminator
    for index, kind in kinds.items():
        value = terminator.operand(index)
        type = value.type
        assert isinstance(type, MeshTensorType)
        if kind in (None, "device", type.memory_kind):
            continue
        wanted = mesh_tensor(type.mesh, type.tensor, type.sharding, kind)
        transfer = make_transfer(value, wanted)
        main.body.insert_before(terminator, transfer)
        terminator.set_operand(index, transfer.results[0])
    main.refresh_type()


def set_layouts(main: FuncOp, inputs: Sequence[Spec | None], outputs: Sequence[Spec | None]) -> None:
    """Mark arguments and results that have another layout in memory than the usual one."""
    arguments = main.arg_attrs, inputs, main.set_all_arg_attrs
    for dicts, specs, set_all in (arguments, (main.res_attrs, outputs, main.set_all_res_attrs)):
        for i, spec in enumerate(specs):
            if spec is not None and spec.layout is not None:
                dicts[i] = dicts[i].with_(LAYOUT_MODE, StringAttr.get(spec.layout))
        set_all(dicts)
