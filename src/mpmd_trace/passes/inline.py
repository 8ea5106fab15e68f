"""`inline`: MLIR's inliner for `func.call`.

The contexts that jaxlib's bindings make do not know how to inline `func.call`, so MLIR's own pass of this
name does nothing there.  This one does what it does elsewhere: callees before callers, each canonicalized
before and after calls are inlined into it; private functions that nothing refers to any more go.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from mpmd_trace.ir.bodies import remembers, rewrite_bodies
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.functions import callee_of
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.constants import ISOLATED
from mpmd_trace.passes.expand_calls import Expander, inline_call
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.mlir_pass import MlirPass
from mpmd_trace.passes.symbol_dce import References, SymbolDce
from mpmd_trace.passes.trivially_canonical import PLAIN_OPS, all_names

#: What a callee may consist of when calls in it are inlined together with it: canonicalization may decide a `case`.
_EXPANDED = (PLAIN_OPS | {"func.call", "func.return"}) - {"stablehlo.case"}


@dataclasses.dataclass(frozen=True)
class Inline(Pass):
    """Inline calls of functions of the module, except `mpmd.call` and recursive calls.

    Callees come before callers; each function is canonicalized (`default_pipeline`) before and after calls are inlined
    into it. Private functions without references are removed.

    Before:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          %0 = call @f(%x) : (!t) -> !t
          return %0 : !t
        }
        func.func private @f(%x: !t) -> !t {
          %0 = stablehlo.negate %x : !t
          return %0 : !t
        }

    After:

        func.func public @main(%arg0: !t) -> !t attributes {topology = #meshes} {
          %0 = stablehlo.negate %arg0 : !t
          return %0 : !t
        }
    """

    name = "inline"
    summary = "inline func.call"

    default_pipeline: str = option("canonicalize", "what runs on functions before and after")
    max_iterations: int = option(4, "accepted for compatibility; calls are inlined in one go")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        changed = self._simplify(module, diagnostics)
        if self.default_pipeline in ("", "canonicalize") and _can_expand(module, hoists=bool(self.default_pipeline)):
            return self._inline_at_once(module, diagnostics) or changed
        # Callees at depth 0 call nothing, those at depth 1 call them, ...
        for functions in _by_depth(module):
            inliner = _Inliner({f.sym_name: f for f in module.functions})
            callers = [inliner.functions[name] for name in functions]
            inlined = [inliner.into_region(caller.regions[0], caller) for caller in callers]
            if any(inlined):
                changed = True
                self._simplify(module, diagnostics)
        return SymbolDce().run(module, diagnostics) or changed

    def _inline_at_once(self, module: Module, diagnostics: Diagnostics) -> bool:
        inliner = _Inliner({f.sym_name: f for f in module.functions})
        expander = Expander(inliner.inlinable, hoists=bool(self.default_pipeline))
        private = {f.sym_name: f for f in module.functions if f.visibility == "private"}
        pending = [op for op in module.body if not isinstance(op, FuncOp) or op.visibility != "private"]
        references = References()
        changed = False
        while pending:
            op = pending.pop()
            if isinstance(op, FuncOp) and not op.is_declaration:
                changed = expander.expand(op.regions[0], op) or changed
            pending += [private.pop(name) for name in sorted(references.of(op)) if name in private]
        changed = SymbolDce().run(module, diagnostics) or changed
        if changed:
            self._simplify(module, diagnostics)
        return changed

    def _simplify(self, module: Module, diagnostics: Diagnostics) -> bool:
        if not self.default_pipeline:
            return False
        return MlirPass(f"func.func({self.default_pipeline})").run(module, diagnostics)


def has_calls(module: Module) -> bool:
    """Return whether some function, or some body in it, contains a `func.call`."""
    return any(_called(f.regions[0]) for f in module.functions if not f.is_declaration)


def _called(region: Region) -> list[str]:
    """Return the functions that the ops of the region call with `func.call`, frozen bodies included."""
    result: dict[str, None] = {}
    for op in walk_mutable(region):
        if op.name == "func.call":
            result[callee_of(op)] = None
        for body in op.regions:
            if body.frozen:
                result.update(dict.fromkeys(_called_in(body)))
    return list(result)


@remembers
def _called_in(body: Region) -> list[str]:
    """Return the functions that the ops of a frozen body call with `func.call`, once for each call."""
    return [callee_of(op) for op in body.walk() if op.name == "func.call"]


def _by_depth(module: Module) -> list[list[str]]:
    """Return the names of the functions that call others, those that call only functions of earlier lists first."""
    calls = {f.sym_name: _called(f.regions[0]) for f in module.functions if not f.is_declaration}
    depths: dict[str, int] = {}
    for name in postorder(calls, lambda name: calls.get(name, ())):
        depths[name] = max((depths.get(callee, 0) + 1 for callee in calls.get(name, ())), default=0)
    by_depth: dict[int, list[str]] = {}
    for name in calls:
        by_depth.setdefault(depths[name], []).append(name)
    return [by_depth[d] for d in sorted(by_depth) if d > 0]


def _can_expand(module: Module, *, hoists: bool) -> bool:
    """Return whether inlining all calls at once by `Expander` gives the same as callees before callers.

    So it does if no function is recursive and, if constants are hoisted, callees consist of plain ops.
    """
    functions = {f.sym_name: f for f in module.functions if not f.is_declaration}
    calls = {name: _called(f.regions[0]) for name, f in functions.items()}
    done: set[str] = set()
    for name in postorder(calls, lambda name: calls.get(name, ())):
        if not done.issuperset(callee for callee in calls.get(name, ()) if callee in calls):
            return False
        done.add(name)
    if not hoists:
        return True
    if any(op.name in ISOLATED for f in functions.values() for op in walk_mutable(f.regions[0])):
        return False
    callees = dict.fromkeys(callee for called in calls.values() for callee in called if callee in calls)
    names = [all_names(functions[name].regions[0]) for name in callees]
    return all(op_names is not None and op_names <= _EXPANDED for op_names in names)


class _Inliner:
    """Replaces calls by the ops of the callees, whose own calls have been replaced before."""

    def __init__(self, functions: Mapping[str, FuncOp]) -> None:
        self.functions = functions
        self.bodies: dict[Region, Region] = {}

    def into_region(self, region: Region, function: FuncOp) -> bool:
        """Inline the calls in a region of the function, at every depth; return whether there were any."""
        changed = False
        into_body = functools.partial(self.into_region, function=function)
        for block in region.blocks:
            for op in block:
                for nested in op.regions:
                    if not nested.frozen:
                        changed = self.into_region(nested, function) or changed
                changed = rewrite_bodies(op, self.bodies, into_body) or changed
                callee = self.inlinable(op, function)
                if callee is not None:
                    inline_call(op, callee.body)
                    op.erase()
                    changed = True
        return changed

    def inlinable(self, op: Op, function: FuncOp) -> FuncOp | None:
        """Return the callee, if `op` is a call that can be inlined."""
        if op.name != "func.call":
            return None
        callee = self.functions.get(callee_of(op))
        if callee is None or callee is function or callee.is_declaration:
            return None
        no_inline = op.attr("no_inline") is not None or callee.attr("no_inline") is not None
        return None if no_inline or len(callee.regions[0].blocks) != 1 else callee
