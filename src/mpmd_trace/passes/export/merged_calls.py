"""Calls of a mesh as one call of one function, and what these functions give to each other as few arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import cast

from mpmd_trace.ir.attributes import ArrayAttr, Attribute, BoolAttr, DictAttr, SymbolRefAttr
from mpmd_trace.ir.bodies import copied_ops
from mpmd_trace.ir.core import Block, Op, Region, Use, Value, make_op
from mpmd_trace.ir.functions import make_function
from mpmd_trace.ir.ops import FragmentCallOp, FuncOp, Module, TransferOp, make_return, make_transfer
from mpmd_trace.ir.types import MeshTensorType, TensorType, Type, mesh_tensor
from mpmd_trace.passes.common.rows import of_rows, row_of, rows_type
from mpmd_trace.passes.export.function_names import module_suffix
from mpmd_trace.passes.export.mark_aliasing_and_donation import ALIASING_OUTPUT, DONOR
from mpmd_trace.passes.export.repeated_calls import Item, items_of, loop_over
from mpmd_trace.passes.export.value_attrs import EMPTY

__all__ = ["merge_calls"]

_DONATED = EMPTY.with_(DONOR, BoolAttr.get(True))


@dataclasses.dataclass(eq=False)
class _Pack:
    """Values that one group of calls makes for the same others, in an array of which each is a row."""

    row: TensorType
    #: The mesh that the array is transferred to, None where it stays.
    target: str | None
    made: list[Value] = dataclasses.field(default_factory=list)
    #: The values as they are read.
    read: tuple[Value, ...] = ()
    #: The array where it is read, once it is there.
    array: Value | None = None


class _Inside:
    """The values of old ops inside of a function that is made."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.values: dict[Value, Value] = {}
        #: Arrays whose rows are values, in order; for each such value its array, the number and type of the row.
        self.arrays: dict[tuple[Value, ...], Value] = {}
        self.rows: dict[Value, tuple[Value, int, TensorType]] = {}

    def add_array(self, values: Sequence[Value], array: Value, type: TensorType) -> None:
        """An array with these values as its rows is there."""
        self.arrays[tuple(values)] = array
        for i, value in enumerate(values):
            self.rows.setdefault(value, (array, i, type))

    def __contains__(self, value: Value) -> bool:
        return value in self.values or value in self.rows

    def __getitem__(self, value: Value) -> Value:
        """The value; a row is taken out of its array here."""
        if value not in self.values:
            ops = row_of(*self.rows[value])
            self.block.append_all(ops)
            self.values[value] = ops[-1].result
        return self.values[value]

    def array(self, values: Sequence[Value]) -> Value:
        """An array with these values as its rows."""
        known = self.arrays.get(tuple(values))
        if known is None:
            ops = of_rows([self[value] for value in values])
            self.block.append_all(ops)
            known = self.arrays[tuple(values)] = ops[-1].result
        return known


def merge_calls(module: Module, order: Sequence[Sequence[Op]]) -> None:
    """Put the ops of `@main` into this order, with one call for each group of calls of a mesh.

    Calls of one function are a loop where they can.  What it gives in each round for the same other groups alone is an
    array, transferred as such; so are other values of one type.  Functions that nothing calls any more go.
    """
    _Merger(module, order).run()


