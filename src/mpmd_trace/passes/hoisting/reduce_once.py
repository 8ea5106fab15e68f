"""`mpmd-reduce-once` (ours): sums over devices that microbatches add up are finished once.  See `docs/hoisting.md`."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import cast

from mpmd_trace.ir.attributes import MeshAttr, TensorShardingAttr
from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import OpResult, Region, Value, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import OMITTED, FragmentOp, FuncOp, Module
from mpmd_trace.ir.shardings import bit_width, fully_closed, local_shape, mesh_of, mesh_symbols
from mpmd_trace.ir.types import MeshTensorType, TensorType, mesh_tensor
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.hoisting.partial_body import Growth, growth, with_parts
from mpmd_trace.passes.hoisting.partial_forms import ZERO, Form, Forms, is_zero
from mpmd_trace.passes.hoisting.partial_ops import partial_sharding, partial_type
from mpmd_trace.passes.memory.liveness import Liveness, Places
from mpmd_trace.passes.memory.reserved import Reserved, room_on
from mpmd_trace.passes.sharding.edges import (
    body_sharding,
    in_sharding,
    per_value,
    set_fragment_shardings,
    sharding_list,
)
from mpmd_trace.passes.sharding.reduced_program import is_plain_fragment, reducible


@dataclasses.dataclass(frozen=True)
class ReduceOnce(FunctionPass):
    """Reduce sums over devices once per step, instead of in each microbatch.

    Examples are gradients of weights, and losses, of a sharded batch: each device adds up its own terms, in an array
    with one part per device, and one reduction follows where the sum is read. An array stays in this form from fragment
    to fragment as long as it is used only in such sums: products, convolutions and sums over the sharded dimension,
    rows added to a table, and linear ops (widening conversions, reshapes, transposes, products with values that all
    devices have). Results may differ by rounding, since the order of additions changes. A sum is not changed if no more
    fragments add to it than read it (sums that the same fragment reads count together). With `limit`, sums that need
    most memory are not changed until the others fit: a gradient in the layout of a sharded weight is smaller than one
    with a part per device.

    Before:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%p: !a, %q: !a) -> !mpmd.mesh_tensor<"a", tensor<f32>> attributes
            {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"x"}]>], out_shardings=[<@mesh, []>]>
              (%p) {call_counter = 0 : ui32} (%u: !t) {
            %z = stablehlo.constant dense<0.000000e+00> : tensor<f32>
            %1 = stablehlo.reduce(%u init: %z) applies stablehlo.add across dimensions = [0]
                : (!t, tensor<f32>) -> tensor<f32>
            mpmd.return %1 : tensor<f32>
          } : (!a) -> !mpmd.mesh_tensor<"a", tensor<f32>>
          %2 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, []>, <@mesh, [{"x"}]>],
              out_shardings=[<@mesh, []>]> (%0, %q) {call_counter = 1 : ui32} (%s: tensor<f32>, %u: !t) {
            %z = stablehlo.constant dense<0.000000e+00> : tensor<f32>
            %1 = stablehlo.reduce(%u init: %z) applies stablehlo.add across dimensions = [0]
                : (!t, tensor<f32>) -> tensor<f32>
            %3 = stablehlo.add %s, %1 : tensor<f32>
            mpmd.return %3 : tensor<f32>
          } : (!mpmd.mesh_tensor<"a", tensor<f32>>, !a) -> !mpmd.mesh_tensor<"a", tensor<f32>>
          return %2 : !mpmd.mesh_tensor<"a", tensor<f32>>
        }

    After:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%p: !a, %q: !a) -> !mpmd.mesh_tensor<"a", tensor<f32>> attributes
            {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"x"}]>], out_shardings=[<@mesh, [{"x"}]>]>
              (%p) {call_counter = 0 : ui32} (%u: !t) {
            %z = stablehlo.constant dense<0.000000e+00> : tensor<f32>
            %2 = stablehlo.reshape %u : (!t) -> tensor<2x2xf32>
            %3 = sdy.sharding_constraint %2 <@mesh, [{"x"}, {}]> : tensor<2x2xf32>
            %4 = stablehlo.reduce(%3 init: %z) applies stablehlo.add across dimensions = [1]
                : (tensor<2x2xf32>, tensor<f32>) -> tensor<2xf32>
            %5 = sdy.sharding_constraint %4 <@mesh, [{"x"}]> : tensor<2xf32>
            mpmd.return %5 : tensor<2xf32>
          } : (!a) -> !mpmd.mesh_tensor<"a", tensor<2xf32>>
          %1 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>],
              out_shardings=[<@mesh, []>]> (%0, %q) {call_counter = 1 : ui32} (%s: tensor<2xf32>, %u: !t) {
            %z = stablehlo.constant dense<0.000000e+00> : tensor<f32>
            %2 = stablehlo.reshape %u : (!t) -> tensor<2x2xf32>
            %3 = sdy.sharding_constraint %2 <@mesh, [{"x"}, {}]> : tensor<2x2xf32>
            %4 = stablehlo.reduce(%3 init: %z) applies stablehlo.add across dimensions = [1]
                : (tensor<2x2xf32>, tensor<f32>) -> tensor<2xf32>
            %5 = sdy.sharding_constraint %4 <@mesh, [{"x"}]> : tensor<2xf32>
            %6 = stablehlo.add %s, %5 : tensor<2xf32>
            %y = stablehlo.constant dense<0.000000e+00> : tensor<f32>
            %7 = stablehlo.reduce(%6 init: %y) applies stablehlo.add across dimensions = [0]
                : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
            %8 = sdy.sharding_constraint %7 <@mesh, []> : tensor<f32>
            mpmd.return %8 : tensor<f32>
          } : (!mpmd.mesh_tensor<"a", tensor<2xf32>>, !a) -> !mpmd.mesh_tensor<"a", tensor<f32>>
          return %1 : !mpmd.mesh_tensor<"a", tensor<f32>>
        }
    """

    name = "mpmd-reduce-once"
    summary = "complete sums over devices once per step instead of once per microbatch"
    only_with = ("several devices",)
    mpmd_only = True
    entry_only = True

    limit: int = option(0, "the memory limit of a device in bytes; 0: unlimited")
    reserved: tuple[Reserved, ...] = option((), "additional bytes needed on meshes, as MESH=BYTES")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if not reducible(function):
            return False
        meshes = mesh_symbols(module)
        analysis = PartialSumAnalysis(function, meshes)
        if not analysis.any_sharded:
            return False
        analysis.solve()
        if self.limit:
            owners = dict.fromkeys(function.device_owners[fragment.mesh] for fragment in analysis.of_fragment)
            places = Places(function)
            held = {mesh: Liveness(function, mesh, meshes, places).peak() for mesh in owners}
            analysis.spill({mesh: room_on(mesh, self.limit, self.reserved) - used for mesh, used in held.items()})
        for mesh, (count, given_up) in analysis.counts().items():
            text = f"on mesh '{mesh}' {count} sums over devices are finished once per step"
            if given_up:
                if OMITTED in function.attrs:
                    raise diagnostics.fatal(function.loc, "what fits into memory depends on all microbatches")
                text += f"; {given_up} for each microbatch, because there is not enough memory for their parts"
            diagnostics.remark(function.loc, text)
        return _rewrite(analysis)


@dataclasses.dataclass(frozen=True)
class _Zero:
    """Zeros in partial form."""

    sharding: TensorShardingAttr
    type: TensorType


def _rewrite(analysis: PartialSumAnalysis) -> bool:
    """Replace the fragments that compute or read partial sums; return whether there are any."""
    if not any(axes != ZERO for axes in analysis.form.values()):
        return False
    given: dict[FragmentOp, dict[int, Form]] = {}
    zeros: dict[FragmentOp, dict[_Zero, None]] = {}
    source: dict[tuple[FragmentOp, int], tuple[FragmentOp, _Zero]] = {}
    for fragment, one in analysis.of_fragment.items():
        given[fragment] = {i: axes for i, axes in one.given.items() if axes != ZERO}
        wanted: dict[int, set[Form]] = {}
        for j, (arguments, _) in one.growth.reads.items():
            for i in sorted(arguments.difference(given[fragment])):
                wanted.setdefault(i, set()).add(one.growth.results[j])
        for i, forms in wanted.items():
            if len(forms) > 1:
                continue  # zeros of several sums over different axes: the body makes those of each
            value = fragment.operand(i)
            maker = cast(FragmentOp, cast(OpResult, value).op)
            (axes,) = forms
            sharding = partial_sharding(value, in_sharding(fragment, i), axes, one.like)
            zero = _Zero(sharding, partial_type(value, axes, one.forms.sizes))
            given[fragment][i] = axes
            zeros.setdefault(maker, {})[zero] = None
            source[fragment, i] = maker, zero
    made: dict[FragmentOp, FragmentOp] = {}
    for fragment in analysis.fragments:
        mine = list(zeros.get(fragment, {}))
        known = analysis.of_fragment.get(fragment)
        if not mine and (known is None or not (given[fragment] or known.growth.results)):
            continue
        for i in given.get(fragment, {}):
            if (fragment, i) in source:
                maker, zero = source[fragment, i]
                at = len(maker.results) + list(zeros[maker]).index(zero)
                fragment.set_operand(i, made[maker].results[at])
        made[fragment] = _replace(analysis, fragment, known, given.get(fragment, {}), mine)
    for fragment in made:
        fragment.erase()
    return True


def _replace(
    analysis: PartialSumAnalysis,
    fragment: FragmentOp,
    known: FragmentForms | None,
    given: Mapping[int, Form],
    zeros: list[_Zero],
) -> FragmentOp:
    """Insert the fragment in its new form; the old one stays, unused."""
    like = zeros[0].sharding if known is None else known.like
    of_zeros = {} if known is None else {i: axes for i, axes in known.given.items() if axes == ZERO}
    sizes = analysis.axis_sizes(like)
    grown = Growth({}, {}, {}, frozenset()) if known is None else known.growth
    listed = tuple(zero.type for zero in zeros)
    known_forms = [tuple(one.items()) for one in (of_zeros, given, grown.results)]
    key = ("with parts", *known_forms, fragment.in_shardings, grown.ops)

    def rewritten() -> Region:
        forms = analysis.forms_in(fragment, {**of_zeros, **given}, like)
        return with_parts(fragment.body, forms, grown, given, like, listed)

    body: Region = remembered(fragment.body, (*key, like, listed), rewritten)
    types = [result.type for result in fragment.results]
    shardings: dict[int, TensorShardingAttr] = {}
    for j, axes in grown.results.items():
        value = fragment.results[j]
        types[j] = mesh_tensor(fragment.mesh, partial_type(value, axes, sizes))
        shardings[j] = partial_sharding(value, per_value(fragment.out_shardings, j), axes, like)
    for zero in zeros:
        shardings[len(types)] = zero.sharding
        types.append(mesh_tensor(fragment.mesh, zero.type))
    new = cast(FragmentOp, op_like(fragment, fragment.operands, types, regions=[body]))
    new.move_before(fragment)
    if fragment.out_shardings is not None and zeros:
        closed = [fully_closed(like.mesh, zero.type.rank) for zero in zeros]
        new.props["out_shardings"] = sharding_list((*fragment.out_shardings.shardings, *closed))
    set_fragment_shardings(new, "out_shardings", shardings)
    args = fragment.body.block.args
    wanted = {i: partial_sharding(args[i], in_sharding(fragment, i), axes, like) for i, axes in given.items()}
    set_fragment_shardings(new, "in_shardings", wanted, others_open=False)
    for old, result in zip(fragment.results, new.results, strict=False):
        old.replace_all_uses_with(result)
    return new


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
        """True if a fragment has a sharding, without which there are no partial sums."""
        return bool(self._like)

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
            and value.has_uses
            and value.is_only_used_by(self._with_mesh)
        )


def _any_sharding(fragment: FragmentOp) -> TensorShardingAttr | None:
    """Return a sharding over the mesh of the fragment, if it has one."""
    for shardings in (fragment.in_shardings, fragment.out_shardings):
        if shardings is not None and shardings.shardings:
            return shardings.shardings[0]
    return None
