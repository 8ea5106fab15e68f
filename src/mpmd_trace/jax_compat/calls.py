"""Removal of calls, and of constraints that say nothing, from jaxlib modules before passes.

Lowering makes a function of each distinct body of named computations, with the attribute `mpmd_trace.body`.  All that a
region of a named computation does is to call it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.jax_compat.mlir import module_to_generic

BODY = "mpmd_trace.body"


def with_bodies(module: Any) -> Any:
    """Return a copy of a jaxlib module in which named computations have bodies of their own."""
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    with module.context, ir.Location.unknown():
        copy = ir.Module.create(module.operation.location)
        for name in module.operation.attributes:
            copy.operation.attributes[name] = module.operation.attributes[name]
        with ir.InsertionPoint(copy.body):
            tops = [op.operation.clone().operation for op in module.body.operations]
        functions = {_name(top): top for top in tops if top.name == "func.func"}
        bodies = {name: function for name, function in functions.items() if BODY in function.attributes}
        waiting = dict(functions)

        def fill(name: str) -> None:
            function = waiting.pop(name, None)
            for op in () if function is None else _named_computations(function):
                callee = _callee(op.regions[0].blocks[0].operations[0])
                fill(callee)
                _fill(op, bodies[callee].clone().regions[0].blocks[0])

        for name in functions:
            fill(name)
        for function in bodies.values():
            function.erase()
    return copy


def _named_computations(function: Any) -> list[Any]:
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    result: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "mpmd.named_computation":
            result.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return result


def _fill(op: Any, block: Any) -> None:
    """Replace a named computation by one with the block of a function as its body."""
    from jaxlib.mlir import ir  # late: the command line starts without jaxlib

    types, attributes = [r.type for r in op.results], {name: op.attributes[name] for name in op.attributes}
    with ir.InsertionPoint(op), op.location:
        new = ir.Operation.create(op.name, types, list(op.operands), attributes, regions=1)
    block.append_to(new.regions[0])
    last = block.operations[len(block.operations) - 1].operation
    with ir.InsertionPoint(last), last.location:
        ir.Operation.create("mpmd.return", operands=list(last.operands))
    last.erase()
    _replace(op, new.results)


class Calls:
    """The `func.call`s of a jaxlib module, which is changed in place.

    Constraints on the mesh without axes, as JAX puts on typed keys, are taken out at once.
    """

    def __init__(self, module: Any) -> None:
        from jaxlib.mlir import ir  # late: the command line starts without jaxlib

        #: The functions by name, and for each its calls, in order.
        self.functions: dict[str, Any] = {}
        self.of: dict[str, list[Any]] = {}
        #: The functions that other ops refer to, and those that are the bodies of named computations.
        self.roots: set[str] = set()
        self.bodies: list[str] = []
        #: The functions with an op that has side effects.
        self.effects: set[str] = set()
        constraints: list[Any] = []
        own = ""

        def visit(op: Any) -> Any:
            name = op.name
            if name == "func.call":
                self.of[own].append(op)
            elif name == "mpmd.call":
                self.roots.add(_callee(op))
            elif name == "sdy.sharding_constraint":
                constraints.append(op)
            elif name == "stablehlo.custom_call":
                attributes = op.attributes
                if "has_side_effect" in attributes and attributes["has_side_effect"].value:
                    self.effects.add(own)
            return ir.WalkResult.ADVANCE

        empty: list[str] = []
        for top in module.regions[0].blocks[0].operations:
            if top.operation.name == "sdy.mesh" and str(top.operation.attributes["mesh"]) == "#sdy.mesh<[]>":
                empty.append(f"#sdy.sharding<@{top.operation.attributes['sym_name'].value},")
            if top.operation.name == "func.func":
                own = _name(top.operation)
                self.functions[own], self.of[own] = top.operation, []
                if BODY in top.operation.attributes:
                    self.bodies.append(own)
                top.operation.walk(visit)
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

    def keep_bodies(self, effects: Container[str]) -> None:
        """Have bodies of named computations handled once: their calls are not inlined; those with `effects` stay."""
        self.replace(
            {
                name: {
                    "call_target_name": quote(BODY),
                    "backend_config": quote(name),
                    "has_side_effect": "true" if name in effects else "false",
                }
                for name in self.bodies
            }
        )
        for name in self.bodies:
            del self.functions[name].attributes["sym_visibility"]

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


def _name(function: Any) -> str:
    return str(function.attributes["sym_name"].value)


def _callee(call: Any) -> str:
    return str(call.attributes["callee"].value)


def _replace(call: Any, values: Sequence[Any]) -> None:
    for old, new in zip(call.results, values, strict=True):
        old.replace_all_uses_with(new)
    call.erase()
