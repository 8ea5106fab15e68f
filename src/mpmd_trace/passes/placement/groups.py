"""Fragments of the unnamed ops of the program: one for all that a mesh does between what comes from elsewhere.

Most ops of a training step are those of its update, thousands for each mesh.  Putting them into fragments one by one,
and merging these, would give the same: here it is decided for all at once.

An op's *level* is how often a value changes hands on the way from the op to the end of the step, at most: from one mesh
to another, or between unnamed code and a named computation, call or result.  The ops of one mesh and level can be
one fragment, since whatever leaves it and comes back does so on a lower level.  Those of one fragment have in common,
too, which named computation or call needs them first, so that nothing waits for what it does not need.
As an op has the lowest level that its readers allow, it is with what reads it, as late as possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from mpmd_trace.ir.attributes import ArrayAttr, StringAttr
from mpmd_trace.ir.bodies import BodyBuilder, effective_operands
from mpmd_trace.ir.core import Block, Op, OpResult, Region, Value
from mpmd_trace.ir.ops import FuncOp, UnassignOp, local_type, make_assign, make_fragment, make_unassign
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.import_.building_blocks import INFERRED_BY, on_mesh, op_as_body
from mpmd_trace.passes.run_caches import run_cache

_INFERRED_BY = ArrayAttr.get([StringAttr.get("infer_mesh_wrap_meshless_ops")])

_bodies: dict[Hashable, Region] = run_cache()


def group_ops(function: FuncOp, meshes: Mapping[Op, str], free: Mapping[Op, object]) -> None:
    """Put pure ops of a function into fragments on their meshes.

    Args:
        function: one whose arguments are on meshes, if anything reads them.
        meshes: the mesh of each of these ops.
        free: ops without a mesh, which each fragment that reads them makes for itself.
    """
    if not meshes:
        return
    block = function.body
    places = _places(block, meshes, free)
    groups: dict[tuple[_Place, str], _Group] = {}
    for op in block:
        mesh = meshes.get(op)
        if mesh is not None:
            key = places[op], mesh
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(mesh, free)
            group.need(op)
    others = [op for i, op in enumerate(block) if places[op].before == i]
    sent = {value for op in others for value in _read(op)}.union(*(group.operands for group in groups.values()))
    waiting = deque(sorted(groups, key=lambda key: (key[0].before, -key[0].level)))
    made: dict[Value, UnassignOp] = {}
    ops: list[Op] = []
    for op in others:
        while waiting and waiting[0][0].before <= places[op].before:
            ops += groups[waiting.popleft()].fragment(sent, made)
        ops.append(op)
    kept = set(others)
    gone = [op for op in block if op not in kept]
    for op in gone:
        op.drop_all_references()
    for old, unassign in made.items():
        old.replace_all_uses_with(unassign.result)
    for op in gone:
        op.erase()
    block.reorder(ops)


def _read(op: Op) -> list[Value]:
    """Return what an op reads, also inside of its regions."""
    return effective_operands(op) if op.regions else op.operands


class _Place(NamedTuple):
    """Where an op may stand.

    `before`: the number of the first op that needs it, of those that stay in the block; for these their own.  `level`:
    how often values change hands until the end.
    """

    before: int
    level: int


def _places(block: Block, meshes: Mapping[Op, str], free: Mapping[Op, object]) -> dict[Op, _Place]:
    """Return the place of each op: what is not grouped stays, and free ops are where their readers are."""
    results: dict[Op, _Place] = {}
    #: The meshes where a free op is made (None: outside of what is grouped), with the highest level there.
    made: dict[Op, dict[str | None, int]] = {}
    ops = block.ops
    for place in range(len(ops) - 1, -1, -1):
        op = ops[place]
        here = meshes.get(op)
        use = op.results[0].first_use if here is not None and len(op.results) == 1 else None
        if use is not None and use.next is None and meshes.get(use.owner) == here:  # as nearly all
            results[op] = results[use.owner]
            continue
        readers: dict[str | None, int] = {}
        before = len(ops) - 1
        for result in op.results:
            use = result.first_use
            while use is not None:
                user = use.owner
                use = use.next
                if user.block is not block:
                    outer = user.ancestor_in(block)
                    assert outer is not None
                    user = outer
                first, level = results[user]
                before = min(before, first)
                for mesh, above in made[user].items() if user in made else ((meshes.get(user), level),):
                    if above > readers.get(mesh, -1):
                        readers[mesh] = above
        level = max([above if mesh == here else above + 1 for mesh, above in readers.items()], default=0)
        if op in free:
            made[op] = readers
        if here is None and (op not in free or None in readers):  # it stays where it is
            before = place
        results[op] = _Place(before, level)
    return results


class _Group:
    """The ops of one mesh and level."""

    def __init__(self, mesh: str, free: Mapping[Op, object]) -> None:
        self.mesh = mesh
        #: The values that come from outside, as numbered.
        self.operands: list[Value] = []
        self._free = free
        self._ops: list[Op] = []
        self._key: list[Hashable] = []
        #: Operands count down from -1, results up from 0.
        self._number: dict[Value, int] = {}
        self._results = 0

    def need(self, op: Op) -> None:
        """Have the op in the group, after the free ops that it is made of."""
        numbers, free = self._number, self._free
        values = _read(op)
        for value in values:
            if value not in numbers:
                maker = value.defining_op
                if maker is not None and maker in free:
                    self._need_free(maker)
        self._add(op, values)

    def _need_free(self, op: Op) -> None:
        """Have a free op in the group, and those that it is made of before it."""

        def missing(op: Op) -> list[Op]:
            makers = [value.defining_op for value in _read(op) if value not in self._number]
            return [maker for maker in makers if maker is not None and maker in self._free]

        for one in postorder([op], missing):
            self._add(one, _read(one))

    def _add(self, op: Op, values: list[Value]) -> None:
        numbers, key = self._number, self._key
        key.append(op_as_body(op, values) if op.regions else op.name)
        if op.props or op.attrs:
            key += (frozenset(op.props.items()), frozenset(op.attrs.items()))
        for value in values:
            number = numbers.get(value)
            if number is None:
                self.operands.append(value)
                number = numbers[value] = -len(self.operands)
            key.append(number)
        self._ops.append(op)
        for result in op.results:
            key.append(result.type)
            numbers[result] = self._results
            self._results += 1

    def fragment(self, sent: set[Value], made: dict[Value, UnassignOp]) -> list[Op]:
        """Return the fragment, with the assigns of its operands before it, and the unassigns of its results behind it.

        Args:
            sent: the values that are needed outside of the group that makes them.
            made: the unassigns of results of fragments, by what they were; those of this one are added.
        """
        results = [result for op in self._ops if op not in self._free for result in op.results if result in sent]
        if not results:
            return []
        ops: list[Op] = []
        operands = [self._here(value, made, ops) for value in self.operands]
        types = [on_mesh(result.type, self.mesh) for result in results]
        loc = self._ops[-1].loc
        body = self._body(results)
        fragment = make_fragment(self.mesh, operands, types, body, attrs={INFERRED_BY: _INFERRED_BY}, loc=loc)
        ops.append(fragment)
        for old, new in zip(results, fragment.results, strict=True):
            made[old] = make_unassign(new, loc=old.location)
            ops.append(made[old])
        return ops

    def _here(self, value: Value, made: Mapping[Value, UnassignOp], ops: list[Op]) -> Value:
        """Return a value on the mesh of the group; an assign that it takes is appended to `ops`."""
        target = on_mesh(value.type, self.mesh)
        assert isinstance(target, MeshTensorType)
        maker = made.get(value) or value.defining_op
        if isinstance(maker, UnassignOp):
            if maker.operand(0).type is target:
                return maker.operand(0)
            value = maker.result
        assign = make_assign(value, target)
        ops.append(assign)
        return assign.result

    def _body(self, results: list[OpResult]) -> Region:
        types = [local_type(value.type) for value in self.operands]
        key = (*self._key, *types, *[self._number[result] for result in results])
        output = _bodies.get(key)
        if output is None:
            builder = BodyBuilder()
            mapping = {value: builder.arg(local_type(value.type), value.location) for value in self.operands}
            for op in self._ops:
                builder.add(op, mapping)
            output = _bodies[key] = builder.finish([mapping[result] for result in results])
        return output
