"""`mpmd-reduce-once` (ours): sums over devices that microbatches add up are finished once.  See `docs/hoisting.md`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

from mpmd_trace.ir.attributes import TensorShardingAttr
from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import OpResult, Region, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.shardings import fully_closed, mesh_symbols
from mpmd_trace.ir.types import TensorType, mesh_tensor
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.hoisting.partial_body import Growth, with_parts
from mpmd_trace.passes.hoisting.partial_forms import ZERO, Form
from mpmd_trace.passes.hoisting.partial_ops import partial_sharding, partial_type
from mpmd_trace.passes.hoisting.partial_sums import FragmentForms, PartialSumAnalysis
from mpmd_trace.passes.memory.liveness import Liveness, Places
from mpmd_trace.passes.memory.reserved import Reserved, room_on
from mpmd_trace.passes.sharding.edges import in_sharding, per_value, set_fragment_shardings, sharding_list
from mpmd_trace.passes.sharding.reduced_program import reducible

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

    name = "mpmd-reduce-once"
    summary = "complete sums over devices once per step instead of once per microbatch"
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
            owners = dict.fromkeys(function.device_owners[mesh] for mesh in analysis.meshes())
            places = Places(function)
            held = {mesh: Liveness(function, mesh, meshes, places).peak() for mesh in owners}
            analysis.spill({mesh: room_on(mesh, self.limit, self.reserved) - used for mesh, used in held.items()})
        for mesh, (count, given_up) in analysis.counts().items():
            text = f"on mesh '{mesh}' {count} sums over devices are finished once per step"
            if given_up:
                text += f"; {given_up} for each microbatch, for there is no memory for their parts"
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
