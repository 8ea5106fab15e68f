"""Which functions stay out of line while passes run, and how they are called in the end.

JAX's random numbers are a private function of some hundred ops, which a model with dropout calls in every layer.
Passes have nothing to do in there: no name, no weights, no activations, nothing to shard but what is made of the shape
of its result.  So such functions are kept as they are, and called by one op each (`ir/outlined.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mpmd_trace.ir.attributes import BoolAttr, SymbolRefAttr
from mpmd_trace.ir.bodies import fingerprint, map_ops
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.flops import flops_of
from mpmd_trace.ir.functions import callee_of
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.outlined import OUTLINED, insert_calls, outlined_attributes, outlined_callee
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import TensorType, Type, parse_type
from mpmd_trace.jax_compat.calls import Calls
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.greedy import walk_mutable

#: Functions with fewer ops are inlined: passes may see what they do.
_LARGE = 64


class CallOutlinedFunctions(Pass):
    """Turn calls of outlined functions into calls of functions of the module.

    Before:

        func.func @p0_f.step(%k: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
          %0 = stablehlo.custom_call @mpmd_trace.outlined(%k) {backend_config = "bits", mpmd_trace.work = 4 : i64}
              : (!t) -> !t
          return %0 : !t
        }
        func.func private @bits(%k: !t) -> !t attributes {mpmd_trace.outlined = true} {
          %0 = stablehlo.sine %k : !t
          return %0 : !t
        }

    After:

        func.func @p0_f.step(%arg0: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
          %0 = call @bits(%arg0) : (!t) -> !t
          return %0 : !t
        }
        func.func private @bits(%arg0: !t) -> !t {
          %0 = stablehlo.sine %arg0 : !t
          return %0 : !t
        }
    """

    name = "mpmd-call-outlined-functions"
    summary = "make calls of outlined functions func.calls"
    only_with = ("outlined functions",)

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        if not module.outlined:
            return False
        for function in module.functions:
            for i, region in enumerate(function.regions):
                if region.frozen:
                    function.regions[i] = _with_calls(region)
                else:
                    _insert_calls(region)
        known = {f.sym_name: f for f in module.outlined}
        called = [name for f in module.functions for name in _callees(f.regions[0]) if name in known]
        for name in postorder(called, lambda name: _callees(known[name].regions[0])):
            copy = known[name].clone()
            copy.attrs.pop(OUTLINED)
            module.body.append(copy)
        module.outlined = ()
        return True


def _insert_calls(region: Region) -> bool:
    """Make calls of outlined functions in a mutable region `func.call`s, in frozen bodies in it, too."""
    changed = False
    for op in walk_mutable(region):
        for i, body in enumerate(op.regions):
            if body.frozen:
                op.regions[i] = _with_calls(body)
                changed = changed or op.regions[i] is not body
    return insert_calls(region) or changed


def _with_calls(body: Region) -> Region:
    return map_ops(body, "outlined functions are called", _insert_calls, only=_is_outlined_call)


def _is_outlined_call(op: Op) -> bool:
    return outlined_callee(op) is not None


def outline_calls(calls: Calls) -> tuple[FuncOp, ...]:
    """Put large functions of keys that are called often out of line in a jaxlib module.  Returns the functions."""
    callees = calls.callees()
    roots = {*calls.roots, *(name for name in callees if not calls.is_private(name))}
    given = {name: map(parse_type, calls.inputs(name)) for name in callees.keys() - roots - set(calls.bodies)}
    of_keys = [name for name in callees if name in given and all(map(_is_key, given[name]))]
    candidates = [name for name in postorder(of_keys, lambda name: callees.get(name, ())) if name in callees]
    module = parse_generic(calls.text(candidates))
    result = _choose({f.sym_name: f for f in module.functions}, callees, roots)
    calls.replace({name: outlined_attributes(*call) for name, call in result.calls.items()})
    return result.functions


class _Outlined(NamedTuple):
    """For each function that is called out of line, the outlined one and its work; these, and what they call."""

    calls: dict[str, tuple[str, int]]
    functions: tuple[FuncOp, ...]


def _choose(candidates: Mapping[str, FuncOp], callees: Mapping[str, Sequence[str]], roots: Iterable[str]) -> _Outlined:
    """Return which candidates to put out of line, if `roots` are called once and functions call `callees`."""
    order = [name for name in postorder(callees, lambda name: callees.get(name, ())) if name in callees]
    known: dict[str, _Function] = {}
    for name in order:  # callees come first; of a recursive function they are unknown
        one = _judged(candidates[name], callees[name], known) if name in candidates else None
        if one is not None:
            known[name] = one
    times = dict.fromkeys(order, 0) | dict.fromkeys(roots, 1)
    chosen = []
    for name in reversed(order):
        if times[name] > 1 and name in known and known[name].ops >= _LARGE and _is_of_keys(candidates[name]):
            chosen.append(name)
            continue
        for callee in callees[name]:
            if callee in times:
                times[callee] += times[name]
    same = _unified({name: candidates[name] for name in order if name in known})
    kept = postorder([same[name] for name in chosen], lambda name: _callees(candidates[name].regions[0]))
    functions = []
    for name in kept:
        copy = candidates[name].clone()
        copy.attrs[OUTLINED] = BoolAttr.get(True)
        functions.append(copy)
    return _Outlined({name: (same[name], int(known[name].work)) for name in chosen}, tuple(functions))


@dataclasses.dataclass(frozen=True)
class _Function:
    """A pure function: its ops and their work, those of the functions that it calls included."""

    ops: int
    work: float


def _judged(function: FuncOp, callees: Sequence[str], known: Mapping[str, _Function]) -> _Function | None:
    """Return what is known of a function of pure ops in one block; None for another one."""
    if function.visibility != "private" or len(function.regions[0].blocks) != 1 or function.attr("no_inline"):
        return None
    ops = 0
    for op in function.regions[0].walk():
        if op.name != "func.call":
            if not op.name.startswith(("stablehlo.", "chlo.", "func.return")) or not (op.regions or is_pure(op)):
                return None
            ops += 1
    work = flops_of(function.body)
    for callee in callees:
        if callee not in known:
            return None
        ops, work = ops + known[callee].ops, work + known[callee].work
    return _Function(ops, work)


def _is_of_keys(function: FuncOp) -> bool:
    """Return whether all arguments are integers and scalars, so nothing in it has gradients or is sharded."""
    return all(_is_key(type) for type in function.type.inputs)


def _is_key(type: Type) -> bool:
    return isinstance(type, TensorType) and (type.is_scalar or type.element.startswith(("i", "ui", "si")))


def _callees(region: Region) -> list[str]:
    """Return the functions that `func.call`s in the region call, one for each call."""
    return [callee_of(op) for op in region.walk() if op.name == "func.call"]


def _unified(functions: Mapping[str, FuncOp]) -> dict[str, str]:
    """Return for each function the first one that does the same, which others now call.  Callees come first."""
    same: dict[str, str] = {}
    first: dict[str, str] = {}
    for name, function in functions.items():
        for op in function.regions[0].walk():
            if op.name == "func.call":
                op.props["callee"] = SymbolRefAttr.get(same[callee_of(op)])
        same[name] = first.setdefault(f"{function.type.text} {fingerprint(function.regions[0])}", name)
    return same
