"""`mpmd-sink-create-token-into-fragments`: no token crosses the border of a fragment."""

from __future__ import annotations

import logging

from mpmd_trace.ir.attributes import ArrayAttr, Attribute, TensorShardingPerValueAttr
from mpmd_trace.ir.bodies import map_ops, remembers
from mpmd_trace.ir.core import Region, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.body_rewrites import replace_op

_log = logging.getLogger(__name__)


class SinkCreateTokenIntoFragments(FunctionPass):
    """Let each fragment create the tokens that it needs, instead of reading them.

    First, token operands are removed from all fragments, with their entries in lists, and the bodies get a
    `create_token` for each; then token results, which are now unused, are removed.

    Before:

        %0 = stablehlo.create_token : !stablehlo.token
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %0) (%u: !t, %k: !stablehlo.token) {
          %v = stablehlo.after_all %k : !stablehlo.token
          mpmd.return %u : !t
        } : (!a, !stablehlo.token) -> !a
        return %1 : !a

    After:

        %0 = stablehlo.create_token : !stablehlo.token
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %2 = stablehlo.create_token : !stablehlo.token
          %3 = stablehlo.after_all %2 : !stablehlo.token
          mpmd.return %u : !t
        } : (!a) -> !a
        return %1 : !a
    """

    name = "mpmd-sink-create-token-into-fragments"
    summary = "create tokens inside the fragments that use them"
    only_with = ("stablehlo.create_token", "stablehlo.after_all", "stablehlo.custom_call")
    distributed_only = False
    mpmd_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        fragments = [
            op
            for op in function.body
            if isinstance(op, FragmentOp) and (_has_tokens(op.body) or op.num_operands != len(op.body.block.args))
        ]
        changed = [_drop_token_operands(op) for op in fragments]
        changed += [_drop_token_results(op, diagnostics) for op in fragments]
        return any(changed)


@remembers
def _has_tokens(body: Region) -> bool:
    """Return whether a token is among the arguments and results of the body."""
    return any(value.type.is_token for value in [*body.block.args, *body.returned])


def _filter(held: dict[str, Attribute], key: str, gone: set[int]) -> None:
    """Remove the entries of the values that went from a list attribute, if there is one."""
    old = held.get(key)
    if isinstance(old, ArrayAttr):
        held[key] = ArrayAttr.get(e for i, e in enumerate(old.elements) if i not in gone)
    elif isinstance(old, TensorShardingPerValueAttr):
        held[key] = TensorShardingPerValueAttr.get(s for i, s in enumerate(old.shardings) if i not in gone)


def _drop_token_operands(op: FragmentOp) -> bool:
    tokens = tuple(i for i, v in enumerate(op.operands) if v.type.is_token)
    if not tokens:
        return False
    if op.num_operands != len(op.body.block.args):
        _log.info("a fragment with %d operands has %d arguments", op.num_operands, len(op.body.block.args))
        return False
    op.body = map_ops(op.body, ("create tokens", tokens), lambda body: _create_tokens(body, tokens))
    op.erase_operands(tokens)
    _filter(op.props, "in_shardings", set(tokens))
    _filter(op.attrs, "arg_attrs", set(tokens))
    return True


def _create_tokens(region: Region, tokens: tuple[int, ...]) -> bool:
    block = region.block
    for i in reversed(tokens):
        arg = block.args[i]
        token = block.insert_front(make_op("stablehlo.create_token", (), [arg.type], loc=arg.loc))
        arg.replace_all_uses_with(token.results[0])
    block.erase_args(tokens)
    return True


def _return_without(region: Region, tokens: set[int]) -> bool:
    region.block.terminator.erase_operands(tokens)
    return True


def _drop_token_results(op: FragmentOp, diagnostics: Diagnostics) -> bool:
    tokens = {i for i, r in enumerate(op.results) if r.type.is_token}
    if not tokens:
        return False
    for i in sorted(tokens):
        if op.results[i].has_uses:
            raise diagnostics.fatal(
                op,
                f"result {i} of the fragment on mesh '{op.mesh}' is a token that '{op.results[i].users[0].name}' "
                "uses, but tokens order effects inside of one fragment only; do not return or transfer tokens",
            )
    body = map_ops(op.body, ("return no tokens", frozenset(tokens)), lambda body: _return_without(body, tokens))
    new = replace_op(op, op.operands, [r for r in op.results if r.index not in tokens], regions=[body])
    _filter(new.props, "out_shardings", tokens)
    _filter(new.attrs, "res_attrs", tokens)
    return True
