"""Kinds of ops and values: what sharding propagation cannot tell apart.

Two ops are of one kind when they look the same (mesh, body, types, given shardings), their operands are of
the same kinds and their results are read by ops of the same kinds.  Edges from one microbatch to the next one
(an accumulated gradient, say) are the exception: there only the look of the neighbor counts, because
otherwise every microbatch would be a kind of its own, being one step farther from the first.

With `across`, meshes of the same axes look the same, and edges from one mesh to another, and into and out of
microbatches, are such exceptions, too, where not even the look of the neighbor counts: the stages in the middle of a
pipeline are of one kind, and so are all microbatches.  Whether that is right shows afterwards (`agreement.py`).
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Callable, Hashable

from mpmd_trace.ir.attributes import DictAttr
from mpmd_trace.ir.bodies import fingerprint, remembers
from mpmd_trace.ir.core import BlockArg, Op, OpResult, Region, Use, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, TransferOp, local_type
from mpmd_trace.ir.types import MeshTensorType, TensorType, Type
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.sharding.edges import SHARDING

_MOST_ROUNDS = 8


def is_scalar(value: Value) -> bool:
    """Return whether the value has no dimension that could be sharded."""
    return _has_no_dims(value.type)


@functools.cache
def _has_no_dims(type: Type) -> bool:
    inner = local_type(type)
    return not isinstance(inner, TensorType) or inner.shape == ()


def _numbers() -> Callable[[Hashable], int]:
    """Return a function that gives small numbers to hashable keys, so that comparing keys of keys stays cheap."""
    return collections.defaultdict[Hashable, int](itertools.count().__next__).__getitem__


def shardings_of(attributes: DictAttr) -> DictAttr:
    """Return what of the attributes of an argument or a result Shardy looks at."""
    return DictAttr.get({k: v for k, v in attributes.entries.items() if k.startswith("sdy.")})


def _mesh(value: Value) -> str | None:
    return value.type.mesh if isinstance(value.type, MeshTensorType) else None


def meshes_alike(function: FuncOp) -> dict[str, str]:
    """For each mesh of the topology the first one that is the same but for its name; empty where all are different."""
    topology = function.topology
    first: dict[Hashable, str] = {}
    if topology is None:
        return {}
    first_alike = {name: first.setdefault(mesh, name) for name, mesh in topology.meshes.items()}
    return first_alike if len(first) < len(first_alike) else {}


class Kinds:
    """The kinds of a function of fragments and transfers, as numbers."""

    ops: list[Op]
    op: dict[Op, int]
    value: dict[Value | int, int]  # the kind of a fixed number is that number
    #: One of the equal bodies that ops of one kind can still differ from each other in.
    body: dict[Op, Region]
    #: Whether members of a kind really have neighbors of the same kinds.
    stable: bool
    #: For each mesh the first one that looks the same.
    alike: dict[str, str]

    def __init__(self, function: FuncOp, *, across: bool = False) -> None:
        self._number = _numbers()
        self.alike = meshes_alike(function) if across else {}
        self._terminator = function.body.terminator
        self._results = [self._number(("result", shardings_of(d))) for d in function.res_attrs]
        self.ops = [op for op in function.body if op is not self._terminator]
        self._look_around()
        self._args = function.args
        for arg, attributes in zip(self._args, map(shardings_of, function.arg_attrs), strict=True):
            self.value[arg] = self._number(("scalar" if is_scalar(arg) else "argument", self.type(arg), attributes))
        self._refine()

    @staticmethod
    def apart(function: FuncOp) -> Kinds:
        """Return the kinds of a function in which every op and every value has its own."""
        kinds = Kinds.__new__(Kinds)
        terminator = function.body.terminator
        kinds.ops = [op for op in function.body if op is not terminator]
        kinds.op = {op: i for i, op in enumerate(kinds.ops)}
        values = [*function.args, *(r for op in kinds.ops for r in op.results)]
        kinds.value = {v: i for i, v in enumerate(values)}
        kinds.body, kinds.alike = {}, {}
        kinds.stable = True
        return kinds

    @property
    def has_equal_stages(self) -> bool:
        """True if fragments of different meshes are of one kind."""
        on = {(self.op[op], op.mesh) for op in self.ops if isinstance(op, FragmentOp)}
        return len({kind for kind, _ in on}) < len(on)

    def type(self, value: Value) -> Type:
        """Return the type of a value, on the first mesh that looks like its own."""
        type = value.type
        if isinstance(type, MeshTensorType) and type.mesh in self.alike:
            return type.with_mesh(self.alike[type.mesh])
        return type

    def _look_around(self) -> None:
        """Return what each op is by itself, and which microbatch it belongs to."""
        self.op, self.value, self.body = {}, {}, {}
        self._labels: dict[Op, tuple[int, ...]] = {}
        self._roles: dict[Op, tuple[int, ...]] = {}
        self._counter: dict[Op, int | None] = {}
        same = first_equal(op.body for op in self.ops if isinstance(op, FragmentOp))
        for op in self.ops:
            types = tuple([self.type(r) if self.alike else r.type for r in op.results])
            if isinstance(op, FragmentOp):
                self.body[op] = same[op.body]
                text = abstract_text(same[op.body])
                mesh = self.alike.get(op.mesh, op.mesh)
                look: Hashable = (mesh, op.in_shardings, op.out_shardings, types, text)
                self._labels[op] = result_labels(same[op.body])
                self._roles[op] = operand_labels(same[op.body])
                self._counter[op] = op.call_counter
            else:
                moves = bool(self.alike) and _mesh(op.operand(0)) != _mesh(op.results[0])
                look = ("transfer", op.attrs.get(SHARDING), types, self.type(op.operand(0)), moves)
                self._labels[op] = self._roles[op] = (0,)
                source = op.operand(0).defining_op
                self._counter[op] = None if source is None else self._counter[source]
            self.op[op] = self._number(look)
        self._look = dict(self.op)
        self._read_by: dict[Op, tuple[int, ...]] = {}
        self._results_of: dict[Hashable, tuple[int, ...]] = {}
        self._inputs = {op: self._inputs_of(op) for op in self.ops}

    def _inputs_of(self, op: Op) -> list[Value | int]:
        """Return the operands, or fixed numbers for those that come from another microbatch."""
        operands = op.operands
        result: list[Value | int] = [*operands]
        crosses = {v.op: False for v in operands if isinstance(v, OpResult)}
        for producer in crosses:
            crosses[producer] = self._crosses(producer, op)
        for i, v in enumerate(operands):
            if isinstance(v, OpResult) and crosses[v.op] and not is_scalar(v):
                source = self.type(v) if self.alike else (self._look[v.op], self._labels[v.op][v.index])
                fixed = self._number(("from", source))
                result[i] = self.value[fixed] = fixed
        return result

    def _crosses(self, producer: Op, consumer: Op) -> bool:
        """Return whether an edge leads from a microbatch to another, or from mesh to mesh where those look the same."""
        if self.alike and isinstance(consumer, TransferOp) and _mesh(consumer.operand(0)) != _mesh(consumer.results[0]):
            return True
        a, b = self._counter[producer], self._counter[consumer]
        if a != b and (self.alike or (a is not None and b is not None)):
            return True
        return self._look[producer] == self._look[consumer] and isinstance(producer, FragmentOp)

    # Refinement: a pass in program order sees everything that leads to an op, one in reverse order everything
    # that comes from it.

    def _refine(self) -> None:
        count = -1
        for _ in range(_MOST_ROUNDS):
            self._forward()
            if len(set(self.op.values())) == count:  # so ops of a kind still have readers of the same kinds
                self.stable = True
                return
            self._backward()
            count = len(set(self.op.values()))
        self.stable = False

    def _forward(self) -> None:
        number, kinds, values = self._number, self.op, self.value
        for op in self.ops:
            inputs = tuple(map(values.__getitem__, self._inputs[op]))
            kind = kinds[op] = number((kinds[op], inputs))
            key = kind, self._read_by.get(op)
            known = self._results_of.get(key)
            if known is None:
                known = self._results_of[key] = self._kinds_of_results(op, kind)
            values.update(zip(op.results, known, strict=True))

    def _kinds_of_results(self, op: Op, kind: int) -> tuple[int, ...]:
        read_by = self._read_by.get(op)
        return tuple(
            self._number(
                ("scalar", self.type(result))
                if is_scalar(result)
                else ("value", kind, label, None if read_by is None else read_by[result.index])
            )
            for result, label in zip(op.results, self._labels[op], strict=True)
        )

    def _backward(self) -> None:
        kinds = self.op
        for op in reversed(self.ops):
            readers = self._read_by[op] = tuple(map(self._readers, op.results))
            kinds[op] = self._number((kinds[op], readers))
        for arg in self._args:
            if not is_scalar(arg):
                self.value[arg] = self._number((self.value[arg], self._readers(arg)))

    def _readers(self, value: Value) -> int:
        if is_scalar(value):
            return -1
        use = value.first_use
        if use is None or use.next is None:  # as most of them
            return self._number(None if use is None else self._reader(use))
        readers = set()
        while use is not None:
            readers.add(self._reader(use))
            use = use.next
        return self._number(frozenset(readers) if len(readers) > 1 else readers.pop())

    def _reader(self, use: Use) -> tuple[int, int]:
        owner, index = use.owner, use.index
        if owner is self._terminator:
            return -1, self._results[index]
        is_fixed = isinstance(self._inputs[owner][index], int)
        if is_fixed and self.alike:
            return -2, 0
        return -2 - self._look[owner] if is_fixed else self.op[owner], self._roles[owner][index]


# What propagation can see of a body: everything but the values of constants and the places of slices.


_HIDDEN = re.compile(r'("(?:stablehlo\.constant|sdy\.constant)"\(\)|"stablehlo\.slice"\([^()]*\)) <\{.*\}>(?= )')
_HIDDEN_OPS = frozenset({"stablehlo.constant", "sdy.constant", "stablehlo.slice"})


@remembers
def abstract_text(body: Region) -> str:
    """Return the text of the body without the values of constants and the positions of slices."""
    return _HIDDEN.sub(r"\1", fingerprint(body))


@remembers
def result_labels(body: Region) -> tuple[int, ...]:
    """Per returned value a number; equal ones are computed alike, up to constants and positions of slices."""
    known: dict[Value, int] = {}
    number = _numbers()

    def of(value: Value) -> int:
        if value not in known:  # an argument, or a value of an op with regions
            known[value] = number(("other", len(known)))
        return known[value]

    for arg in body.block.args:
        known[arg] = number(("argument", arg.index))
    for op in body.block:
        props = None if op.name in _HIDDEN_OPS else frozenset(op.props.items())
        attrs = frozenset(op.attrs.items())
        unique = len(known) if op.regions else -1
        operands = tuple(of(v) for v in op.operands)
        for result in op.results:
            key = (op.name, props, attrs, operands, unique, result.index, result.type)
            known[result] = number(key)
    return tuple(known[v] if isinstance(v, BlockArg | OpResult) else -1 for v in body.returned)


_LOOK_AHEAD = 2


@remembers
def operand_labels(body: Region) -> tuple[int, ...]:
    """Per argument a number; those with equal ones are read alike for the next few ops.

    A fragment that adds up the gradients of all microbatches reads each of them at another place of a long
    chain.  All but the ends of the chain look the same from a few ops away.
    """
    number = _numbers()
    block = body.block
    terminator = block.terminator
    looks = {
        op: (op.name, frozenset(op.props.items()))
        for op in block
        if op is not terminator and op.name not in _HIDDEN_OPS
    }
    values: list[Value] = [*block.args, *(r for op in block for r in op.results)]
    labels = {v: number(v.type) for v in values}
    for _ in range(_LOOK_AHEAD):
        fresh: dict[Value, int] = {}
        for value in values:
            readers = set()
            for use in value.uses:
                op = use.owner
                if op is terminator:
                    readers.add(("return", use.index, 0))
                    continue
                results = tuple(labels.get(r, -1) for r in op.results)
                readers.add((looks.get(op, op.name), use.index, results))  # type: ignore[arg-type]
            fresh[value] = number((value.type, frozenset(readers)))
        labels = fresh
    return tuple(labels[a] for a in block.args)
