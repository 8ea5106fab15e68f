"""What a jaxlib module has that passes are better without: calls, and constraints that say nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpmd_trace.jax_compat.mlir import module_to_generic


class Calls:
    """The `func.call`s of a jaxlib module, which is changed in place.

    Constraints on the mesh without axes, as JAX puts on typed keys, are taken out at once.
    """

    def __init__(self, module: Any) -> None:
        from jaxlib.mlir import ir  # late: the command line starts without jaxlib

        #: The functions by name, and for each its calls, in order.
        self.functions: dict[str, Any] = {}
        self.of: dict[str, list[Any]] = {}
        #: The functions that other ops refer to.
        self.roots: set[str] = set()
        result: list[Any] = []
        constraints: list[Any] = []

        def visit(op: Any) -> Any:
            name = op.name
            if name == "func.call":
                result.append(op)
            elif name == "mpmd.call":
                self.roots.add(_callee(op))
            elif name == "sdy.sharding_constraint":
                constraints.append(op)
            return ir.WalkResult.ADVANCE

        empty: list[str] = []
        for top in module.regions[0].blocks[0].operations:
            if top.operation.name == "sdy.mesh" and str(top.operation.attributes["mesh"]) == "#sdy.mesh<[]>":
                empty.append(f"#sdy.sharding<@{top.operation.attributes['sym_name'].value},")
            if top.operation.name == "func.func":
                name = str(ir.StringAttr(top.operation.attributes["sym_name"]).value)
                self.functions[name] = top.operation
                top.operation.walk(visit)
                self.of[name] = list(result)
                result.clear()
        for op in constraints:
            if empty and str(op.attributes["sharding"]).startswith(tuple(empty)):
                _replace(op, list(op.operands))

    def callees(self) -> dict[str, list[str]]:
        """Return the functions that each function calls, one for each call."""
        return {name: [_callee(op) for op in calls] for name, calls in self.of.items()}

    def is_private(self, name: str) -> bool:
        """Return whether only the module itself may call the function."""
        attributes = self.functions[name].attributes
        return "sym_visibility" in attributes and attributes["sym_visibility"].value == "private"

    def inputs(self, name: str) -> tuple[str, ...]:
        """Return the types of the arguments of a function, as text."""
        from jaxlib.mlir import ir  # late: the command line starts without jaxlib

        type = ir.FunctionType(ir.TypeAttr(self.functions[name].attributes["function_type"]).value)
        return tuple(str(one) for one in type.inputs)

    def text(self, names: Sequence[str]) -> str:
        """Return a module of these functions in generic form."""
        from jaxlib.mlir import ir  # late: the command line starts without jaxlib

        with ir.Location.unknown():
            alone = ir.Module.create()
        with ir.InsertionPoint(alone.body):
            for name in names:
                self.functions[name].clone()
        return module_to_generic(alone)

    def replace(self, ops: Mapping[str, Mapping[str, str]]) -> None:
        """Put a `stablehlo.custom_call` with these attributes (MLIR text) in the place of each call of a function."""
        from jaxlib.mlir import ir  # late: the command line starts without jaxlib

        for name, calls in self.of.items():
            left = []
            for call in calls:
                attributes = ops.get(_callee(call))
                if attributes is None:
                    left.append(call)
                    continue
                made = {key: ir.Attribute.parse(text) for key, text in attributes.items()}
                with ir.InsertionPoint(call), call.location:
                    types = [result.type for result in call.results]
                    new = ir.Operation.create("stablehlo.custom_call", types, list(call.operands), made)
                _replace(call, new.results)
            self.of[name] = left

    def inline(self, order: Sequence[str]) -> None:
        """Inline the calls in these functions, callees first, and the functions called."""
        from jaxlib.mlir import ir  # late: the command line starts without jaxlib
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext

        for name in order:
            for call in self.of[name]:
                with ir.InsertionPoint(call), call.location:
                    results = _jax_mlir_ext.inlined_func_call(self.functions[_callee(call)], list(call.operands))
                _replace(call, results)
            self.of[name] = []

    def can_inline(self, name: str) -> bool:
        """Return whether a function is one block that may be put in the place of a call."""
        function = self.functions.get(name)
        if function is None or "no_inline" in function.attributes:
            return False
        return len(list(function.regions[0].blocks)) == 1


def _callee(call: Any) -> str:
    return str(call.attributes["callee"].value)


def _replace(call: Any, values: Sequence[Any]) -> None:
    for old, new in zip(call.results, values, strict=True):
        old.replace_all_uses_with(new)
    call.erase()