class _Merger:
    def __init__(self, module: Module, order: Sequence[Sequence[Op]]) -> None:
        self.module, self.order = module, order
        self.main = module.main
        self.functions = {f.sym_name: f for f in module.functions}
        #: The number of the group of each call that becomes part of another one.
        self.group = {op: number for number, ops in enumerate(order) if len(ops) > 1 for op in ops}
        self.items = {i: items_of(cast("Sequence[FragmentCallOp]", ops)) for i, ops in enumerate(order) if len(ops) > 1}
        #: What the values of the old ops are now.
        self.now: dict[Value, Value] = {}
        #: For each group and value that it reads as a row: the array.
        self.rows: dict[tuple[int, Value], _Pack] = {}
        self.packs: dict[int, list[_Pack]] = {}
        #: The transfers whose values are rows of transferred arrays.
        self.packed: set[Op] = set()

    def run(self) -> None:
        self._choose_packs()
        called = {op.callee for op in self.main.body if isinstance(op, FragmentCallOp)}
        end = self.main.body.terminator
        old: list[Op] = []
        for number, ops in enumerate(self.order):
            if len(ops) > 1:
                self._merge(number, cast("Sequence[FragmentCallOp]", ops), end)
                old += ops
            elif ops[0] in self.packed:
                old += ops
            else:
                self._refer_to_new(ops[0])
                ops[0].move_before(end)
        self._refer_to_new(end)
        for op in reversed(old):
            op.erase()
        left = {op.callee for op in self.main.body if isinstance(op, FragmentCallOp)}
        for name in sorted(called - left):
            self.functions[name].erase()

    def _refer_to_new(self, op: Op) -> None:
        for i, value in enumerate(op.operands):
            if value in self.now:
                op.set_operand(i, self.now[value])

    # Which values travel together.

    def _choose_packs(self) -> None:
        for number, items in self.items.items():
            found: dict[tuple[object, ...], tuple[_Pack, list[Value], frozenset[int]]] = {}
            for item, result in ((one, r) for one in items for op in one.calls for r in op.results):
                for readers, target, read in self._readers(number, result):
                    row = cast(MeshTensorType, result.type).tensor
                    of_loop = (item.calls[0], result.index) if item.repeats else None
                    key = readers, target, row, of_loop
                    pack, values, _ = found.setdefault(key, (_Pack(row, target), [], readers))
                    pack.made.append(result)
                    values.append(read)
            for pack, values, readers in found.values():
                if len(values) > 1:
                    pack.read = tuple(values)
                    self.packs.setdefault(number, []).append(pack)
                    self.rows.update({(reader, value): pack for reader in readers for value in values})
                    if pack.target is not None:
                        self.packed.update(cast(Op, value.defining_op) for value in values)

    def _readers(self, number: int, result: Value) -> Iterator[tuple[frozenset[int], str | None, Value]]:
        """The groups that read a result of a group, the mesh that it is sent to for them, and what they read.

        Transfers that anything else reads are left out.
        """
        here: set[int] = set()
        for op in result.distinct_users:
            if isinstance(op, TransferOp):
                sent = op.results[0]
                there = {self.group.get(user, -1) for user in sent.users}
                if there and -1 not in there and op.target_type.mesh != op.source_type.mesh:
                    yield frozenset(there), op.target_type.mesh, sent
            elif self.group.get(op, number) != number:
                here.add(self.group[op])
        if here:
            yield frozenset(here), None, result

    def _is_read_whole(self, number: int, use: Use) -> bool:
        """Whether a use of a result of a group wants it as it is."""
        op = use.owner
        if op in self.packed:
            return False
        return op not in self.group or (self.group[op] != number and (self.group[op], use.value) not in self.rows)

    # The new functions and calls.

    def _merge(self, number: int, calls: Sequence[FragmentCallOp], end: Op) -> None:
        """Put the call for these calls in front of `end`."""
        block = Block()
        operands: dict[Value, Value] = {}  # of the new call, with the arguments of its function
        attributes: dict[Value, DictAttr] = {}
        inside = _Inside(block)

        def known(value: Value, like: Value, given: DictAttr) -> None:
            """Let a value that an old function has as an argument be inside."""
            if value in inside:
                return
            pack = self.rows.get((number, value))
            if pack is not None:
                assert pack.array is not None
                operands[pack.array] = block.add_arg(rows_type(pack.row, len(pack.made)))
                attributes[pack.array] = _DONATED
                inside.add_array(pack.read, operands[pack.array], pack.row)
                return
            now = self.now.get(value, value)
            operands[now] = inside.values[value] = block.add_arg(like.type, loc=like.location)
            attributes[now] = given.without(ALIASING_OUTPUT)

        def give_away(value: Value, given: DictAttr) -> None:
            """Donate the array of a value if one of the old functions does."""
            now = self.now.get(value, value)
            if now in attributes and (ALIASING_OUTPUT in given.entries or DONOR in given.entries):
                attributes[now] = attributes[now].with_(DONOR, BoolAttr.get(True))

        results: dict[Value, DictAttr] = {}
        for item in self.items[number]:
            function = self.functions[item.calls[0].callee]
            for call in item.calls:
                for place, (arg, given) in enumerate(zip(function.args, function.arg_attrs, strict=True)):
                    if call is item.calls[0] or place not in item.carried:
                        known(call.operand(place), arg, given)
                        give_away(call.operand(place), given)
            if item.repeats:
                self._repeat(item, function, inside)
            else:
                self._inline(item.calls[0], function, inside)
            for call in item.calls:
                for result, given in zip(call.results, function.res_attrs, strict=True):
                    if any(self._is_read_whole(number, use) for use in result.uses):
                        results[result] = given
        packs = self.packs.get(number, [])
        returned = [*[inside[result] for result in results], *[inside.array(pack.made) for pack in packs]]
        block.append(make_return(returned, "func.return"))
        like = self.functions[calls[0].callee]
        attrs = {"mesh_shape": like.attrs["mesh_shape"]} if "mesh_shape" in like.attrs else {}
        function = make_function(self._name(calls), Region([block]), attrs=attrs, loc=like.loc)
        function.set_all_arg_attrs(list(attributes.values()))
        function.set_all_res_attrs([*results.values(), *[EMPTY] * len(packs)])
        self.module.body.append(function)
        self._call(function, calls, list(operands), list(results), packs, end)

    def _inline(self, call: FragmentCallOp, function: FuncOp, inside: _Inside) -> None:
        copies, returned = copied_ops(function.body, [inside[value] for value in call.operands])
        inside.block.append_all(copies)
        inside.values.update(zip(call.results, returned, strict=True))

    def _repeat(self, item: Item, function: FuncOp, inside: _Inside) -> None:
        first, final = item.calls[0], item.calls[-1]
        given = [
            inside.array([call.operand(place) for call in item.calls]) if place in item.stacked else inside[value]
            for place, value in enumerate(first.operands)
        ]
        kept = [r for r in range(len(first.results)) if item.wants_all(r)]
        carried, arrays = loop_over(inside.block, item, function, given, kept)
        types = [value.type for value in function.body.terminator.operands]
        for r, array in arrays.items():
            inside.add_array([call.results[r] for call in item.calls], array, cast(TensorType, types[r]))
        for r, value in carried.items():
            inside.values[final.results[r]] = value

    def _call(
        self,
        function: FuncOp,
        calls: Sequence[FragmentCallOp],
        operands: Sequence[Value],
        results: Sequence[Value],
        packs: Sequence[_Pack],
        end: Op,
    ) -> None:
        mesh = calls[0].mesh
        props: dict[str, Attribute] = {
            "callee": SymbolRefAttr.get(function.sym_name),
            "mesh_name": calls[0].props["mesh_name"],
            "origin": ArrayAttr.get(dict.fromkeys(origin for call in calls for origin in call.origin)),
        }
        arrays = [mesh_tensor(mesh, rows_type(pack.row, len(pack.made))) for pack in packs]
        types: list[Type] = [*[result.type for result in results], *arrays]
        body = self.main.body
        op = body.insert_before(end, make_op("mpmd.fragment_call", operands, types, props=props, loc=calls[0].loc))
        self.now.update(zip(results, op.results, strict=False))
        for pack, array in zip(packs, op.results[len(results) :], strict=True):
            pack.array = array
            if pack.target is not None:
                there = mesh_tensor(pack.target, rows_type(pack.row, len(pack.made)))
                pack.array = body.insert_before(end, make_transfer(array, there, loc=op.loc)).results[0]

    def _name(self, calls: Sequence[FragmentCallOp]) -> str:
        """A name after the first named call: `m0_stage0_fwd_calls0to7_and_2_more.step`."""
        suffix = "." + module_suffix(self.module)
        first = next((call for call in calls if call.origin), calls[0]).callee
        head, _, text = first.removesuffix(suffix).partition("_")
        what = text if head[:1] == "p" and head[1:].isdigit() else first.removesuffix(suffix)
        more = len({call.callee for call in calls}) - 1
        number = sum(1 for f in self.module.functions if f.sym_name not in self.functions)
        return f"m{number}_{what}" + (f"_and_{more}_more" if more else "") + suffix
