"""What a module at any stage of the compiler means as a plain single-device program.

Meshes, names, transfers and shardings are where and when a program computes; without them remains what it
computes.  `Meaning` walks a function and says so op by op, for whatever stands for a value: for `Eraser` ops of a
new module, for the interpreter arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, cast

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.diagnostics.mlir_text import unquote
from mpmd_trace.ir import functions
from mpmd_trace.ir.attributes import SYMBOL, SymbolRefAttr, parse_attribute
from mpmd_trace.ir.bodies import free_values
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import describe
from mpmd_trace.ir.ops import (
    CallOp,
    ForOp,
    FragmentCallOp,
    FragmentOp,
    FuncOp,
    Module,
    NamedComputationOp,
    ReduceOp,
    local_type,
)
from mpmd_trace.ir.outlined import insert_calls, outlined_callee
from mpmd_trace.ir.semantics import REDUCTION_OPS
from mpmd_trace.ir.types import TensorType, Type

V = TypeVar("V")

#: Result i is operand i: the op only says where or how a value is kept.
IDENTITIES = frozenset(
    {
        "mpmd.assign",
        "mpmd.broadcast",
        "mpmd.named_tensor",
        "mpmd.transfer",
        "mpmd.unassign",
        "sdy.all_gather",
        "sdy.all_reduce",
        "sdy.all_slice",
        "sdy.all_to_all",
        "sdy.collective_permute",
        "sdy.data_flow_edge",
        "sdy.propagation_barrier",
        "sdy.reduce_scatter",
        "sdy.replicated_to_unreduced",
        "sdy.reshard",
        "sdy.sharded_to_unreduced",
        "sdy.sharding_constraint",
    }
)
_IDENTITY_TARGETS = frozenset({'"Sharding"', '"annotate_device_placement"', '"LayoutConstraint"'})
#: Attributes that say where, when or why, but not what.
_NOTES = ("sdy.", "mhlo.sharding", "mpmd.", "call_counter", "unroll_counter")


def is_note(attribute: str) -> bool:
    """Return whether an attribute of that name says where, when or why, but not what."""
    return attribute.startswith(_NOTES)


def is_identity(op: Op) -> bool:
    """Return whether the values of `op` are its operands."""
    if op.name == "stablehlo.custom_call":
        target = op.attr("call_target_name")
        return target is not None and target.text in _IDENTITY_TARGETS and len(op.results) == 1
    return op.name in IDENTITIES


class Meaning(ABC, Generic[V]):
    """Walks the ops of functions in order; `V` stands for values."""

    def __init__(self, module: Module) -> None:
        self.functions: dict[str, FuncOp] = {f.sym_name: f for f in (*module.outlined, *module.functions)}
        self.module = module

    @abstractmethod
    def leaf(self, op: Op, env: dict[Value, V]) -> list[V]:
        """Return the results of an op of another dialect; `env` has its operands and free values."""

    @abstractmethod
    def index(self, number: int, type: TensorType) -> V:
        """Return the index of a loop iteration."""

    @abstractmethod
    def combine(self, op_name: str, left: V, right: V, type: Type) -> V:
        """Return a StableHLO op with two operands of the type of its result."""

    def call(self, function: FuncOp, args: Sequence[V]) -> list[V]:
        """Return the values that `function` returns."""
        if function.is_declaration:
            raise MpmdError(f"@{function.sym_name} has no body")
        return self.region(function.regions[0], args, {})

    def region(self, region: Region, args: Sequence[V], outer: Mapping[Value, V]) -> list[V]:
        """Return the values that a region returns; arguments beyond those of its block are control operands."""
        block = region.block
        env: dict[Value, V] = dict(outer)
        env.update(zip(block.args, args, strict=False))
        terminator = block.terminator
        for op in block:
            if op is not terminator:
                env.update(zip(op.results, self.op(op, env), strict=True))
        return [env[v] for v in terminator.operands]

    def op(self, op: Op, env: dict[Value, V]) -> list[V]:
        """Return the results of `op`."""
        if is_identity(op):
            return [env[op.operand(i)] for i in range(len(op.results))]
        if isinstance(op, (FragmentOp, NamedComputationOp)) or op.name == "sdy.named_computation":
            return self.region(op.regions[0], [env[v] for v in op.operands], {})
        if isinstance(op, (CallOp, FragmentCallOp)) or op.name == "func.call":
            return self.call(self.callee(op), [env[v] for v in op.operands])
        if isinstance(op, ForOp):
            values = [env[v] for v in op.operands]
            index_type = cast(TensorType, local_type(op.body.block.args[-1].type))
            for i in range(op.iterations):
                values = self.region(op.body, [*values, self.index(i, index_type)], env)
            return values
        if isinstance(op, ReduceOp):
            value = env[op.operand(0)]
            for other in op.operands[1:]:
                value = self.combine(REDUCTION_OPS[op.kind], value, env[other], local_type(op.results[0].type))
            return [value]
        if op.name == "sdy.sharding_group":
            return []
        if (outlined := outlined_callee(op)) is not None:
            return self.call(self.functions[outlined], [env[v] for v in op.operands])
        return self.leaf(op, env)

    def callee(self, op: Op) -> FuncOp:
        name = cast(SymbolRefAttr, op.attr("callee")).name
        result = self.functions.get(name)
        if result is None:
            raise MpmdError(f"there is no function @{name} to call:\n  {describe(op)}")
        return result


class Eraser(Meaning[Value]):
    """Emits the plain program into `block`; `used` collects the functions that leaves refer to."""

    def __init__(self, module: Module, block: Block) -> None:
        super().__init__(module)
        self.block = block
        self.used: dict[str, FuncOp] = {}

    def program(self, returned: list[Value]) -> Module:
        """Return a new module whose `@main` is the block and returns these values."""
        result = Module(resources=self.module.resources)
        result.body.append(make_function("main", self.block, returned))
        for used in self.used.values():
            result.body.append(used)
        keep_meshes(self.module, result)
        return result

    def leaf(self, op: Op, env: dict[Value, Value]) -> list[Value]:
        copy = self.block.append(op.clone(env))
        clean(copy)
        for region in copy.regions:
            insert_calls(region)
        self._note_functions(copy)
        return list(copy.results)

    def index(self, number: int, type: TensorType) -> Value:
        value = parse_attribute(f"dense<{number}> : {type.text}")
        return self.block.append(make_op("stablehlo.constant", [], [type], props={"value": value})).results[0]

    def combine(self, op_name: str, left: Value, right: Value, type: Type) -> Value:
        return self.block.append(make_op(op_name, [left, right], [type])).results[0]

    def _note_functions(self, op: Op) -> None:
        for nested in op.walk():
            for attribute in (*nested.props.values(), *nested.attrs.values()):
                if "@" not in attribute.text:
                    continue
                for match in SYMBOL.finditer(attribute.text):
                    name = match.group(1)
                    name = unquote(name) if name.startswith('"') else name
                    function = self.functions.get(name)
                    if function is not None and name not in self.used:
                        copy = function.clone()
                        copy.props.pop("arg_attrs", None)
                        copy.props.pop("res_attrs", None)
                        copy.visibility = "private"
                        self.used[name] = copy
                        clean(copy)
                        self._note_functions(copy)


def clean(op: Op) -> None:
    """Strip shardings from an op of a mutable block and drop what is an identity in its regions."""
    for nested in list(op.walk()):
        for name in [n for n in nested.attrs if is_note(n)]:
            del nested.attrs[name]
        if nested.name == "sdy.constant":
            nested.name = "stablehlo.constant"
        elif nested is op:
            continue
        elif is_identity(nested):
            nested.replace_all_uses_with(nested.operands[: len(nested.results)])
            nested.erase()
        elif nested.name == "sdy.sharding_group":
            nested.erase()


def make_function(name: str, block: Block, returned: Sequence[Value]) -> FuncOp:
    """Return a public `func.func` around `block`, which still lacks its return."""
    block.append(make_op("func.return", returned))
    return functions.make_function(name, Region([block]), visibility="public")


def entry_function(module: Module, name: str | None = None) -> FuncOp:
    """Return the function `name`; without a name `@main`, or the only public function.

    Raises `MpmdError` when there is no such function.
    """
    if name is not None:
        result = module.lookup(name)
        if result is None:
            raise MpmdError(f"the module has no function @{name}")
        return result
    main = module.lookup("main")
    if main is not None:
        return main
    public = [f for f in module.functions if f.visibility == "public" and "mesh_shape" not in f.attrs]
    if len(public) != 1:
        names = ", ".join("@" + f.sym_name for f in public) or "none"
        raise MpmdError(f"the module has no function @main, and not one public function ({names})")
    return public[0]


def is_constant(value: Value) -> bool:
    """Return whether the value is that of a constant op."""
    op = value.defining_op
    return op is not None and op.name in ("stablehlo.constant", "sdy.constant")


def leaf_module(module: Module, op: Op, inputs: Sequence[Value]) -> Module:
    """Return a module that computes one leaf op of `inputs`: operands and free values, no tokens or constants.

    Constants that its regions capture come with it; as arguments, XLA would not take them in every op (`sort`).
    """
    block = Block([local_type(v.type) for v in inputs])
    env: dict[Value, Value] = dict(zip(inputs, block.args, strict=True))
    for operand in op.operands:
        if operand.type.is_token and operand not in env:
            env[operand] = block.append(make_op("stablehlo.create_token", [], [operand.type])).results[0]
    for value in free_values(op):
        if value not in env:
            assert is_constant(value) and value.defining_op is not None
            constant = block.append(value.defining_op.clone())
            clean(constant)
            env[value] = constant.results[0]
    eraser = Eraser(module, block)
    returned = [v for v in eraser.leaf(op, env) if not v.type.is_token]
    return eraser.program(returned)


def keep_meshes(source: Module, target: Module) -> None:
    """Copy the `sdy.mesh` ops when a manual computation needs them."""
    if any(op.name == "sdy.manual_computation" for op in target.walk()):
        for op in source.body:
            if op.name == "sdy.mesh":
                target.body.insert_front(op.clone())
