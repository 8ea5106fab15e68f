"""`mpmd-shardy-propagation`: Shardy decides the sharding of every value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpmd_trace.ir.attributes import DictAttr
from mpmd_trace.ir.bodies import replace_bodies
from mpmd_trace.ir.core import Block, Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, make_return
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.dedup_bodies import share_equal_bodies
from mpmd_trace.passes.sharding.agreement import agrees
from mpmd_trace.passes.sharding.chlo_rules import with_rules
from mpmd_trace.passes.sharding.edges import SHARDING, user_sharding
from mpmd_trace.passes.sharding.equivalence_classes import Kinds, meshes_alike, shardings_of
from mpmd_trace.passes.sharding.propagate_without_shardings import (
    drop_unused_transfers,
    drop_whole_shardings,
    has_no_shardings,
    propagate_in_bodies,
)
from mpmd_trace.passes.sharding.reduced_program import NUMBER, Reduction, numbered, reducible, with_body
from mpmd_trace.passes.sharding.shardy import run_shardy, run_shardy_on_numbered


@dataclasses.dataclass(frozen=True)
class ShardyPropagation(Pass):
    """Propagate shardings through the program with Shardy, the one of the installed jaxlib.

    Shardings of inputs, outputs and constraints propagate through fragments, and through transfers between meshes with
    the same axes. Fragments get `in_shardings` and `out_shardings`; transfers, arguments and results get
    `sdy.sharding`. Values without a sharding are replicated; a fragment without any sharding gets no lists. Constants
    become `sdy.constant`.

    A big program is first reduced to one that has each kind of fragment once (`reduced_program.py`), because printing
    every microbatch would take long.

    Before:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !a attributes
            {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %0 : !a
        }

    After:

        sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
        func.func public @main(%arg0: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (!a
            {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"x"}]>], out_shardings=[<@mesh,
              [{"x"}]>]> (%arg0) (%arg1: !t) {
            %1 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-shardy-propagation"
    summary = "run Shardy's sharding propagation through fragments and transfers"
    #: Whether ops of CHLO are there, of which Shardy knows nothing, and shardings need not be those of the reference.
    keeps_chlo = False

    #: Programs with at most so many ops, bodies of fragments counted for each fragment, are not reduced.
    whole_up_to: int = 5_000

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = [f for f in module.functions if not f.is_declaration]
        if len(functions) != 1 or functions[0].visibility != "public" or not reducible(functions[0]):
            return _run_on_everything(module, diagnostics)
        function = functions[0]
        share_equal_bodies(functions)
        drop_unused_transfers(function)
        if self.keeps_chlo:
            drop_whole_shardings(module, function)
        if self.whole_up_to and has_no_shardings(module, function):
            done = propagate_in_bodies(module, function, diagnostics, chlo=self.keeps_chlo)
            return done or not diagnostics.failed
        if self.keeps_chlo:
            replace_bodies(function.regions[0], with_rules)
        size = _size(function.body)
        for kinds in _choices(module, function, reduced=size > self.whole_up_to):
            reduction = Reduction(module, function, kinds)
            if kinds.body and 2 * _size(reduction.body) > size:
                continue  # not worth it
            propagated = run_shardy_on_numbered(
                reduction.module, function.sym_name, NUMBER, diagnostics, keep_rules=bool(kinds.alike)
            )
            if propagated is None:
                return False
            if reduction.spread(module, *propagated):
                return True
        return _run_on_everything(module, diagnostics)


def _choices(module: Module, function: FuncOp, *, reduced: bool) -> Iterator[Kinds]:
    """Kinds of fewer and fewer ops each."""
    if reduced:
        # Where the first fragment does not agree, what stands for several stages would be refused.
        if meshes_alike(function) and _first_agrees(module, function):
            across = Kinds(function, across=True)
            if across.stable and across.has_equal_stages:
                yield across
        kinds = Kinds(function)
        if kinds.stable:
            yield kinds
    yield Kinds.apart(function)


def _first_agrees(module: Module, function: FuncOp) -> bool:
    """Return whether all ops agree with their operands and results in the first fragment that reads what is sharded."""
    given = {arg: shardings_of(d) for arg, d in zip(function.args, function.arg_attrs, strict=True)}
    sharded = {arg for arg, attributes in given.items() if SHARDING in attributes.entries}
    fragments = (op for op in function.body if isinstance(op, FragmentOp))
    first = next((op for op in fragments if not sharded.isdisjoint(op.operands)), None)
    if first is None or function.topology is None:
        return True
    block = Block()
    copy = block.append(numbered(first, [block.add_arg(v.type) for v in first.operands], 0))
    block.append(make_return(copy.results, "func.return"))
    small, alone = with_body(module, function, block)
    of_args = [given.get(v, DictAttr.get({})) for v in first.operands]
    alone.set_all_arg_attrs(of_args)
    propagated = run_shardy(small, Diagnostics(), keep_rules=True)
    if propagated is None:
        return True
    after, rules = propagated
    done = after.lookup(function.sym_name)
    left = [op for op in done.body if isinstance(op, FragmentOp)] if done is not None else []
    return agrees(left, rules, function.topology, [user_sharding(attributes) for attributes in of_args])


def _size(block: Block) -> int:
    """Return the number of ops, those in bodies counted each time."""
    sizes: dict[Region, int] = {}
    total = 0
    for op in block:
        total += 1
        if isinstance(op, FragmentOp):
            if op.body not in sizes:
                sizes[op.body] = sum(1 for _ in op.body.walk())
            total += sizes[op.body]
    return total


def _run_on_everything(module: Module, diagnostics: Diagnostics) -> bool:
    """Propagate in the module as it is; equal bodies are one object afterwards."""
    propagated = run_shardy(module, diagnostics)
    if propagated is None:
        return False
    after, _ = propagated
    share_equal_bodies(after.functions)
    module.op, module.resources = after.op, after.resources
    return True
