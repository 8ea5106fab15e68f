"""`mpmd-mark-offloaded-input-output`: fragments say which of their inputs and outputs are in host memory."""

from __future__ import annotations

from typing import cast

from mpmd_trace.ir.attributes import ArrayAttr, Attribute, DictAttr, StringAttr, SymbolRefAttr
from mpmd_trace.ir.core import BlockArg, Op, OpResult, Region, Use, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.types import TensorType, Type
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.export.value_attrs import (
    EMPTY,
    MEMORY_KIND,
    PINNED_HOST,
    array_of,
    inserted,
    is_pinned_host,
    memory_kind,
    mentions,
    none_of,
    value_dicts,
)


class MarkOffloadedInputOutput(FunctionPass):
    """Mark operands and results in pinned host memory in `arg_attrs` and `res_attrs` of fragments.

    An operand is marked if it is an argument of the program with `mhlo.memory_kind = "pinned_host"`, or a marked result
    of a fragment. A result is marked if the body computes it there: according to `_xla_compute_type` of its op, or else
    to a custom call `annotate_device_placement` from which it comes through reshapes, loops, barriers and updates.

    All users of an argument of the program must read it from the same memory, and a result must be where its producer
    puts it; otherwise, all differences are reported, and the pass fails.

    Before:

        func.func public @main(%p: !a {mhlo.memory_kind = "pinned_host"}) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %0 : !a
        }

    After:

        func.func public @main(%arg0: !a {mhlo.memory_kind = "pinned_host"}) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0)
              {arg_attrs = [{mhlo.memory_kind = "pinned_host"}], res_attrs = [{}]} (%arg1: !t) {
            %1 = stablehlo.negate %arg1 : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-mark-offloaded-input-output"
    summary = "mark fragment arguments and results that live in host memory"
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        _mark(function, HostMemory(module, diagnostics), diagnostics)
        check = _Check(function, diagnostics)
        check.arguments()
        check.results()
        return True


def _mark(function: FuncOp, memory: HostMemory, diagnostics: Diagnostics) -> None:
    on_host: set[Value] = {
        arg for arg, attributes in zip(function.args, function.arg_attrs, strict=True) if is_pinned_host(attributes)
    }
    for op in function.body:
        if isinstance(op, FragmentOp):
            if not on_host or on_host.isdisjoint([use.value for use in op.operand_uses]):
                _set_default(op, "arg_attrs", op.num_operands)
            else:
                inputs = list(value_dicts(op, "arg_attrs") or (EMPTY,) * op.num_operands)
                for i, value in enumerate(op.operands):
                    if value in on_host:
                        inputs[i] = inserted(op, inputs[i], MEMORY_KIND, PINNED_HOST, diagnostics)
                op.attrs["arg_attrs"] = array_of(inputs)
            host_results = memory.host_results(op.body)
            _set_default(op, "res_attrs", len(op.results))
            if host_results or mentions(cast(ArrayAttr, op.attrs["res_attrs"]), MEMORY_KIND, PINNED_HOST):
                outputs = list(value_dicts(op, "res_attrs") or ())
                for k in host_results:
                    outputs[k] = inserted(op, outputs[k], MEMORY_KIND, PINNED_HOST, diagnostics)
                on_host.update(r for r, d in zip(op.results, outputs, strict=True) if is_pinned_host(d))
                op.attrs["res_attrs"] = array_of(outputs)


def _set_default(op: FragmentOp, which: str, count: int) -> None:
    if not value_dicts(op, which):
        op.attrs[which] = none_of(count)


def _on_device(kind: Attribute | None) -> bool:
    return kind is None or kind.text == '"device"'


def _shown(kind: Attribute | None) -> str:
    return "no memory kind (device)" if kind is None else f"memory kind {kind.text}"


def _named(op: Op) -> str:
    """`func.return (file:line:column)`; in the message because the reference attaches no notes."""
    return op.name if op.loc.resolved == "unknown" else f"{op.name} ({op.loc})"


class _Check:
    """Compares the signature of a function with the fragments that read arguments or make results."""

    def __init__(self, function: FuncOp, diagnostics: Diagnostics) -> None:
        self.function = function
        self.diagnostics = diagnostics
        self.terminator = function.body.terminator
        self.arg_attrs = function.arg_attrs
        self.res_attrs = function.res_attrs
        #: Whether the users of arguments may want one in a certain memory at all.
        self.users_care = any(MEMORY_KIND in d.entries for d in self.res_attrs) or any(
            isinstance(op, FragmentOp) and mentions(cast(ArrayAttr, op.attrs["arg_attrs"]), MEMORY_KIND)
            for op in function.body
        )

    def kind_at(self, op: object, index: int) -> Attribute | None:
        """Return the memory kind that `op` expects of its operand `index`."""
        if isinstance(op, FragmentOp):
            dicts = value_dicts(op, "arg_attrs")
            return memory_kind(dicts[index]) if dicts else None
        return memory_kind(self.res_attrs[index]) if op is self.terminator else None

    def arguments(self) -> None:
        for i, arg in enumerate(self.function.args):
            if not arg.has_uses:
                continue
            first, *others = arg.uses if self.users_care else [cast(Use, arg.first_use)]
            common = self.kind_at(first.owner, first.index)
            for use in others:
                kind = self.kind_at(use.owner, use.index)
                if kind is not common:
                    self.diagnostics.refuse(
                        arg,
                        f"the users of argument {i} of @{self.function.sym_name} expect it in different memories: "
                        f"{_named(first.owner)} wants {_shown(common)}, {_named(use.owner)} wants {_shown(kind)}; "
                        "one buffer is in one place, so use the same memory kind everywhere or copy the value",
                    )
            given = memory_kind(self.arg_attrs[i])
            if _on_device(given) != _on_device(common):
                self.diagnostics.refuse(
                    arg,
                    f"argument {i} of @{self.function.sym_name} has {_shown(given)}, but its users expect "
                    f"{_shown(common)}; give the argument and its users the same memory kind",
                )

    def results(self) -> None:
        for i, value in enumerate(self.terminator.operands):
            produced: Attribute | None = None
            if isinstance(value, BlockArg):
                produced = memory_kind(self.arg_attrs[value.index])
            elif isinstance(value, OpResult) and isinstance(value.op, FragmentOp):
                outputs = value_dicts(value.op, "res_attrs")
                produced = memory_kind(outputs[value.index]) if outputs else None
            wanted = memory_kind(self.res_attrs[i])
            if _on_device(wanted) != _on_device(produced):
                self.diagnostics.refuse(
                    self.terminator,
                    f"result {i} of @{self.function.sym_name} is declared with {_shown(wanted)}, but what produces it "
                    f"gives {_shown(produced)}; correct the memory kind of the output, or move the value where it is "
                    "computed",
                )


# Which results of a body are in host memory: follows values back to placement annotations.


_FORWARDING_CALLS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})


class HostMemory:
    """Answers for the bodies of one module; every distinct body is looked at once."""

    def __init__(self, module: Module, diagnostics: Diagnostics) -> None:
        self._module = module
        self._diagnostics = diagnostics
        self._known: dict[Region, tuple[int, ...]] = {}

    def host_results(self, body: Region) -> tuple[int, ...]:
        """Return the numbers of the returned values that are in pinned host memory."""
        if body not in self._known:
            self._known[body] = tuple(k for k, value in enumerate(body.returned) if self._in_host_memory(value))
        return self._known[body]

    def _in_host_memory(self, value: Value) -> bool:
        current: Value | None = value
        while isinstance(current, OpResult):
            op = current.op
            frontend = op.attrs.get("mhlo.frontend_attributes")
            entries = frontend.entries if isinstance(frontend, DictAttr) else {}
            if "_xla_compute_type" in entries:
                return _text(entries["_xla_compute_type"]) == "host"
            if _call_target(op) == "annotate_device_placement":
                if "_xla_buffer_placement" not in entries:
                    raise self._diagnostics.fatal(
                        op,
                        "the custom call 'annotate_device_placement' has no '_xla_buffer_placement' in its "
                        "mhlo.frontend_attributes, so it does not say where its result lives; add "
                        '"device" or "pinned_host"',
                    )
                return _text(entries["_xla_buffer_placement"]) == "pinned_host"
            current = self._source(current, op)
        return False

    def _source(self, value: OpResult, op: Op) -> Value | None:
        """Return the value whose memory decides, for ops that do not move data between memories."""
        if op.name == "stablehlo.optimization_barrier":
            return op.operand(value.index)
        if op.name == "stablehlo.while":
            return op.regions[1].block.terminator.operand(value.index)
        if op.name == "stablehlo.dynamic_update_slice":
            return op.operand(1)
        if op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
            same = _squeezed(op.operand(0).type) == _squeezed(value.type)
            return op.operand(0) if same else None
        if _call_target(op) in _FORWARDING_CALLS:
            return op.operand(0)
        if op.name == "func.call":
            callee = op.attr("callee")
            function = self._module.lookup(callee.name) if isinstance(callee, SymbolRefAttr) else None
            if function is not None and not function.is_declaration:
                return function.body.terminator.operand(value.index)
        return None


def _text(attribute: Attribute) -> str | None:
    return attribute.value if isinstance(attribute, StringAttr) else None


def _call_target(op: Op) -> str | None:
    target = op.attr("call_target_name") if op.name == "stablehlo.custom_call" else None
    return None if target is None else _text(target)


def _squeezed(type: Type) -> tuple[int, ...] | None:
    if not isinstance(type, TensorType) or type.shape is None:
        return None
    return tuple(size for size in type.shape if size != 1)
