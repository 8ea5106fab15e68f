"""Tell modules that differ only in the order of the operands of their fragments from others."""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.ir.attributes import ArrayAttr, SymbolRefAttr, TensorShardingPerValueAttr
from mpmd_trace.ir.core import Block, Op, Value
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FragmentCallOp, FragmentOp, Module


def with_sorted_operands(module: Module) -> Module:
    """Return a copy in which every fragment takes its operands in the order in which they are made."""
    copy = module.clone()
    main = copy.main
    number: dict[Value, int] = {}
    for value in main.body.args:
        number[value] = len(number)
    orders: dict[str, list[int]] = {}
    for op in main.body:
        if isinstance(op, FragmentOp):
            order = _order(op, number)
            body = op.body.clone()
            _reorder_arguments(body.block, order)
            op.regions[0] = freeze(body)
            _reorder_operands(op, order)
        elif isinstance(op, FragmentCallOp):
            callee = op.props["callee"]
            assert isinstance(callee, SymbolRefAttr)
            if callee.name not in orders:  # the first call decides
                orders[callee.name] = _order(op, number)
                function = copy.lookup(callee.name)
                assert function is not None
                attributes = function.arg_attrs
                _reorder_arguments(function.body, orders[callee.name])
                function.set_all_arg_attrs([attributes[i] for i in orders[callee.name]])
                function.refresh_type()
            _reorder_operands(op, orders[callee.name])
        for result in op.results:
            number[result] = len(number)
    return copy


def _order(op: Op, number: dict[Value, int]) -> list[int]:
    return sorted(range(len(op.operands)), key=lambda i: number[op.operand(i)])


def _reorder_arguments(block: Block, order: Sequence[int]) -> None:
    for i in order:
        old = block.args[i]
        old.replace_all_uses_with(block.add_arg(old.type, loc=old.loc))
    block.erase_args(range(len(order)))


def _reorder_operands(op: Op, order: Sequence[int]) -> None:
    values = list(op.operands)
    for k, i in enumerate(order):
        op.set_operand(k, values[i])
    pick_entries(op, ("arg_attrs", "in_shardings"), order)


def pick_entries(op: Op, names: Sequence[str], order: Sequence[int]) -> None:
    """Leave these entries, in this order, in attributes with one for each operand or for each result."""
    for table in (op.props, op.attrs):
        for name in names:
            entries = table.get(name)
            if isinstance(entries, ArrayAttr):
                table[name] = ArrayAttr.get(entries.elements[i] for i in order)
            elif isinstance(entries, TensorShardingPerValueAttr):
                table[name] = TensorShardingPerValueAttr.get(entries.shardings[i] for i in order)
