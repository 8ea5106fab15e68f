"""`mpmd-reduce-once` (ours): sums over devices that microbatches add up are finished once.  See `docs/hoisting.md`."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar, cast

from mpmd_trace.ir.attributes import MeshAttr, TensorShardingAttr
from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import OpResult, Region, Value, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.shardings import bit_width, fully_closed, local_shape, mesh_of, mesh_symbols
from mpmd_trace.ir.types import MeshTensorType, TensorType, mesh_tensor
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.hoisting.partial_body import Growth, growth, with_parts
from mpmd_trace.passes.hoisting.partial_forms import ZERO, Form, Forms, is_zero
from mpmd_trace.passes.hoisting.partial_ops import partial_sharding, partial_type
from mpmd_trace.passes.memory.liveness import Liveness
from mpmd_trace.passes.memory.reserved import Reserved, room_on
from mpmd_trace.passes.sharding.edges import body_sharding, in_sharding, per_value, set_fragment_sharding, sharding_list
from mpmd_trace.passes.sharding.reduction import is_plain_fragment, reducible

__all__ = ["ReduceOnce"]


@dataclasses.dataclass(frozen=True)
class ReduceOnce(FunctionPass):
    """Sums over devices to which microbatches add are finished by one reduction, where they are read.

    That are gradients of weights and losses of a batch that is sharded: each device adds up what it has, in an array
    with a part for each device.  An array is carried in this form from fragment to fragment as long as nothing but such
    sums is made of it: products, convolutions and sums over the sharded dimension, rows added to a table, and what is
    linear in them (widening conversions, reshapes, transposes, products with values that all devices have).  Rounding
    may differ, since the order of additions does.  Sums stay that no more fragments add to than finish them, those that
    the same fragment finishes taken together, and, with `limit`, those that need most memory until the others fit: a
    gradient in the layout of a sharded weight is smaller than one with a part for each device.

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

    name: ClassVar[str] = "mpmd-reduce-once"
    summary: ClassVar[str] = "finish sums over devices once, not for each microbatch"
    mpmd_only: ClassVar[bool] = True
    entry_only: ClassVar[bool] = True

    limit: int = option(0, "the bytes of memory of a device; 0: as many as are needed")
    reserved: tuple[Reserved, ...] = option((), "bytes that are needed besides, as MESH=BYTES")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if not reducible(function):
            return False
        meshes = mesh_symbols(module)
        chains = _Chains(function, meshes)
        if not chains.any_sharded:
            return False
        while chains.learn():
            pass
        if self.limit:
            held = {mesh: max(Liveness(function, mesh, meshes).profile()) for mesh in chains.meshes()}
            while chains.shrink({mesh: room_on(mesh, self.limit, self.reserved) - used for mesh, used in held.items()}):
                while chains.learn():
                    pass
        for mesh, (count, given_up) in chains.counts().items():
            text = f"on mesh '{mesh}' {count} sums over devices are finished once per step"
            if given_up:
                text += f"; {given_up} for each microbatch, for there is no memory for their parts"
            diagnostics.remark(function.loc, text)
        return chains.rewrite()


@dataclasses.dataclass(frozen=True)
class _Fragment:
    """What is known of a fragment: a sharding over its mesh, and the partial forms in its body."""

    given: dict[int, Form]
    forms: Forms
    growth: Growth
    like: TensorShardingAttr


