"""Where values flow in a module: who reads each value, through calls, and how often a step makes it.

A value that a call passes, in or out, is one value: it moves, if it has to, outside of the callee and as often as
there are different values, not as often as there are calls.  A body that is called many times has each of its ops
once, since all calls of it are placed alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.bodies import effective_operands
from mpmd_trace.ir.core import BlockArg, Op, Value
from mpmd_trace.ir.ops import AssignOp, CallOp, FuncOp, Module, TransferOp, UnassignOp
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.import_.mesh_sets import is_meshless
from mpmd_trace.passes.placement.call_graph import CallGraph
from mpmd_trace.passes.placement.open_conditionals import BRANCH, SELECTS, branch_of, conditions_of
from mpmd_trace.passes.placement.rematerializable import byte_size, free_ops

#: Results of the entry point with equal numbers are better on one mesh.
TOGETHER = "mpmd.together"
#: What a transfer costs besides its bytes, in bytes: a tie between scalars does not make one bounce.
TRANSFER_BYTES = 16
#: Ties values that nothing may send.
_NEVER = 1 << 50


class Edge(NamedTuple):
    """A value, who makes and reads it (node numbers), and the bytes of a step if one of them is on another mesh."""

    weight: int
    nodes: tuple[int, ...]


class DataflowHypergraph:
    """The hypergraph of a module whose named computations have meshes.

    Nodes 0 .. n - 1 are the n meshes, in the order of the topology, then come the ops without a mesh.  Ops that
    can be made again wherever their result is needed, at no cost, have no node: their readers read what they read.
    """

    def __init__(self, module: Module, pairs: Mapping[int, int]) -> None:
        """`pairs`: results of the entry point that replace an argument, as result: argument."""
        self.graph = CallGraph(module)
        #: What each callee returns.
        self.returned = {name: callee.returned for name, callee in self.graph.callees.items()}
        self.functions = self.graph.functions
        topology = self.functions[0].topology
        assert topology is not None
        self.meshes = list(topology.meshes)
        self.mesh_number = {mesh: i for i, mesh in enumerate(self.meshes)}
        self.node_of: dict[Op, int] = {}
        #: The node of an argument of the entry point that a result replaces: that of a mesh, if the result has one.
        self.home_of: dict[Value, int] = {}
        self.count = len(self.meshes)
        #: The nodes that read a value inside of its function and of those it calls.
        self.readers: dict[Value, dict[int, None]] = {}
        self.free: dict[Op, tuple[Value, ...]] = {}
        #: The functions with ops of opened conditionals.
        self.opened: set[FuncOp] = set()
        #: Of each callee the arguments that it reads, with its readers, and what it returns as it was passed:
        #: (argument, result).
        self.passed: dict[str, tuple[list[tuple[int, dict[int, None]]], list[tuple[int, int]]]] = {}
        self.pairs = dict(pairs)
        #: The nodes of results that are better on one mesh.
        self.together: dict[int, int] = {}
        for function in self.functions:
            self._number(function)
        for function in self.functions:
            self._read(function)

    # Nodes.

    def _number(self, function: FuncOp) -> None:
        if function.is_entry_point:
            self._number_results(function)
        free = free_ops(function, self.graph)
        self.free.update(free)
        for op in function.body:
            if op.attrs and (BRANCH in op.attrs or SELECTS in op.attrs):
                self.opened.add(function)
            if is_meshless(op) and op not in free:
                self.node_of[op] = self.count
                self.count += 1

    def _number_results(self, entry_point: FuncOp) -> None:
        """Give nodes to arguments that results replace, and to groups of results that are better on one mesh."""
        for result, argument in self.pairs.items():
            arg, there = entry_point.body.args[argument], entry_point.returned[result].type
            if not isinstance(arg.type, TensorType):
                continue
            if isinstance(there, MeshTensorType):
                self.home_of[arg] = self.mesh_number[there.mesh]
            elif arg not in self.home_of:
                self.home_of[arg] = self.count
                self.count += 1
        groups: dict[Attribute, int] = {}
        for result, attrs in enumerate(entry_point.res_attrs):
            if TOGETHER in attrs.entries:
                self.together[result] = groups.setdefault(attrs.entries[TOGETHER], self.count + len(groups))
        self.count += len(groups)

    # Readers.

    def _read(self, function: FuncOp) -> None:
        """Fill `readers` for a function whose callees are filled."""
        conditions = conditions_of(function.body) if function in self.opened else {}
        if function.is_entry_point:
            self._read_results(function)
        for op in reversed(function.body):
            if isinstance(op, CallOp):
                self._read_call(op)
            else:
                self._read_operands(op, conditions)
        for arg, node in self.home_of.items():
            if arg.block is function.body:
                self._add(arg, {node: None})
        if not function.is_entry_point:
            args, returned = function.body.args, self.returned[function.sym_name]
            self.passed[function.sym_name] = (
                [(arg.index, self.readers[arg]) for arg in args if arg in self.readers],
                [(value.index, i) for i, value in enumerate(returned) if isinstance(value, BlockArg)],
            )

    def _read_results(self, entry_point: FuncOp) -> None:
        returned = entry_point.returned
        for result, argument in self.pairs.items():
            arg, value = entry_point.body.args[argument], returned[result]
            if arg in self.home_of:
                self._add(value, {self.home_of[arg]: None})
            elif isinstance(arg.type, MeshTensorType):
                self._add(value, {self.mesh_number[arg.type.mesh]: None})
        for result, node in self.together.items():
            self._add(returned[result], {node: None})

    def _read_call(self, call: CallOp) -> None:
        if call.callee in self.graph.callees:
            read, handed = self.passed[call.callee]
            for index, nodes in read:
                self._add(call.operand(index), nodes)
            for index, result in handed:
                self._add(call.operand(index), self.readers.get(call.results[result], {}))

    def _read_operands(self, op: Op, conditions: Mapping[int, Value]) -> None:
        if op in self.free:
            here = self.readers.get(op.result, {})
        elif op in self.node_of:
            here = {self.node_of[op]: None}
            for number, _ in branch_of(op) if conditions else ():
                if number in conditions:
                    self._add(conditions[number], here)
        elif isinstance(op, AssignOp):
            here = {self.mesh_number[op.mesh_type.mesh]: None}
        else:
            return
        for value in effective_operands(op) if op.regions else op.operands:
            if isinstance(value.type, TensorType) or value.type.is_token:
                self._add(value, here)

    def _add(self, value: Value, nodes: dict[int, None]) -> None:
        readers = self.readers.get(value)
        if readers is None:
            self.readers[value] = dict(nodes)
        elif readers is not nodes:
            readers.update(nodes)

    # Edges.

    def edges(self) -> Iterator[Edge]:
        """Yield every value that may have to move, with its weight."""
        for function in self.functions:
            runs = self.graph.runs[function]
            returned: dict[Value, list[int]] = {}
            if not function.is_entry_point:
                for i, value in enumerate(function.returned):
                    returned.setdefault(value, []).append(i)
            for result, node in self.together.items() if function.is_entry_point else ():
                value = function.returned[result]
                if value.defining_op in self.node_of:  # besides what it is as a reader: a scalar goes to the others
                    yield Edge(2 * self._weight(value, 1), (self.node_of[value.defining_op], node))
            for value, there, names in self._roots(function):
                inside = dict.fromkeys(there)
                for name in names:
                    inside.update(self.readers.get(name, {}))
                leaving = [i for name in names for i in returned.get(name, ())] if returned else ()
                if not leaving:
                    if len(inside) > 1:
                        yield Edge(self._weight(value, runs), tuple(inside))
                    continue
                for others, times in self._outside(function, leaving).items():
                    nodes = tuple(dict.fromkeys([*inside, *others]))
                    if len(nodes) > 1:
                        yield Edge(self._weight(value, times), nodes)

    def _weight(self, value: Value, runs: int) -> int:
        if value.type.is_token:
            return _NEVER
        return runs * (byte_size(value.type) + TRANSFER_BYTES)

    def _roots(self, function: FuncOp) -> Iterator[tuple[Value, list[int], list[Value]]]:
        """Yield the values that are made in a function, or come from the caller of the program.

        With each the nodes where it is anyway, and the values without a mesh that stand for it.
        """
        if function.is_entry_point:
            for arg in function.body.args:
                yield arg, [], [arg]
        named: set[Value] = set()
        for op in function.body:
            if isinstance(op, UnassignOp):
                value = op.operand(0)
                if value not in named:
                    named.add(value)
                    unassigns = [user for user in reversed(value.distinct_users) if isinstance(user, UnassignOp)]
                    yield value, self._where_it_is(value), [u.result for u in unassigns]
            elif op in self.node_of:
                for result in op.results:
                    yield result, [self.node_of[op]], [result]

    def _where_it_is(self, value: Value) -> list[int]:
        """Return the meshes that a value with a mesh is on, or is sent to by the user."""
        assert isinstance(value.type, MeshTensorType)
        result = [self.mesh_number[value.type.mesh]]
        for user in value.users:
            if isinstance(user, TransferOp):
                result += self._where_it_is(user.result)
        return result

    def _outside(self, function: FuncOp, results: Sequence[int]) -> dict[tuple[int, ...], int]:
        """Return who reads results of a function outside of it, and in how many runs these do."""
        result: dict[tuple[int, ...], int] = {}
        before: tuple[int, ...] = ()
        for call in self.graph.calls[function]:
            nodes: Iterable[int] = self.readers.get(call.results[results[0]], ())
            if len(results) > 1:
                nodes = {node for i in results for node in self.readers.get(call.results[i], ())}
            key = tuple(sorted(nodes))
            times = self.graph.runs[self.graph.caller[call]]
            result[key] = result.get(key, 0) + times
            if call.repeats > 1:  # all but the last have readers as the call before
                result[before] = result.get(before, 0) + times * (call.repeats - 1)
            before = key
        return result
