"""Who calls whom, and how often a step runs a function or makes a value."""

from __future__ import annotations

from mpmd_trace.ir.core import Value
from mpmd_trace.ir.ops import CallOp, FuncOp, Module, local_type
from mpmd_trace.ir.types import TensorType, Type
from mpmd_trace.passes.common.walks import enclosing_function
from mpmd_trace.passes.import_.building_blocks import all_calls


class CallGraph:
    """The functions of a module that are spread over meshes, and their calls."""

    def __init__(self, module: Module) -> None:
        functions = [f for f in module.mpmd_functions if not f.is_declaration]
        self.callees = {f.sym_name: f for f in functions if not f.is_entry_point}
        self.calls: dict[FuncOp, list[CallOp]] = {f: [] for f in functions}
        self.caller: dict[CallOp, FuncOp] = {}
        for call in all_calls(module):
            callee = self.callees.get(call.callee)
            if callee is not None:
                self.calls[callee].append(call)
                self.caller[call] = enclosing_function(call)
        #: Callees before those that call them.
        self.functions = self._callees_first()
        #: How often a step runs each function.
        self.runs: dict[FuncOp, int] = {}
        #: How many different values a step has for an argument: those that calls pass, one for one of the program. None
        #: for integers there (tokens, positions, masks): they are not trained, and are given wherever they are used.
        self.passed: dict[Value, int] = {}
        for function in reversed(self.functions):
            calls = self.calls[function]
            self.runs[function] = int(function.is_entry_point) + sum(map(self.times, calls))
            for arg in function.body.args:
                operands: dict[Value, int] = {}
                for call in calls:
                    value = call.operand(arg.index)
                    if value not in operands or call.repeats == 1:
                        operands[value] = self.times(call)
                is_trained = function.is_entry_point and not _is_integer(arg.type)
                self.passed[arg] = int(is_trained) + sum(operands.values())

    def times(self, call: CallOp) -> int:
        """Return how often a step calls."""
        return self.runs[self.caller[call]] * call.repeats

    def _callees_first(self) -> list[FuncOp]:
        calling: dict[FuncOp, dict[FuncOp, None]] = {f: {} for f in self.calls}
        for callee, calls in self.calls.items():
            for call in calls:
                calling[self.caller[call]][callee] = None
        result: dict[FuncOp, None] = {}

        def visit(function: FuncOp) -> None:
            if function in result:
                return
            for callee in calling[function]:
                visit(callee)
            result[function] = None

        for function in calling:
            visit(function)
        return list(result)


def _is_integer(type: Type) -> bool:
    local = local_type(type)
    return isinstance(local, TensorType) and local.element.startswith(("i", "ui"))
