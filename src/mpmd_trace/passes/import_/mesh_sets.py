"""Mesh sets: on which meshes a value is needed, and on which it can be without a new transfer.

A set is a `MeshesWithOriginsAttr`: mesh names with the labels of what put them there, both ordered.  The
attributes are interned, so set operations are remembered functions of two attributes.  `None` is the set of
a value that nothing constrains ("unspecified": any mesh); the empty set means nowhere.

    mpmd.use_set   needed on (flows backwards, by union);       missing = empty
    mpmd.src_set   can be on (flows forwards, by intersection); missing = unspecified
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TypeVar

from mpmd_trace.ir.attributes import ArrayAttr, Attribute, DictAttr, MeshesWithOriginsAttr
from mpmd_trace.ir.core import Op, OpResult, Value
from mpmd_trace.ir.ops import AssignOp, CallOp, ForOp, FuncOp, Module, UnassignOp
from mpmd_trace.passes.import_.building_blocks import all_calls

USE_SET = "mpmd.use_set"
SRC_SET = "mpmd.src_set"
#: Stands for all meshes; no pass creates it.
WILDCARD = "*"
#: Ops of which the set alone does not say what a use by them needs.
_ASKED_SPECIALLY = frozenset({"mpmd.broadcast", "mpmd.reduce", "mpmd.unassign", "mpmd.call", "mpmd.for", "func.return"})
#: Values from inputs that JAX broadcasts are the last choice.
_BROADCAST_IN = "broadcast_in"

MeshSet = MeshesWithOriginsAttr
Stored = TypeVar("Stored", MeshSet, MeshSet | None)
EMPTY: MeshSet = MeshesWithOriginsAttr.get({})


# Sets.


def _make(meshes: Mapping[str, Iterable[str]], wildcard: Iterable[str] = ()) -> MeshSet:
    wild = tuple(wildcard)
    return MeshSet.get({**meshes, WILDCARD: wild} if wild else meshes)


def _split(mesh_set: MeshSet) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    meshes = dict(mesh_set.meshes)
    return meshes, meshes.pop(WILDCARD, ())


def _joined(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *second]))


@functools.lru_cache(maxsize=1 << 16)
def insert(mesh_set: MeshSet, mesh: str, label: str | None = None) -> MeshSet:
    """Return the set with `mesh` (new meshes go to the end) and, for it, `label`."""
    labels = () if label is None else (label,)
    meshes, wildcard = _split(mesh_set)
    meshes[mesh] = _joined(meshes.get(mesh, ()), labels)
    return _make(meshes, wildcard)


@functools.lru_cache(maxsize=1 << 16)
def union(a: MeshSet, b: MeshSet) -> MeshSet:
    """Return `a` with every entry of `b` inserted, in the order of `b`."""
    if a is b or b is EMPTY:
        return a
    left, left_wild = _split(a)
    right, right_wild = _split(b)
    for mesh, labels in right.items():
        left[mesh] = _joined(left.get(mesh, ()), labels)
    return _make(left, _joined(left_wild, right_wild))


@functools.lru_cache(maxsize=1 << 16)
def intersect(a: MeshSet | None, b: MeshSet | None) -> MeshSet | None:
    """Return the meshes of `a` that are in `b`, with the labels of both; unspecified sets do not constrain."""
    if b is None:
        return a
    if a is None:
        return b
    left, left_wild = _split(a)
    right, right_wild = _split(b)
    kept: dict[str, tuple[str, ...]] = {}
    for mesh, labels in left.items():
        if mesh in right:
            kept[mesh] = _joined(labels, right[mesh])
        elif right_wild:
            kept[mesh] = _joined(labels, right_wild)
    if left_wild:
        for mesh, labels in right.items():
            if mesh not in left:
                kept[mesh] = _joined(labels, left_wild)
    return _make(kept, _joined(left_wild, right_wild) if left_wild and right_wild else ())


def names(mesh_set: MeshSet) -> tuple[str, ...]:
    """Return the names of the meshes, in the order of the set."""
    return tuple(m for m in mesh_set.meshes if m != WILDCARD)


@functools.lru_cache(maxsize=1 << 16)
def pick(mesh_set: MeshSet, preferred: MeshSet = EMPTY) -> str | None:
    """One mesh of the set, of those that `preferred` has if there are any; None for the empty set.

    Meshes that are there only because of a broadcast come last; among equals the smallest name wins.
    """
    meshes, wildcard = _split(mesh_set)
    candidates = [m for m in names(preferred) if wildcard or m in meshes] or list(meshes)
    if not candidates:
        return None
    plain = [m for m in candidates if _BROADCAST_IN not in meshes.get(m, wildcard)]
    return min(plain or candidates, key=str.encode)


def same_meshes(a: MeshSet, b: MeshSet) -> bool:
    """Return whether the two sets name the same meshes, whatever the order and the labels."""
    return set(a.meshes) == set(b.meshes)


def is_subset(a: MeshSet, b: MeshSet) -> bool:
    """Return whether every mesh of `a` is in `b`."""
    return WILDCARD in b.meshes or all(m in b.meshes for m in a.meshes)


@functools.lru_cache(maxsize=1 << 16)
def relabeled(result: MeshSet, label: str) -> MeshSet:
    """Return the meshes of the set, each with this label alone."""
    return MeshSet.get(dict.fromkeys(names(result), (label,)))


def cast_set(attribute: Attribute | None) -> MeshSet | None:
    return attribute if isinstance(attribute, MeshesWithOriginsAttr) else None


# Sets of ops.


def use_of_op(op: Op) -> MeshSet:
    """Return the meshes on which results of the op are needed."""
    return cast_set(op.attrs.get(USE_SET)) or EMPTY


def src_of_op(op: Op) -> MeshSet | None:
    """Return the meshes on which the op can run without a new transfer."""
    return cast_set(op.attrs.get(SRC_SET))


def clear_sets(op: Op) -> None:
    op.attrs.pop(USE_SET, None)
    op.attrs.pop(SRC_SET, None)


def without_sets(attributes: DictAttr) -> DictAttr:
    """Return the attributes of an argument or result without its sets."""
    return attributes.without(USE_SET).without(SRC_SET) if attributes.entries else attributes


#: By name: all ops of a program are asked, several times.
_meshless: dict[str, bool] = {}


def is_meshless(op: Op) -> bool:
    """Return whether the op still has to be given a mesh.

    Callers do not look into fragments, so that the condition "not inside a fragment" is theirs.
    """
    if op.successors:
        return False
    result = _meshless.get(op.name)
    if result is None:
        result = _meshless[op.name] = not (
            op.name.startswith("mpmd.") or op.is_terminator or op.name in ("func.func", "builtin.module")
        )
    return result


def is_terminal(op: Op) -> bool:
    """Return whether the analysis of what is needed where ends at the op."""
    return op.name in ("mpmd.broadcast", "mpmd.reduce")


# Sets of functions and loops.


class _Boundary:
    """The sets of one function's arguments and results, read once and written back at the end."""

    __slots__ = ("arg_src", "arg_use", "changed", "function", "is_entry", "result_use")

    def __init__(self, function: FuncOp) -> None:
        self.function = function
        self.is_entry = function.is_entry_point
        args, results = function.arg_attrs, function.res_attrs
        self.arg_use = [cast_set(d.entries.get(USE_SET)) or EMPTY for d in args]
        self.arg_src = [cast_set(d.entries.get(SRC_SET)) for d in args]
        self.result_use = [cast_set(d.entries.get(USE_SET)) or EMPTY for d in results]
        self.changed = False

    def flush(self) -> None:
        if not self.changed:
            return
        self.changed = False

        def updated(old: DictAttr, name: str, value: MeshSet | None) -> DictAttr:
            if value is None or old.entries.get(name) is value:
                return old
            return old.with_(name, value)

        def with_uses(dicts: list[DictAttr], uses: list[MeshSet]) -> list[DictAttr]:
            pairs = zip(dicts, uses, strict=True)
            return [updated(old, USE_SET, use if use.meshes else None) for old, use in pairs]

        function = self.function
        args = zip(with_uses(function.arg_attrs, self.arg_use), self.arg_src, strict=True)
        function.set_all_arg_attrs([updated(old, SRC_SET, src) for old, src in args])
        function.set_all_res_attrs(with_uses(function.res_attrs, self.result_use))

    def store(self, sets: list[Stored], index: int, stored: Stored) -> None:
        """Change one of the sets."""
        if sets[index] is not stored:
            sets[index] = stored
            self.changed = True


