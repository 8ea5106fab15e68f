"""`mpmd-enforce-user-shardings`: inputs and outputs have the shardings of the function's signature."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from mpmd_trace.ir.attributes import DictAttr, TensorShardingAttr
from mpmd_trace.ir.core import BlockArg, Op, OpResult, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.ir.shardings import sharding_like
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.sharding.edges import (
    SHARDING,
    in_sharding,
    set_fragment_shardings,
    set_result_shardings,
    user_sharding,
)


class EnforceUserShardings(FunctionPass):
    """Use the shardings of the signature in fragments and transfers that read arguments or compute results.

    First, every fragment that reads an argument gets its sharding there. Then the fragment or transfer that computes a
    result gets the sharding of the result, and so do the fragments that read the value. Inputs and outputs of a program
    cannot be sharded over parts of axes; these are dropped, with a warning.

    Before:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !a attributes
            {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{}]>]> (%p) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %0 : !a
        }

    After:

        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%arg0: !a {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !a attributes
            {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"], in_shardings=[<@mesh, [{"x"}]>]> (%arg0) (%arg1: !t) {
            %1 = stablehlo.negate %arg1 : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-enforce-user-shardings"
    summary = "use the shardings of the function signature at its first and last ops"
    only_with = ("shardings",)
    mpmd_only = True
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        _enforce_arguments(function, diagnostics)
        _enforce_results(function, diagnostics)
        return True


def without_sub_axes(sharding: TensorShardingAttr) -> TensorShardingAttr:
    """Return the sharding whose dimensions end before their first sub-axis; a shortened dimension is closed."""
    dims = []
    for i, dim in enumerate(sharding.dims):
        axes = sharding.dim_axes(i)
        whole = list(itertools.takewhile(lambda axis: axis.size is None, axes))
        dims.append(dim if len(whole) == len(axes) else "{" + ", ".join(axis.text for axis in whole) + "}")
    return sharding_like(sharding, dims=dims) if tuple(dims) != sharding.dims else sharding


def _warn(where: Op | Value, what: str, numbers: list[int], function: FuncOp, diagnostics: Diagnostics) -> None:
    diagnostics.warn_once(
        f"sub-axes of {what}s",
        where,
        f"{what} {', '.join(map(str, numbers))} of @{function.sym_name} has a sharding with sub-axes, which "
        "program inputs and outputs cannot have; each dimension is cut before its first sub-axis. Shard by "
        "whole mesh axes to keep the sharding",
    )


def _shardings(dicts: Iterable[DictAttr]) -> Iterator[tuple[int, TensorShardingAttr, bool]]:
    """Yield for each that has one its number, its sharding without sub-axes, and whether it had any."""
    for i, attributes in enumerate(dicts):
        given = user_sharding(attributes)
        if given is not None:
            sharding = without_sub_axes(given)
            yield i, sharding, sharding is not given


def _enforce_arguments(function: FuncOp, diagnostics: Diagnostics) -> None:
    cut: list[int] = []
    for i, sharding, is_cut in _shardings(function.arg_attrs):
        if is_cut:
            function.set_arg_attr(i, SHARDING, sharding)
            cut.append(i)
        _set_uses(function.args[i], sharding, others_open=False)
    if cut:
        _warn(function.args[cut[0]], "argument", cut, function, diagnostics)


def _set_uses(value: Value, sharding: TensorShardingAttr, *, others_open: bool) -> None:
    """Make the fragments that read `value` expect this sharding; see `set_fragment_shardings`."""
    for use in value.uses:
        op = use.owner
        if isinstance(op, FragmentOp) and in_sharding(op, use.index) is not sharding:
            set_fragment_shardings(op, "in_shardings", {use.index: sharding}, others_open=others_open)


def _enforce_results(function: FuncOp, diagnostics: Diagnostics) -> None:
    cut: list[int] = []
    returned = function.returned
    for i, sharding, is_cut in _shardings(function.res_attrs):
        value = returned[i]
        if is_cut:
            cut.append(i)
        if isinstance(value, BlockArg) and is_cut:  # a returned argument is cut as its result is
            function.set_arg_attr(value.index, SHARDING, sharding)
        if isinstance(value, OpResult) and isinstance(value.op, FragmentOp | TransferOp):
            set_result_shardings(value, sharding)
            _set_uses(value, sharding, others_open=True)
    if cut:
        _warn(function.body.terminator, "result", cut, function, diagnostics)
