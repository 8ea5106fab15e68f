"""`mpmd-mark-input-output-with-layouts`: fragments agree with the program's inputs and outputs on layouts."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import Attribute, DictAttr, StringAttr
from mpmd_trace.ir.core import Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.export.value_attrs import EMPTY, LAYOUT_MODE, array_of, value_dicts
from mpmd_trace.passes.mesh_order import is_cpu_mesh

_DEFAULT = StringAttr.get("default")
_AUTO = StringAttr.get("auto")


class MarkInputOutputWithLayouts(FunctionPass):
    """Copy `mhlo.layout_mode` of program inputs and outputs to the fragments that read or compute them.

    A missing attribute means the default layout; "auto" lets XLA choose. For each argument of the program, then for
    each result of each fragment, the layout is the one with which it is returned, if given there, or else its own.
    "auto" is kept only where a single fragment decides; otherwise it becomes the default, as does the layout of
    everything that goes to a host mesh. The layout is written to all fragments that read the value and to the returns,
    also behind transfers.

    It is an error if a value is returned with two layouts, or if a returned argument has another layout than the
    result.

    Before:

        func.func public @main(%p: !a {mhlo.layout_mode = "auto"}) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %0 : !a
        }

    After:

        func.func public @main(%arg0: !a {mhlo.layout_mode = "auto"}) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0)
              {arg_attrs = [{mhlo.layout_mode = "auto"}], res_attrs = [{}]} (%arg1: !t) {
            %1 = stablehlo.negate %arg1 : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-mark-input-output-with-layouts"
    summary = "make the layouts of fragments and program inputs and outputs agree"
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        marker = _Marker(function, diagnostics)
        marker.arguments()
        marker.fragments()
        marker.finish()
        return True


def _layout(attributes: DictAttr) -> Attribute:
    """Return the layout, `_DEFAULT` when there is none."""
    return attributes.entries.get(LAYOUT_MODE, _DEFAULT)


def _compatible(a: Attribute, b: Attribute) -> bool:
    return a is b or a is _AUTO or b is _AUTO


def _write(dicts: list[DictAttr], index: int, layout: Attribute) -> None:
    old = dicts[index]
    if layout is not _DEFAULT:
        if old.entries.get(LAYOUT_MODE) is not layout:
            dicts[index] = old.with_(LAYOUT_MODE, layout)
    elif LAYOUT_MODE in old.entries:
        dicts[index] = old.without(LAYOUT_MODE)


def _goes_to_cpu(op: TransferOp) -> bool:
    return is_cpu_mesh(op.target_type.mesh)


@dataclasses.dataclass
class _Users:
    """What the users of a value want: the common layout of the function results that it is (else auto)."""

    common: Attribute = _AUTO
    decided_at: int = -1
    transfers: int = 0
    others: int = 0
    to_cpu: bool = False


class _Marker:
    def __init__(self, function: FuncOp, diagnostics: Diagnostics) -> None:
        self.function = function
        self.diagnostics = diagnostics
        self.terminator = function.body.terminator
        self.arg_attrs = function.arg_attrs
        self.res_attrs = function.res_attrs
        self.inputs: dict[FragmentOp, list[DictAttr]] = {}  # of the fragments that were reached

    def users(self, value: Value) -> _Users:
        result = _Users()
        use = value.first_use
        while use is not None:
            op, index = use.owner, use.index
            use = use.next
            if isinstance(op, TransferOp):
                result.transfers += 1
                result.to_cpu = result.to_cpu or _goes_to_cpu(op)
            elif op is self.terminator:
                layout = _layout(self.res_attrs[index])
                if not _compatible(layout, result.common):
                    raise self.diagnostics.fatal(
                        op,
                        f"result {index} of @{self.function.sym_name} has layout {layout.text}, but the same value "
                        f"is also result {result.decided_at}, with layout {result.common.text}; one buffer has one "
                        "layout, so give both results the same",
                    )
                if layout is not _AUTO:
                    result.common, result.decided_at = layout, index
            else:
                result.others += 1
        return result

    def push(self, value: Value, layout: Attribute) -> None:
        """Tell the users of `value`, behind transfers too, which layout it has."""
        todo = [(value, layout)]
        inputs = self.inputs
        while todo:
            current, chosen = todo.pop()
            use = current.first_use
            while use is not None:
                op, index = use.owner, use.index
                use = use.next
                if isinstance(op, FragmentOp):
                    dicts = inputs.get(op)
                    if dicts is None:
                        dicts = inputs[op] = list(value_dicts(op, "arg_attrs") or [EMPTY] * op.num_operands)
                    if chosen is not _DEFAULT or dicts[index] is not EMPTY:
                        _write(dicts, index, chosen)
                elif op is self.terminator:
                    _write(self.res_attrs, index, chosen)
                elif isinstance(op, TransferOp):
                    todo.append((op.results[0], _DEFAULT if _goes_to_cpu(op) else chosen))

    def arguments(self) -> None:
        for i, arg in enumerate(self.function.args):
            if not arg.has_uses:
                continue
            chosen = _layout(self.arg_attrs[i])
            users = self.users(arg)
            if not _compatible(chosen, users.common):
                raise self.diagnostics.fatal(
                    self.function,
                    f"argument {i} of @{self.function.sym_name} has layout {chosen.text}, but it is returned as "
                    f"result {users.decided_at} with layout {users.common.text}; an argument that is returned as it "
                    "is keeps its layout, so give both the same",
                )
            if users.common is not _AUTO:
                chosen = users.common
            if users.to_cpu:
                self.warn_about_cpu(arg, f"argument {i} of @{self.function.sym_name}", chosen)
                chosen = _DEFAULT
            elif chosen is _AUTO and users.others + users.transfers > 1:
                chosen = _DEFAULT
            _write(self.arg_attrs, i, chosen)
            self.push(arg, chosen)

    def fragments(self) -> None:
        for op in self.function.body:
            if not isinstance(op, FragmentOp):
                continue
            outputs = list(value_dicts(op, "res_attrs") or [EMPTY] * len(op.results))
            for k, result in enumerate(op.results):
                if not result.has_uses:
                    _write(outputs, k, _AUTO)
                else:
                    chosen = self.result_layout(result, op)
                    _write(outputs, k, chosen)
                    self.push(result, chosen)
            op.attrs["res_attrs"] = array_of(outputs)

    def result_layout(self, result: Value, op: FragmentOp) -> Attribute:
        users = self.users(result)
        if users.to_cpu:
            self.warn_about_cpu(op, "a result of the fragment", users.common)
            return _DEFAULT
        if users.common is _AUTO and users.others + users.transfers > 0:
            return _DEFAULT
        return users.common

    def warn_about_cpu(self, where: Value | FragmentOp, what: str, layout: Attribute) -> None:
        if not _compatible(layout, _DEFAULT):
            self.diagnostics.warning(
                where,
                f"{what} has layout {layout.text}, but it goes to a host mesh, where only the default layout exists; "
                "the default layout is used everywhere",
            )

    def finish(self) -> None:
        for op, dicts in self.inputs.items():
            op.attrs["arg_attrs"] = array_of(dicts)
        self.function.set_all_arg_attrs(self.arg_attrs)
        self.function.set_all_res_attrs(self.res_attrs)