class MeshSets:
    """The mesh sets of a module.

    Those of ops are attributes at all times; those of function arguments and results are kept here while a
    pass runs and become attributes by `flush`.
    """

    def __init__(self, module: Module) -> None:
        self.functions: dict[str, FuncOp] = {f.sym_name: f for f in module.functions}
        self.module = module
        self._boundaries: dict[FuncOp, _Boundary] = {}
        self._calls: dict[str, list[CallOp]] | None = None
        self._called: dict[CallOp, _Boundary | None] = {}

    def used_calls(self, callee: FuncOp) -> list[CallOp]:
        """Return the calls of `callee` that have a used result, in module order (calls made later are not seen)."""
        if self._calls is None:
            self._calls = {}
            for call in all_calls(self.module):
                self._calls.setdefault(call.callee, []).append(call)
        return [call for call in self._calls.get(callee.sym_name, []) if call.has_uses]

    def boundary(self, function: FuncOp) -> _Boundary:
        result = self._boundaries.get(function)
        if result is None:
            result = self._boundaries[function] = _Boundary(function)
        return result

    def callee(self, call: CallOp) -> FuncOp | None:
        """Return the function that is called, if it has a body."""
        callee = self.functions.get(call.callee)
        return None if callee is None or callee.is_declaration else callee

    def boundary_of(self, call: CallOp) -> _Boundary | None:
        """Return the sets of the function that is called, if it has a body."""
        try:
            return self._called[call]
        except KeyError:
            callee = self.callee(call)
            result = self._called[call] = None if callee is None else self.boundary(callee)
            return result

    def flush(self) -> bool:
        """Write the sets of function arguments and results; says whether any changed."""
        changed = False
        for boundary in self._boundaries.values():
            changed = changed or boundary.changed
            boundary.flush()
        return changed

    # Any value.

    def src_of(self, value: Value) -> MeshSet | None:
        """Return the meshes on which `value` can be without a new transfer; None: anywhere."""
        if isinstance(value, OpResult) and type(value.op) is Op:  # nearly all ops
            return src_of_op(value.op)
        value = self.origin_of(value)
        if isinstance(value, OpResult):
            return None if isinstance(value.op, AssignOp) else src_of_op(value.op)
        block = value.block
        owner = None if block is None else block.parent_op
        if isinstance(owner, FuncOp):
            return self.boundary(owner).arg_src[value.index]
        if isinstance(owner, ForOp):
            return loop_set(owner, value.index, SRC_SET)
        return None

    def origin_of(self, value: Value) -> Value:
        """Return the value inside the callee or the loop body that a result of a call or a loop stands for."""
        while isinstance(value, OpResult):
            if isinstance(value.op, CallOp):
                callee = self.callee(value.op)
                if callee is None:
                    break
                value = callee.body.terminator.operand(value.index)
            elif isinstance(value.op, ForOp):
                value = value.op.body.block.terminator.operand(value.index)
            else:
                break
        return value

    def use_of(self, value: Value) -> MeshSet:
        """Return the use set that is stored for `value`: of its op, of the argument, or of the callee's result."""
        if isinstance(value, OpResult):
            if isinstance(value.op, CallOp):
                callee = self.callee(value.op)
                return EMPTY if callee is None else self.boundary(callee).result_use[value.index]
            return use_of_op(value.op)
        block = value.block
        owner = None if block is None else block.parent_op
        if isinstance(owner, FuncOp):
            return self.boundary(owner).arg_use[value.index]
        if isinstance(owner, ForOp):
            return loop_set(owner, value.index, USE_SET) or EMPTY
        return EMPTY

    def needed(self, value: Value) -> MeshSet:
        """Return the meshes needed by the uses of `value`, from the sets of its users, newest use first."""
        result = EMPTY
        use = value.first_use
        if use is None:
            return result
        block = value.block
        broadcast = isinstance(value, OpResult) and value.op.name == "mpmd.broadcast"
        while use is not None:
            user = use.owner
            if user.block is block and user.name not in _ASKED_SPECIALLY:
                needed = user.attrs.get(USE_SET)
            else:
                needed = self._needed_by(user, use.index, block, broadcast)
            if needed is not result and isinstance(needed, MeshSet):
                result = union(result, needed) if result.meshes else needed
            use = use.next
        return result

    def _needed_by(self, user: Op, index: int, block: object, of_broadcast: bool) -> MeshSet:
        if isinstance(user, CallOp) and user.block is block:
            boundary = self.boundary_of(user)
            return EMPTY if boundary is None else boundary.arg_use[index]
        if is_terminal(user) and not of_broadcast:
            return EMPTY
        if isinstance(user, UnassignOp):
            return EMPTY
        if user.block is not block:
            around: Op | None = user
            while around is not None and around.block is not block:
                around = around.parent_op
            return EMPTY if around is None else use_of_op(around)
        if user.name == "func.return":
            function = user.parent_op
            if isinstance(function, FuncOp) and function.is_mpmd:
                boundary = self.boundary(function)
                if not boundary.is_entry:
                    return boundary.result_use[index]
        if isinstance(user, ForOp):
            return loop_set(user, index, USE_SET) or EMPTY
        return use_of_op(user)

    def needed_by_results(self, op: Op) -> MeshSet:
        if len(op.results) == 1:
            return self.needed(op.results[0])
        results = EMPTY
        for result in op.results:
            results = union(results, self.needed(result))
        return results


def loop_set(loop: ForOp, index: int, name: str) -> MeshSet | None:
    """Return a set of argument `index` of the loop body."""
    attributes = loop.attrs.get("arg_attrs")
    if not isinstance(attributes, ArrayAttr) or index >= len(attributes.elements):
        return None
    entry = attributes.elements[index]
    return cast_set(entry.entries.get(name)) if isinstance(entry, DictAttr) else None


def set_loop_set(loop: ForOp, index: int, name: str, value: MeshSet) -> None:
    """Set a set of argument `index` of the loop body."""
    attributes = loop.attrs.get("arg_attrs")
    count = len(loop.body.block.args)
    entries = list(attributes.elements) if isinstance(attributes, ArrayAttr) else [DictAttr.get({})] * count
    old = entries[index]
    assert isinstance(old, DictAttr)
    entries[index] = old.with_(name, value)
    loop.attrs["arg_attrs"] = ArrayAttr.get(entries)
