"""Which values microbatches may carry as partial sums, one for each device, and finish once."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import cast

from mpmd_trace.ir.attributes import MeshAttr, TensorShardingAttr
from mpmd_trace.ir.core import OpResult, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp
from mpmd_trace.ir.shardings import bit_width, local_shape, mesh_of
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.hoisting.partial_body import Growth, growth
from mpmd_trace.passes.hoisting.partial_forms import ZERO, Form, Forms, is_zero
from mpmd_trace.passes.hoisting.partial_ops import partial_sharding, partial_type
from mpmd_trace.passes.sharding.edges import body_sharding, per_value
from mpmd_trace.passes.sharding.reduced_program import is_plain_fragment

__all__ = ["FragmentForms", "PartialSumAnalysis"]


@dataclasses.dataclass(frozen=True)
class FragmentForms:
    """The partial forms of a fragment: of its operands, in its body, of its results; and a sharding over its mesh."""

    given: dict[int, Form]
    forms: Forms
    growth: Growth
    like: TensorShardingAttr


class PartialSumAnalysis:
    """Finds the chains of values that fragments pass to each other as partial sums, and that pay.

    Forms are propagated through the fragments in order.  A chain that does not pay is excluded, which may take the
    reason away from others, so `solve` repeats that until nothing more is excluded.
    """

    def __init__(self, function: FuncOp, meshes: Mapping[str, MeshAttr]) -> None:
        self.symbols = dict(meshes)
        self.owners = function.device_owners
        self.fragments = [op for op in function.body if is_plain_fragment(op)]
        #: A sharding over each mesh, for the fragments there that have none of their own.
        self._like = {op.mesh: like for op in reversed(self.fragments) if (like := _any_sharding(op)) is not None}
        self._with_mesh = {op for op in self.fragments if op.mesh in self._like}
        self.excluded: set[Value] = set()
        #: The form of each value that is carried as partial sums, or is zero.
        self.form: dict[Value, Form] = {}
        self.of_fragment: dict[FragmentOp, FragmentForms] = {}
        #: The chains, as a union-find forest.
        self._parent: dict[Value, Value] = {}
        #: How many chains of a mesh were excluded for their memory.
        self._spilled: dict[str, int] = {}
        self._memo: dict[Hashable, tuple[Forms, Growth]] = {}

    @property
    def any_sharded(self) -> bool:
        """Whether a fragment has a sharding, without which there are no partial sums."""
        return bool(self._like)

    def meshes(self) -> list[str]:
        """Return the meshes of the fragments that were analyzed, in their order."""
        return list(dict.fromkeys(fragment.mesh for fragment in self.of_fragment))

    def solve(self) -> None:
        """Exclude chains that do not pay until all that are left do."""
        while excluded := self._propagate():
            self.excluded |= excluded

    def spill(self, room: Mapping[str, float]) -> None:
        """Exclude the chains that need most memory until the others fit into the bytes left on each mesh.

        Meshes that share devices count as the first of them.
        """
        while roots := self._too_large(room):
            self.excluded.update(value for value in self.form if self._root(value) in roots)
            for root in roots:
                mesh = cast(MeshTensorType, root.type).mesh
                self._spilled[mesh] = self._spilled.get(mesh, 0) + 1
            self.solve()

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return for each mesh the number of chains, and of those that were excluded for their memory."""
        roots = {self._root(value): value.type for value, axes in self.form.items() if axes != ZERO}
        counts = dict.fromkeys(self._spilled, 0)
        for type in roots.values():
            mesh = cast(MeshTensorType, type).mesh
            counts[mesh] = counts.get(mesh, 0) + 1
        return {mesh: (count, self._spilled.get(mesh, 0)) for mesh, count in counts.items()}

    def forms_in(self, fragment: FragmentOp, given: Mapping[int, Form], like: TensorShardingAttr) -> Forms:
        """Return the forms of the values in the body of a fragment, whose operands have the forms `given`."""
        block = fragment.body.block
        forms: dict[Value, Form] = {block.args[i]: axes for i, axes in given.items()}
        return Forms(block.ops, forms, functools.partial(body_sharding, fragment), self.axis_sizes(like))

    def axis_sizes(self, like: TensorShardingAttr) -> dict[str, int]:
        """Return the sizes of the axes of the mesh of a sharding."""
        mesh = mesh_of(like, self.symbols)
        return {} if mesh is None else dict(mesh.axes)

    def _propagate(self) -> set[Value]:
        """Find the chains of what is not excluded; return the values of those that do not pay."""
        self.form.clear()
        self.of_fragment.clear()
        self._parent.clear()
        for fragment in self.fragments:
            self._visit(fragment)
        grows: list[tuple[Value, FragmentOp]] = []
        ends: list[tuple[Value, FragmentOp]] = []
        value: Value
        for fragment, known in self.of_fragment.items():
            for j, (arguments, is_sum) in known.growth.reads.items():
                value = fragment.results[j]
                for i in arguments:
                    if known.given.get(i, ZERO) != ZERO:
                        self._union(value, fragment.operand(i))
                grows += [(value, fragment)] * is_sum
            for i, is_sum in known.growth.ends.items():
                ends.append((fragment.operand(i), fragment))
                grows += ends[-1:] * is_sum
        # What several fragments read finished (a norm and an update) is finished where it is computed, once.
        count = collections.Counter(value for value, _ in ends)
        if several := {value for value in count if count[value] > 1}:
            return several
        grown, ended = self._by_chain(grows), self._by_chain(ends)
        # Chains that end in the same fragment are one reduction there, such as losses that are added up at the end.
        growing: dict[frozenset[FragmentOp], set[FragmentOp]] = {}
        for root, where in ended.items():
            growing.setdefault(frozenset(where), set()).update(grown.get(root, ()))
        unprofitable = set()
        for value, axes in self.form.items():
            ends_at = frozenset(ended.get(self._root(value), ()))
            if axes != ZERO and len(growing.get(ends_at, set())) <= max(1, len(ends_at)):
                unprofitable.add(value)
        return unprofitable

    def _by_chain(self, uses: Iterable[tuple[Value, FragmentOp]]) -> dict[Value, set[FragmentOp]]:
        of: dict[Value, set[FragmentOp]] = {}
        for value, fragment in uses:
            of.setdefault(self._root(value), set()).add(fragment)
        return of

    def _too_large(self, room: Mapping[str, float]) -> dict[Value, None]:
        """Return the roots of the chains that need most memory, without which the others fit on each mesh."""
        needs: dict[str, dict[Value, float]] = {}
        for value, axes in self.form.items():
            if axes != ZERO:
                owner = self.owners[cast(MeshTensorType, value.type).mesh]
                chains = needs.setdefault(owner, {})
                root = self._root(value)
                chains[root] = max(chains.get(root, 0.0), self._more_bytes(value, axes))
        roots: dict[Value, None] = {}
        for owner, chains in needs.items():
            left = sum(chains.values())
            for root in sorted(chains, key=chains.__getitem__, reverse=True):
                if left <= room[owner]:
                    break
                left -= chains[root]
                roots[root] = None
        return roots

    def _more_bytes(self, value: Value, axes: Form) -> float:
        fragment = cast(OpResult, value).op
        assert isinstance(fragment, FragmentOp)
        known = self.of_fragment[fragment]
        mesh = mesh_of(known.like, self.symbols)
        own, parts = per_value(fragment.out_shardings, value.index), partial_type(value, axes, known.forms.sizes)
        after = math.prod(local_shape(parts, partial_sharding(value, own, axes, known.like), mesh))
        before = math.prod(local_shape(cast(MeshTensorType, value.type).tensor, own, mesh))
        return (after - before) * bit_width(parts.element) / 8

    def _root(self, value: Value) -> Value:
        parent = self._parent
        while (above := parent.get(value)) is not None:
            parent[value] = value = parent.get(above, above)  # shortens the path on the way
        return value

    def _union(self, a: Value, b: Value) -> None:
        first, second = self._root(a), self._root(b)
        if first is not second:
            self._parent[second] = first

    def _visit(self, fragment: FragmentOp) -> None:
        allowed = frozenset(r.index for r in fragment.results if self._may_be_partial(r))
        body = fragment.body
        for j in allowed:
            if is_zero(body.returned[j].defining_op):
                self.form[fragment.results[j]] = ZERO
        like = _any_sharding(fragment) or self._like.get(fragment.mesh)
        if like is None:
            return
        count = len(body.block.args)
        given = {i: self.form[v] for i, v in enumerate(fragment.operands[:count]) if v in self.form}
        key = (body, tuple(given.items()), fragment.in_shardings, allowed, like)
        if key not in self._memo:
            forms = self.forms_in(fragment, given, like)
            self._memo[key] = forms, growth(body, forms, given, allowed)
        forms, new = self._memo[key]
        self.of_fragment[fragment] = FragmentForms(given, forms, new, like)
        for j, axes in new.results.items():
            self.form[fragment.results[j]] = axes

    def _may_be_partial(self, value: Value) -> bool:
        """Return whether only fragments read the value, and it is not excluded."""
        return (
            value not in self.excluded
            and isinstance(value.type, MeshTensorType)
            and value.type.memory_kind is None
            and any(True for _ in value.uses)
            and all(user in self._with_mesh for user in value.users)
        )


def _any_sharding(fragment: FragmentOp) -> TensorShardingAttr | None:
    """Return a sharding over the mesh of the fragment, if it has one."""
    for shardings in (fragment.in_shardings, fragment.out_shardings):
        if shardings is not None and shardings.shardings:
            return shardings.shardings[0]
    return None
