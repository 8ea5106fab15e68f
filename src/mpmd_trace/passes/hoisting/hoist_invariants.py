"""`mpmd-hoist-invariants` (ours): what is the same for all microbatches is computed once.  See `docs/hoisting.md`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import cast

from mpmd_trace.ir.attributes import TensorShardingPerValueAttr, UserOriginAttr
from mpmd_trace.ir.bodies import BodyBuilder, remembered, without_dead_ops
from mpmd_trace.ir.core import Op, Region, Value, make_op, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import HOISTED, OMITTED, FragmentOp, FuncOp, Module, make_fragment
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.shardings import mesh_symbols
from mpmd_trace.ir.types import mesh_tensor
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.body_rewrites import prune
from mpmd_trace.passes.fragment_info import runs_in_step
from mpmd_trace.passes.hoisting.cost import HoistCost
from mpmd_trace.passes.hoisting.gathered_params import Timeline
from mpmd_trace.passes.hoisting.select_hoists import Gather, HoistChoice, HoistedExpr, Limits, choose
from mpmd_trace.passes.hoisting.value_numbering import Expression, KnownExpressions, ValueNumbering, parts_of
from mpmd_trace.passes.memory.liveness import Places
from mpmd_trace.passes.memory.reserved import Reserved, room_on
from mpmd_trace.passes.sharding.edges import (
    CONSTRAINT,
    SHARDING,
    body_sharding,
    constrained,
    set_fragment_shardings,
    sharding_list,
    take_over_shardings,
)
from mpmd_trace.passes.sharding.reduced_program import is_plain_fragment, reducible

#: How remarks end on what is too small to be computed once.
TOO_LITTLE = "it saves less than launching a program costs"


@dataclasses.dataclass(frozen=True)
class HoistInvariants(FunctionPass):
    """Compute values that are the same in several microbatches once, in one fragment per mesh.

    Examples are casts of parameters, tables and masks made of constants, and gathered parameters: an operand of a
    product that is sharded over an axis over which the result is sharded in another way is gathered once. Equal
    expressions of forward and backward fragments are computed once, too; forwards no longer return values that only
    served to compute them.

    The pass hoists the outermost expression that is worth its memory: two or more microbatches compute it, and
    computing it once takes at least as much work as its value has bytes (`cost.py` defines work), or each microbatch
    returned it anyway. Otherwise the pass looks at the operands of the expression. Ops that only change the layout of a
    value (broadcast, transpose, reshape, slice, iota) are not hoisted, since XLA fuses them into their users. With
    `limit`, the bytes that a device of the mesh holds at its peak stay below the limit: a copy is dropped while other
    fragments run and computed again later, or it is not hoisted, whatever costs least for its bytes. `gather` says how
    long gathered values are kept.

    Before, with {launch=0}:

        func.func public @main(%w: !mpmd.mesh_tensor<"a", tensor<64x4xf32>>, %x: !a, %y: !a) -> (!a, !a) attributes
            {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%w, %x) {call_counter = 0 : ui32}
              (%u: tensor<64x4xf32>, %v: !t) {
            %1 = stablehlo.convert %u : (tensor<64x4xf32>) -> tensor<64x4xbf16>
            %2 = stablehlo.convert %v : (!t) -> tensor<4xbf16>
            %3 = stablehlo.dot_general %2, %1, contracting_dims = [0] x [1] : (tensor<4xbf16>, tensor<64x4xbf16>)
                -> tensor<64xf32>
            %4 = stablehlo.slice %3 [0:4] : (tensor<64xf32>) -> !t
            mpmd.return %4 : !t
          } : (!mpmd.mesh_tensor<"a", tensor<64x4xf32>>, !a) -> !a
          %5 = mpmd.fragment<mesh="a", origin=["f"]> (%w, %y) {call_counter = 1 : ui32}
              (%u: tensor<64x4xf32>, %v: !t) {
            %1 = stablehlo.convert %u : (tensor<64x4xf32>) -> tensor<64x4xbf16>
            %2 = stablehlo.convert %v : (!t) -> tensor<4xbf16>
            %3 = stablehlo.dot_general %2, %1, contracting_dims = [0] x [1] : (tensor<4xbf16>, tensor<64x4xbf16>)
                -> tensor<64xf32>
            %4 = stablehlo.slice %3 [0:4] : (tensor<64xf32>) -> !t
            mpmd.return %4 : !t
          } : (!mpmd.mesh_tensor<"a", tensor<64x4xf32>>, !a) -> !a
          return %0, %5 : !a, !a
        }

    After:

        func.func public @main(%w: !mpmd.mesh_tensor<"a", tensor<64x4xf32>>, %x: !a, %y: !a) -> (!a, !a) attributes
            {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["hoisted"]> (%w) (%u: tensor<64x4xf32>) {
            %1 = stablehlo.convert %u : (tensor<64x4xf32>) -> tensor<64x4xbf16>
            mpmd.return %1 : tensor<64x4xbf16>
          } : (!mpmd.mesh_tensor<"a", tensor<64x4xf32>>) -> !mpmd.mesh_tensor<"a", tensor<64x4xbf16>>
          %2 = mpmd.fragment<mesh="a", origin=["f"]> (%x, %0) {call_counter = 0 : ui32}
              (%v: !t, %u: tensor<64x4xbf16>) {
            %3 = stablehlo.convert %v : (!t) -> tensor<4xbf16>
            %4 = stablehlo.dot_general %3, %u, contracting_dims = [0] x [1] : (tensor<4xbf16>, tensor<64x4xbf16>)
                -> tensor<64xf32>
            %5 = stablehlo.slice %4 [0:4] : (tensor<64xf32>) -> !t
            mpmd.return %5 : !t
          } : (!a, !mpmd.mesh_tensor<"a", tensor<64x4xbf16>>) -> !a
          %6 = mpmd.fragment<mesh="a", origin=["f"]> (%y, %0) {call_counter = 1 : ui32}
              (%v: !t, %u: tensor<64x4xbf16>) {
            %3 = stablehlo.convert %v : (!t) -> tensor<4xbf16>
            %4 = stablehlo.dot_general %3, %u, contracting_dims = [0] x [1] : (tensor<4xbf16>, tensor<64x4xbf16>)
                -> tensor<64xf32>
            %5 = stablehlo.slice %4 [0:4] : (tensor<64xf32>) -> !t
            mpmd.return %5 : !t
          } : (!a, !mpmd.mesh_tensor<"a", tensor<64x4xbf16>>) -> !a
          return %2, %6 : !a, !a
        }
    """

    name = "mpmd-hoist-invariants"
    summary = "compute once what is the same for all microbatches"
    mpmd_only = True
    entry_only = True

    launch: int = option(1 << 20, "the least work to be saved where no collective is, in bytes of memory traffic")
    least: int = option(256, "the least work, likewise, of an expression that is kept")
    limit: int = option(0, "the memory limit of a device in bytes; 0: unlimited")
    reserved: tuple[Reserved, ...] = option((), "additional bytes needed on meshes, as MESH=BYTES")
    gather: Gather = option("auto", "how long gathered values are kept: step, phase, microbatch; auto: as limit allows")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if not reducible(function):
            return False
        meshes = mesh_symbols(module)
        numbering, worth = ValueNumbering(function), HoistCost(meshes, runs_in_step(function))
        changed = False
        on_mesh: dict[str, list[FragmentOp]] = {}
        for fragment in numbering.fragments:
            if is_plain_fragment(fragment):
                on_mesh.setdefault(fragment.mesh, []).append(fragment)
        places = functools.cache(lambda: Places(function))
        for mesh, fragments in on_mesh.items():
            timeline = Timeline(function, mesh, meshes, fragments, places)
            limits = Limits(room_on(mesh, self.limit, self.reserved), self.launch, self.least, self.gather)
            choice = choose(fragments, numbering, worth, limits, timeline)
            if OMITTED in function.attrs and (choice.too_large or any(len(one.starts) > 1 for one in choice.kept)):
                raise diagnostics.fatal(function.loc, "what is dropped in between depends on all microbatches")
            room = limits.bytes - max(timeline.base) if self.limit and choice.too_large else math.inf
            _tell(choice, mesh, room, function, diagnostics)
            left = {one.expression for one in (*choice.too_large, *choice.each_time)}
            if (choice.kept or left) and _Mesh(
                function, mesh, fragments, numbering, choice.kept, places().time, left
            ).run():
                changed, places = True, functools.cache(lambda: Places(function))
        return changed


def _tell(choice: HoistChoice, mesh: str, room: float, function: FuncOp, diagnostics: Diagnostics) -> None:
    """Remark what is computed once on a mesh, and what is not and why."""
    for listed, why in (
        (choice.kept, None),
        (choice.too_large, f"stays with the microbatches: of the limit {max(room, 0):,.0f} bytes are left"),
        (choice.too_little, f"stays with the microbatches: {TOO_LITTLE}"),
        (choice.each_time, "stays with the microbatches, as gather asks for"),
    ):
        for one in listed:
            verdict = why or _how_often(one)
            size = f"{one.bytes:,.0f} bytes, saving {one.saved:,.0f} bytes of memory traffic"
            gather = ", with a gather" if one.gathers else ""
            text = f"on mesh '{mesh}' {one.expression.described()} ({size}{gather}) {verdict}"
            diagnostics.remark(function.loc, text)


def _how_often(one: HoistedExpr) -> str:
    if len(one.starts) == 1:
        return "is computed once per step"
    return f"is computed {len(one.starts)} times per step, and dropped in between"


class _Mesh:
    """Rewrites the fragments of a mesh to read what is kept."""

    def __init__(
        self,
        function: FuncOp,
        mesh: str,
        fragments: Sequence[FragmentOp],
        numbering: ValueNumbering,
        kept: Sequence[HoistedExpr],
        place: Mapping[Op, int],
        left: Container[Expression] = (),
    ) -> None:
        self.block = function.body
        self.mesh = mesh
        self.fragments = fragments
        self.known = numbering.known
        self.used = {result for fragment in fragments for result in fragment.results if result.has_uses}
        self.kept = {one.expression: one for one in kept}
        #: What each microbatch gathers.
        self.left = left
        #: The copies that are there in front of a fragment.
        self.value: dict[Expression, Value] = {}
        self._place = place
        #: What can be computed before it is read, by when that is, the latest first.
        when = self._when_ready()
        early = [(when[one], one) for one, k in self.kept.items() if not k.is_late]
        self._early = sorted(early, key=lambda item: item[0], reverse=True)

    def run(self) -> bool:
        """Make the fragments that compute once, then those that read their results; whether there are any."""
        changed = False
        readers: dict[FragmentOp, list[Expression]] = {fragment: [] for fragment in self.fragments}
        starts: dict[FragmentOp, list[Expression]] = {}
        for expression, one in self.kept.items():
            for fragment in one.readers:
                readers[fragment].append(expression)
            for fragment in one.starts[1:]:
                starts.setdefault(fragment, []).append(expression)
        copies: dict[FragmentOp, dict[Expression, Value]] = {}
        for fragment, read in readers.items():
            for expression in starts.get(fragment, ()):
                del self.value[expression]
            missing = [one for one in read if one not in self.value]
            if missing:
                self._compute(self._ready(fragment, missing), fragment)
            copies[fragment] = {one: self.value[one] for one in read}
        for fragment, read in reversed(readers.items()):  # who is given a result goes before it
            gathers = gathered(fragment, self.known[fragment], self.left)
            if read or gathers or any(r in self.used and not r.has_uses for r in fragment.results):
                self._rewrite(fragment, read, copies[fragment], gathers)
                changed = True
        return changed

    def _when_ready(self) -> dict[Expression, int]:
        """For each expression the place of the last op that makes a value of it."""
        when: dict[Expression, int] = {}
        for one in parts_of(self.kept):
            if one.value is not None:
                op = one.value.defining_op
                when[one] = -1 if op is None else self._place[op]
            else:
                when[one] = max((when[operand] for operand in one.operands), default=-1)
        return when

    def _ready(self, before: FragmentOp, missing: Sequence[Expression]) -> list[Expression]:
        """Return what can be computed in front of a fragment: what it misses, and the rest made of values there."""
        ready = dict.fromkeys(missing)
        while self._early and self._early[-1][0] < self._place[before]:
            one = self._early.pop()[1]
            if one not in self.value:
                ready[one] = None
        return sorted(ready, key=lambda one: one.number)

    def _compute(self, expressions: Sequence[Expression], before: FragmentOp) -> None:
        """Insert the fragment that computes the expressions."""
        builder = BodyBuilder()
        made: dict[Expression, Value] = {}
        parts = list(parts_of(expressions))
        roots = [part for part in parts if part.value is not None]
        values = [part.value for part in parts if part.value is not None]
        for root, value in zip(roots, values, strict=True):
            made[root] = builder.arg(root.type, value.location)
        for part in parts:
            if part.value is None:
                made[part] = _emit(builder, part, made)
        body = builder.finish([made[one] for one in expressions])
        fragment = make_fragment(
            self.mesh,
            values,
            [mesh_tensor(self.mesh, one.type) for one in expressions],
            body,
            origin=[UserOriginAttr.get(HOISTED)],
            loc=before.loc,
        )
        self.block.insert_before(before, fragment)
        for which, shown in (("in_shardings", roots), ("out_shardings", expressions)):
            _set_shardings(fragment, which, shown)
        self.value.update(zip(expressions, fragment.results, strict=True))

    def _rewrite(
        self,
        fragment: FragmentOp,
        read: Sequence[Expression],
        copies: Mapping[Expression, Value],
        gathers: tuple[Gathered, ...],
    ) -> None:
        """Replace a fragment by one that reads the values of `read`; of what it returned, it keeps what is used."""
        known = self.known[fragment]
        keep_results = tuple(
            result not in self.used or (result.has_uses and one not in copies)
            for one, result in zip(known.returned, fragment.results, strict=True)
        )
        for result, one in zip(fragment.results, known.returned, strict=True):
            if one is not None and one in copies:
                result.replace_all_uses_with(copies[one])
        body, flags = _reading(fragment.body, known, tuple(read), keep_results, gathers)
        count = len(flags) - len(read)
        used, read = flags[:count], [one for one, flag in zip(read, flags[count:], strict=True) if flag]
        operands = [value for value, flag in zip(fragment.operands, used, strict=False) if flag]
        left = [r for r, keep in zip(fragment.results, keep_results, strict=True) if keep]
        operands += [copies[one] for one in read]
        new = cast(FragmentOp, op_like(fragment, operands, [r.type for r in left], regions=[body]))
        new.move_before(fragment)
        take_over_shardings(fragment, new, used, keep_results)
        _set_shardings(new, "in_shardings", read, start=sum(used))
        for old, result in zip(left, new.results, strict=True):
            old.replace_all_uses_with(result)
        fragment.erase()


def _emit(builder: BodyBuilder, part: Expression, made: Mapping[Expression, Value]) -> Value:
    """Append the op that computes a part; in the sharding that it had where it was."""
    operands = [made[operand] for operand in part.operands]
    if part.op is None or part.op.name == CONSTRAINT:
        value = operands[0]
    else:
        value = builder.block.append(part.op.clone(operands=operands)).results[part.index]
    return value if part.sharding is None else constrained(builder, value, part.sharding)


def _reading(
    body: Region,
    known: KnownExpressions,
    read: tuple[Expression, ...],
    keep_results: tuple[bool, ...],
    gathers: tuple[Gathered, ...],
) -> tuple[Region, tuple[bool, ...]]:
    """Return the body with arguments for `read` behind its own, and which of all these it uses; the others are gone."""
    wanted = set(read)
    replaced = tuple((v, one) for v, one in known.values.items() if one in wanted)
    uses = tuple((key, one) for key, one in known.uses.items() if one in wanted)

    def make() -> tuple[Region, tuple[bool, ...]]:
        builder = BodyBuilder()
        mapping: dict[Value, Value] = {a: builder.arg(a.type, a.loc) for a in body.block.args}
        new = {one: builder.arg(one.type) for one in read}
        terminator = body.block.terminator
        at_values, at_uses = dict(replaced), dict(uses)
        copied: dict[Op, Op] = {}
        for value, one in replaced:
            if value.defining_op is None:
                mapping[value] = new[one]
        for op in body.block:
            if op is terminator:
                continue
            copy = copied[op] = builder.add(op, mapping)
            for i in range(op.num_operands):
                if (op, i) in at_uses:
                    copy.set_operand(i, new[at_uses[op, i]])
            for result in op.results:
                if result in at_values:
                    mapping[result] = new[at_values[result]]
        tie([(one, copied[one.op]) for one in gathers])
        returned = [v for v, keep in zip(terminator.operands, keep_results, strict=True) if keep]
        cleaned = _clean(builder.finish([mapping[v] for v in returned]))
        return prune(cleaned, (True,) * len(returned))

    return remembered(body, ("reading", replaced, uses, read, keep_results, gathers), make)


def _clean(body: Region) -> Region:
    """Return the body without dead ops; sharding constraints of what is not used any more go, too."""
    copy = body.clone()
    for op in reversed(copy.block):
        if op.name == CONSTRAINT and not op.has_uses:
            op.erase()
    return without_dead_ops(freeze(copy))


def _set_shardings(fragment: FragmentOp, which: str, shown: Sequence[Expression], start: int = 0) -> None:
    """Say how operands or results are sharded that are expressions, from number `start` on."""
    shardings = {i: one.sharding for i, one in enumerate(shown, start) if one.sharding is not None}
    set_fragment_shardings(fragment, which, shardings, others_open=False)


# What a fragment gathers by itself is gathered one product ahead, and not all of it at first.  XLA may gather the
# weights of all layers before it computes, and hold them all.  A barrier in front of each product makes the weight of
# the next one wait for what the product reads, so that one is gathered while another one is used.

_BARRIER = "stablehlo.optimization_barrier"


@dataclasses.dataclass(frozen=True)
class Gathered:
    """An op that gathers its operand `index`, with another operand that differs between microbatches.

    shardings: those of the two as they are, if both are known.
    """

    op: Op
    index: int
    expression: Expression
    beside: int
    shardings: TensorShardingPerValueAttr | None


def gathered(fragment: FragmentOp, known: KnownExpressions, left: Container[Expression]) -> tuple[Gathered, ...]:
    """Return the ops of a fragment that gather one of the expressions `left`, in their order."""
    at = {
        op: (index, one)
        for (op, index), one in known.uses.items()
        if one in left and one.is_reshard and not any(result in known.values for result in op.results)
    }
    results: list[Gathered] = []
    for op in fragment.body.block if len(at) > 1 else ():
        beside = next((i for i in range(op.num_operands) if op.operand(i) not in known.values), None)
        if op not in at or beside is None:
            continue
        index, one = at[op]
        other = body_sharding(fragment, op.operand(beside))
        own = one.operands[0].sharding
        shardings = None if own is None or other is None else sharding_list((own, other))
        results.append(Gathered(op, index, one, beside, shardings))
    return tuple(results)


def tie(gathers: Sequence[tuple[Gathered, Op]]) -> None:
    """Put the barriers into a copy of the body; each op that gathers comes with its copy."""
    for (a, before), (b, after) in itertools.pairwise(gathers):
        if a.expression is b.expression:  # the last layer of a forward with its backward
            after.set_operand(b.index, before.operand(a.index))
            continue
        waiting, beside = after.operand(b.index), before.operand(a.beside)
        _move(waiting, before)
        barrier = make_op(_BARRIER, [waiting, beside], [waiting.type, beside.type], loc=before.loc)
        if a.shardings is not None and b.shardings is not None:
            barrier.attrs[SHARDING] = sharding_list((b.shardings.shardings[0], a.shardings.shardings[1]))
        assert before.block is not None
        before.block.insert_before(before, barrier)
        after.set_operand(b.index, barrier.results[0])
        before.set_operand(a.beside, barrier.results[1])


def _move(value: Value, before: Op) -> None:
    """Move what makes a value, of arguments alone, in front of an op."""

    def late(values: Iterable[Value]) -> list[Op]:
        return [op for v in values if (op := v.defining_op) is not None and before.is_before(op)]

    for op in list(postorder(late([value]), lambda op: late(op.operands))):
        op.move_before(before)
