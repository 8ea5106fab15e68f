"""The first steps of the import pipeline."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.ir.attributes import StringAttr
from mpmd_trace.ir.bodies import replace_bodies
from mpmd_trace.ir.core import Region, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.jax_compat.calls import BODY, Calls
from mpmd_trace.jax_compat.mlir import to_generic_through
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.dedup_bodies import share_equal_bodies
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.inline import Inline, has_calls
from mpmd_trace.passes.mlir_pass import MlirPass
from mpmd_trace.passes.outlining import outline_calls

_BODY = StringAttr.get(BODY)
_CANONICALIZE = (
    "canonicalize{max-iterations=10 max-num-rewrites=-1 region-simplify=normal test-convergence=false top-down=true}"
)
_CHLO = "func.func(chlo-legalize-to-stablehlo)"
_INLINE = "inline{default-pipeline=canonicalize max-iterations=4}"
_SIMPLIFY = f"func.func(cse,{_CANONICALIZE})"
_WITHOUT_CALLS = f"symbol-dce,{_INLINE},{_SIMPLIFY}"


@dataclasses.dataclass(frozen=True)
class CleanUp(Pass):
    """Lower chlo ops, inline `func.call`s, remove repeated expressions, and canonicalize.

    Runs MLIR's own passes in this order: chlo to StableHLO, inlining, common subexpression elimination,
    canonicalization. Afterwards, bodies with the same text are one object, so that later passes handle twelve equal
    layers once; the shared body keeps the source locations of the first.

    Before:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          %0 = call @f(%x) : (!t) -> !t
          %1 = call @f(%x) : (!t) -> !t
          %2 = stablehlo.add %0, %1 : !t
          return %2 : !t
        }
        func.func private @f(%x: !t) -> !t {
          %0 = chlo.square %x : !t -> !t
          return %0 : !t
        }

    After:

        func.func public @main(%arg0: !t) -> !t attributes {topology = #meshes} {
          %0 = stablehlo.multiply %arg0, %arg0 : !t
          %1 = stablehlo.add %0, %0 : !t
          return %1 : !t
        }
    """

    name = "mpmd-clean-up"
    summary = "chlo-legalize-to-stablehlo, inline, cse and canonicalize"

    #: Whether ops of CHLO stay.
    keeps_chlo = False

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        steps: list[Pass]
        if has_calls(module):
            steps = [*([] if self.keeps_chlo else [MlirPass(_CHLO)]), Inline(), MlirPass(_SIMPLIFY)]
        else:  # then MLIR's own inliner is good enough, and all steps are one run
            steps = [MlirPass(_without_calls(self.keeps_chlo))]
        changed = False
        for step in steps:
            changed = step.run(module, diagnostics) or changed
            if diagnostics.failed:
                return changed
        share_equal_bodies(module.functions)
        return changed


def _without_calls(keeps_chlo: bool) -> str:
    return _WITHOUT_CALLS if keeps_chlo else f"{_CHLO},{_WITHOUT_CALLS}"


def _callees_first(callees: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the functions of a module, each behind those that it calls."""
    return [name for name in postorder(callees, lambda name: callees.get(name, ())) if name in callees]


def _with_effects(calls: Calls) -> set[str]:
    """Return the functions that have side effects, or call one that has."""
    callees, effects = calls.callees(), set(calls.effects)
    for name in _callees_first(callees):
        if not effects.isdisjoint(callees[name]):
            effects.add(name)
    return effects


def _expand(calls: Calls) -> None:
    """Inline all calls of a jaxlib module that can be inlined."""
    callees = calls.callees()
    order = _callees_first(callees)
    if all(calls.can_inline(callee) for name in order for callee in callees[name]):
        calls.inline(order)


def _put_bodies(module: Module) -> None:
    """Give named computations the bodies that they call, in the place of the functions that hold these."""
    functions = {f.sym_name: f for f in module.functions if BODY in f.attrs}

    @functools.cache
    def held(name: str) -> Region:
        function = functions[name]
        region = function.regions[0]
        replace_bodies(region, called)
        last = function.body.terminator
        function.body.append(make_op("mpmd.return", last.operands, loc=last.loc))
        last.erase()
        freeze(region)
        function.erase()
        return region

    def called(body: Region) -> Region:
        op = body.block.first
        if op is None or op.props.get("call_target_name") is not _BODY:
            return body
        name = op.props["backend_config"]
        assert isinstance(name, StringAttr)
        return held(name.value)

    for name in functions:
        held(name)
    for function in module.functions:
        replace_bodies(function.regions[0], called)


def read_clean(given: Any, *, for_xla: bool = False) -> tuple[Module, list[Diagnostic], float] | None:
    """`given`, MLIR text or a jaxlib module, as `CleanUp` leaves it, what was reported, and the passes' CPU seconds.

    MLIR reads the text, or copies the module, once and cleans it before we read it, instead of printing it for MLIR a
    second time.  What is `for_xla` keeps ops of CHLO, and large functions of keys out of line.  None for what takes
    `CleanUp`, step by step: modules with mistakes, and those with calls that are not for XLA.
    """
    outlined: list[FuncOp] = []

    def inline(module: Any) -> None:
        calls = Calls(module)  # takes constraints out that say nothing
        if any(calls.of.values()):
            outlined.extend(outline_calls(calls))
            calls.keep_bodies(_with_effects(calls))
            _expand(calls)

    try:
        generic, diagnostics, seconds = to_generic_through(
            given, f"builtin.module({_without_calls(for_xla)})", inline if for_xla else None
        )
    except MpmdError:
        return None
    if '"func.call"' in generic:
        return None
    module = parse_generic(generic, any_location=True)
    module.outlined = tuple(outlined)
    _put_bodies(module)
    for op in module.body.ops if for_xla else ():
        if op.name == "sdy.mesh" and op.props["mesh"].text == "#sdy.mesh<[]>":
            name = op.props["sym_name"]
            if isinstance(name, StringAttr) and f"@{name.value}" not in generic:
                op.erase()
    start = time.process_time()
    share_equal_bodies(module.functions)
    return module, diagnostics, seconds + time.process_time() - start


class CanonicalizeUnrolled(Pass):
    """Run MLIR's `canonicalize` again on programs with unrolled loops.

    Programs without unrolled loops have not changed since `mpmd-clean-up`, so they are not printed and parsed again.

    Before:

        %0 = stablehlo.negate %x {unroll_counter = 0 : ui32} : !t
        %1 = stablehlo.sine %x {unroll_counter = 0 : ui32} : !t
        return %1 : !t

    After:

        %0 = stablehlo.sine %x {unroll_counter = 0 : ui32} : !t
        return %0 : !t
    """

    name = "mpmd-canonicalize-unrolled"
    summary = "canonicalize what unrolled loops left"
    only_with = ("mpmd.for",)

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        unrolled = any(
            "unroll_counter" in op.attrs
            for function in module.functions
            for region in function.regions
            for op in walk_mutable(region)
        )
        return unrolled and MlirPass(f"func.func({_CANONICALIZE})").run(module, diagnostics)
