"""Shardy's own propagation, run by the pass manager of the installed jaxlib."""

from __future__ import annotations

import functools
from typing import cast

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import Attribute, integer_in, parse_attribute
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.parser import parse_apart
from mpmd_trace.jax_compat.mlir import expand_pipeline
from mpmd_trace.jax_compat.repeated_bodies import REPEATED, Changes, run_on_numbered
from mpmd_trace.passes.mlir_pass import failing, run_on_text
from mpmd_trace.passes.option_text import split_outside
from mpmd_trace.passes.sharding.chlo_rules import RULE

#: The part of Shardy's pipeline that partitioning needs ends with this pass.
_LAST = "sdy-insert-func-call-reshards"
_EXPORT = "sdy-export-pipeline{avoid-export-for-partitioning=true}"
#: The last pass of that.
_DROP_RULES = "func.func(sdy-drop-sharding-rules)"
#: Writes debug dumps: printed as a part of the pipeline, but not accepted by the parser.
_DUMP = "sdy-save-module"


@functools.cache
def propagation_pipeline(*, keep_rules: bool = False, alone: bool = False) -> str:
    """Return the passes of this jaxlib's propagation pipeline without those that prepare partitioning by XLA.

    `keep_rules`: ops keep the attribute that says how their operands and results depend on each other.
    `alone`: for a public function with none beside it, so that there are no unused symbols to look for.
    """
    steps = _steps("sdy-propagation-pipeline")
    names = [step.partition("{")[0] for step in steps]
    if _LAST not in names:
        raise MpmdError(
            f"the propagation pipeline of the installed jaxlib has no '{_LAST}'; this version of Shardy is not "
            "supported: install a jaxlib between 0.10 and 0.12"
        )
    export = [step for step in _steps(_EXPORT) if step != _DROP_RULES] if keep_rules else [_EXPORT]
    kept = [s for s in (*steps[: names.index(_LAST) + 1], *export) if not s.startswith(_DUMP)]
    kept = [step for step in kept if not (alone and step == "symbol-dce")]
    return f"builtin.module({','.join(kept)})"


def _steps(pipeline: str) -> list[str]:
    return split_outside(expand_pipeline(f"builtin.module({pipeline})")[len("builtin.module(") : -1], ",")


def run_shardy(
    module: Module, diagnostics: Diagnostics, *, keep_rules: bool = False
) -> tuple[Module, dict[Op, Attribute]] | None:
    """Return a new module, `module` after Shardy's propagation, and the rules of its ops; None when it failed.

    There are rules (`#sdy.op_sharding_rule<...>`) with `keep_rules` alone.
    """
    text = run_on_text(module, propagation_pipeline(keep_rules=keep_rules), diagnostics)
    return None if text is None else parse_apart(text, RULE)


def run_shardy_on_numbered(
    module: Module, name: str, number: str, diagnostics: Diagnostics, *, keep_rules: bool = False
) -> tuple[Module, dict[Op, Attribute]] | None:
    """As `run_shardy`, for a module with a function `name` of fragments and transfers, numbered by an attribute.

    Bodies that are one object are given to Shardy once; where they come out alike, they are read once, and are one
    object afterwards, too.
    """
    function = cast(FuncOp, module.lookup(name))
    ops = {integer_in(op.attrs, number): op for op in function.body}
    bodies = {n: id(op.body) for n, op in ops.items() if n is not None and isinstance(op, FragmentOp)}
    with failing(diagnostics):
        text = _with_bodies_once(module, name)
        pipeline = propagation_pipeline(keep_rules=keep_rules, alone=len(module.functions) == 1)
        run = run_on_numbered(text, pipeline, name, number, bodies)
        diagnostics.found += run.diagnostics
        after, rules = parse_apart(run.text, RULE)
        if run.changes is not None:
            done = cast(FuncOp, after.lookup(name))
            holders = done.body.ops
            for op in holders:
                op.erase()
            mapping: dict[Value, Value] = dict(zip(function.args, done.args, strict=True))
            for n, changes in run.changes.items():
                copy = done.body.append(ops[n].clone(mapping))
                _apply(changes, copy, [op.regions[0] for op in holders])
            done.body.append(function.body.terminator.clone(mapping))
        return after, rules
    return None


def _with_bodies_once(module: Module, name: str) -> str:
    """Return the text of the module, in which function `name` has no bodies that are those of earlier ops."""
    written = module.clone()
    seen: set[Region] = set()
    for op in cast(FuncOp, written.lookup(name)).body:
        if not isinstance(op, FragmentOp):
            continue
        if op.body in seen and op.results:
            types, attributes = [result.type for result in op.results], {**op.props, **op.attrs}
            short = make_op(REPEATED, op.operands, types, attrs=attributes, loc=op.loc)
            op.replace_all_uses_with(cast(Block, op.block).insert_before(op, short).results)
            op.erase()
        seen.add(op.body)
    return written.to_generic(debug_info=True, outlined=False)


def _apply(changes: Changes, op: Op, bodies: list[Region]) -> None:
    for name, text in changes.attributes.items():
        if name == RULE:
            continue
        held = op.props if name in op.props or name in ("in_shardings", "out_shardings") else op.attrs
        if text is None:
            held.pop(name, None)
        else:
            held[name] = parse_attribute(text)
    if changes.region is not None:
        op.regions[0] = bodies[changes.region]