class _Chains:
    """Values that fragments hand on to each other in partial form."""

    def __init__(self, function: FuncOp, meshes: Mapping[str, MeshAttr]) -> None:
        self.block = function.body
        self.symbols = dict(meshes)
        self.fragments = [op for op in function.body if is_plain_fragment(op)]
        #: A sharding over each mesh, for the fragments there that have none of their own.
        self._like = {op.mesh: like for op in reversed(self.fragments) if (like := _any_sharding(op)) is not None}
        self._known = {op for op in self.fragments if op.mesh in self._like}
        self.banned: set[Value] = set()
        self.form: dict[Value, Form] = {}
        self.found: dict[FragmentOp, _Fragment] = {}
        self._chain: dict[Value, Value] = {}
        #: How many chains of a mesh were given up for their memory.
        self._too_large: dict[str, int] = {}
        self._memo: dict[Hashable, tuple[Forms, Growth]] = {}

    @property
    def any_sharded(self) -> bool:
        """Whether a fragment has a sharding, without which nothing is in parts."""
        return bool(self._like)

    def meshes(self) -> list[str]:
        return list(dict.fromkeys(fragment.mesh for fragment in self.found))

    # Which values.

    def learn(self) -> bool:
        """Find the chains; says whether some were given up, so that it has to be done again."""
        self.form.clear()
        self.found.clear()
        self._chain.clear()
        for fragment in self.fragments:
            self._learn(fragment)
        grows: list[tuple[Value, FragmentOp]] = []
        ends: list[tuple[Value, FragmentOp]] = []
        value: Value
        for fragment, one in self.found.items():
            for j, (arguments, is_sum) in one.growth.reads.items():
                value = fragment.results[j]
                for i in arguments:
                    if one.given.get(i, ZERO) != ZERO:
                        self._join(value, fragment.operand(i))
                grows += [(value, fragment)] * is_sum
            for i, is_sum in one.growth.ends.items():
                ends.append((fragment.operand(i), fragment))
                grows += ends[-1:] * is_sum
        # What several fragments read finished (a norm and an update) is finished where it is made, once.
        count = collections.Counter(value for value, _ in ends)
        several = {value for value in count if count[value] > 1}
        if several:
            self.banned |= several
            return True
        grown, ended = self._by_chain(grows), self._by_chain(ends)
        # Chains that end in the same fragment are one reduction there, such as losses that are added up at the end.
        together: dict[frozenset[FragmentOp], set[FragmentOp]] = {}
        for root, where in ended.items():
            together.setdefault(frozenset(where), set()).update(grown.get(root, ()))
        given_up = set()
        for value, axes in self.form.items():
            root = self._root(value)
            ends_at = frozenset(ended.get(root, ()))
            if axes != ZERO and len(together.get(ends_at, set())) <= max(1, len(ends_at)):
                given_up.add(value)
        self.banned |= given_up
        return bool(given_up)

    def _by_chain(self, found: Iterable[tuple[Value, FragmentOp]]) -> dict[Value, set[FragmentOp]]:
        of: dict[Value, set[FragmentOp]] = {}
        for value, fragment in found:
            of.setdefault(self._root(value), set()).add(fragment)
        return of

    def shrink(self, room: Mapping[str, float]) -> bool:
        """Give up the chain that needs most memory, on a mesh where there is not enough; says whether it did."""
        needs: dict[str, dict[Value, float]] = {}
        for value, axes in self.form.items():
            if axes != ZERO:
                mesh = cast(MeshTensorType, value.type).mesh
                chains = needs.setdefault(mesh, {})
                root = self._root(value)
                chains[root] = max(chains.get(root, 0.0), self._more_bytes(value, axes))
        for mesh, chains in needs.items():
            if sum(chains.values()) > room[mesh]:
                worst = max(chains, key=lambda root: chains[root])
                self.banned |= {value for value in self.form if self._root(value) is worst}
                self._too_large[mesh] = self._too_large.get(mesh, 0) + 1
                return True
        return False

    def counts(self) -> dict[str, tuple[int, int]]:
        """For each mesh the number of sums, and of those that were given up for their memory."""
        roots = {self._root(value): value.type for value, axes in self.form.items() if axes != ZERO}
        found = dict.fromkeys(self._too_large, 0)
        for type in roots.values():
            mesh = cast(MeshTensorType, type).mesh
            found[mesh] = found.get(mesh, 0) + 1
        return {mesh: (count, self._too_large.get(mesh, 0)) for mesh, count in found.items()}

    def _more_bytes(self, value: Value, axes: Form) -> float:
        fragment = cast(OpResult, value).op
        assert isinstance(fragment, FragmentOp)
        one = self.found[fragment]
        mesh = mesh_of(one.like, self.symbols)
        own, parts = per_value(fragment.out_shardings, value.index), partial_type(value, axes, one.forms.sizes)
        after = math.prod(local_shape(parts, partial_sharding(value, own, axes, one.like), mesh))
        before = math.prod(local_shape(cast(MeshTensorType, value.type).tensor, own, mesh))
        return (after - before) * bit_width(parts.element) / 8

    def _root(self, value: Value) -> Value:
        while value in self._chain:
            value = self._chain[value]
        return value

    def _join(self, a: Value, b: Value) -> None:
        first, second = self._root(a), self._root(b)
        if first is not second:
            self._chain[second] = first

    def _learn(self, fragment: FragmentOp) -> None:
        allowed = frozenset(r.index for r in fragment.results if self._may_be_parts(r))
        body = fragment.body
        for j in allowed:
            if is_zero(body.returned[j].defining_op):
                self.form[fragment.results[j]] = ZERO
        like = _any_sharding(fragment) or self._like.get(fragment.mesh)
        if like is None:
            return
        count = len(body.block.args)
        given = {i: self.form[v] for i, v in enumerate(fragment.operands[:count]) if v in self.form}
        key = (body, tuple(given.items()), fragment.in_shardings, allowed)
        if key not in self._memo:
            forms = self._forms(fragment, given, like)
            self._memo[key] = forms, growth(body, forms, given, allowed)
        forms, found = self._memo[key]
        self.found[fragment] = _Fragment(given, forms, found, like)
        for j, axes in found.results.items():
            self.form[fragment.results[j]] = axes

    def _forms(self, fragment: FragmentOp, given: Mapping[int, Form], like: TensorShardingAttr) -> Forms:
        mesh = mesh_of(like, self.symbols)
        block = fragment.body.block
        sizes = {} if mesh is None else dict(mesh.axes)
        forms: dict[Value, Form] = {block.args[i]: axes for i, axes in given.items()}
        return Forms(block.ops, forms, functools.partial(body_sharding, fragment), sizes)

    def _may_be_parts(self, value: Value) -> bool:
        """Whether only fragments read it."""
        return (
            value not in self.banned
            and isinstance(value.type, MeshTensorType)
            and value.type.memory_kind is None
            and any(True for _ in value.uses)
            and all(user in self._known for user in value.users)
        )

    # The new program.

    def rewrite(self) -> bool:
        """Replace the fragments that make or read parts."""
        if not any(axes != ZERO for axes in self.form.values()):
            return False
        given: dict[FragmentOp, dict[int, Form]] = {}
        zeros: dict[FragmentOp, dict[_Zero, None]] = {}
        source: dict[tuple[FragmentOp, int], tuple[FragmentOp, _Zero]] = {}
        for fragment, one in self.found.items():
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
        for fragment in self.fragments:
            mine = list(zeros.get(fragment, {}))
            known = self.found.get(fragment)
            if not mine and (known is None or not (given[fragment] or known.growth.results)):
                continue
            for i in given.get(fragment, {}):
                if (fragment, i) in source:
                    maker, zero = source[fragment, i]
                    at = len(maker.results) + list(zeros[maker]).index(zero)
                    fragment.set_operand(i, made[maker].results[at])
            made[fragment] = self._replace(fragment, known, given.get(fragment, {}), mine)
        for fragment in made:
            fragment.erase()
        return True

    def _replace(
        self, fragment: FragmentOp, known: _Fragment | None, given: Mapping[int, Form], zeros: list[_Zero]
    ) -> FragmentOp:
        """Insert the fragment in its new form; the old one stays, unused."""
        like = zeros[0].sharding if known is None else known.like
        of_zeros = {} if known is None else {i: axes for i, axes in known.given.items() if axes == ZERO}
        forms = self._forms(fragment, {**of_zeros, **given}, like)
        found = Growth({}, {}, {}, frozenset()) if known is None else known.growth
        listed = tuple(zero.type for zero in zeros)
        known_forms = [tuple(one.items()) for one in (of_zeros, given, found.results)]
        key = ("with parts", *known_forms, fragment.in_shardings, found.ops)
        body: Region = remembered(
            fragment.body, (*key, like, listed), lambda: with_parts(fragment.body, forms, found, given, like, listed)
        )
        types = [result.type for result in fragment.results]
        shardings: dict[int, TensorShardingAttr] = {}
        for j, axes in found.results.items():
            value = fragment.results[j]
            types[j] = mesh_tensor(fragment.mesh, partial_type(value, axes, forms.sizes))
            shardings[j] = partial_sharding(value, per_value(fragment.out_shardings, j), axes, like)
        for zero in zeros:
            shardings[len(types)] = zero.sharding
            types.append(mesh_tensor(fragment.mesh, zero.type))
        new = cast(FragmentOp, op_like(fragment, fragment.operands, types, regions=[body]))
        new.move_before(fragment)
        if fragment.out_shardings is not None and zeros:
            closed = [fully_closed(like.mesh, zero.type.rank) for zero in zeros]
            new.props["out_shardings"] = sharding_list((*fragment.out_shardings.shardings, *closed))
        for j, sharding in shardings.items():
            set_fragment_sharding(new, "out_shardings", j, sharding)
        for i, axes in given.items():
            sharding = partial_sharding(fragment.body.block.args[i], in_sharding(fragment, i), axes, like)
            set_fragment_sharding(new, "in_shardings", i, sharding, others_open=False)
        for old, result in zip(fragment.results, new.results, strict=False):
            old.replace_all_uses_with(result)
        return new


@dataclasses.dataclass(frozen=True)
class _Zero:
    """Zeros in partial form."""

    sharding: TensorShardingAttr
    type: TensorType


def _any_sharding(fragment: FragmentOp) -> TensorShardingAttr | None:
    """A sharding over the mesh of the fragment, if there is one."""
    for found in (fragment.in_shardings, fragment.out_shardings):
        if found is not None and found.shardings:
            return found.shardings[0]
    return None
