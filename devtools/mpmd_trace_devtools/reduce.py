"""Shrinks a module to a small one that is still interesting: delta debugging over everything in it.

    small = reduce(module, lambda text: "error" in run_my_tool(text))

Every module that is tried is valid MLIR.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import SymbolRefAttr, parse_attribute
from mpmd_trace.ir.core import Block, Op, Value, make_op
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.types import TensorType
from mpmd_trace.jax_compat.mlir import prettify_or_fail
from mpmd_trace_devtools.operand_order import pick_entries

#: Attributes without which a function is a different kind of thing.
_KEPT = frozenset({"topology", "mesh_shape"})
_CALLS = ("mpmd.call", "mpmd.fragment_call", "func.call")


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The smallest module found, its text, and how many modules were tried."""

    module: Module
    text: str
    tried: int


def reduce(
    module: Module, interesting: Callable[[str], bool], say: Callable[[str], None] = lambda _: None, *, rounds: int = 10
) -> Reduction:
    """Make the module smaller as long as `interesting` says yes to its text; `module` is not changed.

    Raises `MpmdError` when the module itself is not interesting.
    """
    reducer = _Reducer(module.clone(), interesting, say)
    if not reducer.accepts(reducer.module):
        raise MpmdError("the module is not interesting to begin with: the check must succeed on it")
    for number in range(rounds):
        before = reducer.text
        for name, things, drop in _PHASES:
            reducer.shrink(name, things, drop)
        say(f"round {number + 1}: {count_ops(reducer.module)} ops, {reducer.tried} modules tried")
        if reducer.text == before:
            break
    return Reduction(reducer.module, reducer.text, reducer.tried)


def count_ops(module: Module) -> int:
    """Return the number of ops, the module itself not counted."""
    return sum(1 for _ in module.walk()) - 1


_Things = Callable[[Module], "list[_Thing]"]
_Drop = Callable[[Module, "list[_Thing]"], None]
#: An op, or number `index` of something of an op (an operand, a result ...), or something with a name.
_Thing = tuple[Op, int, str]


class _Reducer:
    def __init__(self, module: Module, interesting: Callable[[str], bool], say: Callable[[str], None]) -> None:
        self.module = module
        self.interesting = interesting
        self.say = say
        self.text = ""
        self.tried = 0
        self.seen: dict[str, bool] = {}

    def accepts(self, candidate: Module) -> bool:
        """Return whether the candidate is valid and interesting; if so it is the new module."""
        try:
            text = prettify_or_fail(candidate.to_generic())
        except MpmdError:
            return False
        if text not in self.seen:
            self.tried += 1
            self.seen[text] = self.interesting(text)
        if not self.seen[text]:
            return False
        self.module, self.text = candidate, text
        return True

    def shrink(self, name: str, things: _Things, drop: _Drop) -> None:
        """Drop as many of the things as possible: all, halves, quarters ..., one by one, last ones first."""
        base = self.module
        count = len(things(base))
        gone: set[int] = set()
        size = count
        while size > 0:
            for end in range(count, 0, -size):
                part = set(range(max(0, end - size), end)) - gone
                if part and self._try(base, things, drop, gone | part):
                    gone |= part
            size //= 2
        if gone:
            self.say(f"  {name}: {len(gone)} of {count} gone, {count_ops(self.module)} ops left")

    def _try(self, base: Module, things: _Things, drop: _Drop, numbers: set[int]) -> bool:
        candidate = base.clone()
        things_left = things(candidate)
        try:
            drop(candidate, [things_left[i] for i in sorted(numbers)])
        except (RuntimeError, ValueError, LookupError):  # a value is still used, a body would be empty ...
            return False
        return self.accepts(candidate)


# What there is to drop, and how.


def _mutable_ops(module: Module) -> Iterator[Op]:
    """Ops of function bodies, at any depth that is not frozen."""
    for function in module.functions:
        for op in function.walk(post_order=False):
            if op is not function and op.block is not None and not op.block.frozen:
                yield op


def _frozen_bodies(module: Module) -> list[tuple[Op, Block]]:
    return [(op, region.block) for op in _mutable_ops(module) for region in op.regions if region.frozen]


def _defined(module: Module) -> list[FuncOp]:
    return [function for function in module.functions if not function.is_declaration]


def _symbols(module: Module) -> list[_Thing]:
    return [(op, 0, "") for op in module.body]


def _function_ops(module: Module) -> list[_Thing]:
    return [(op, 0, "") for op in _mutable_ops(module) if not op.is_terminator]


def _drop_ops(module: Module, things: Sequence[_Thing]) -> None:
    for op, _, _ in reversed(things):
        _remove(op)


def _remove(op: Op) -> None:
    """Take an op away; something from above it stands for its results."""
    for result in op.results:
        if result.has_uses:
            result.replace_all_uses_with(_substitute(op, result))
    op.drop_all_references()
    op._detach()


def _substitute(op: Op, result: Value) -> Value:
    """Return a value of the type of the result from above the op; a new argument or constant if need be."""
    for value in op.operands:
        if value.type is result.type:
            return value
    block = op.block
    assert block is not None
    while True:
        for arg in block.args:
            if arg.type is result.type:
                return arg
        parent = block.parent_op
        if parent is None or parent.block is None or isinstance(parent, FuncOp):
            break
        block = parent.block
    constant = _constant(result)
    if constant is not None:
        assert op.block is not None
        return op.block.insert_before(op, constant).results[0]
    function = block.parent_op
    if not isinstance(function, FuncOp):
        raise ValueError("no value of that type")
    arg = function.body.add_arg(result.type)
    function.refresh_type()
    return arg


def _constant(value: Value) -> Op | None:
    """Return an op that makes zeros of the type of the value, if it is a plain tensor."""
    type = value.type
    if not isinstance(type, TensorType) or type.shape is None or min(type.shape, default=0) < 0:
        return None
    element = type.element
    zero = "0.0" if element[0] in "fb" else "false" if element == "i1" else "0"
    if not (element[0] in "fb" or element.lstrip("us").startswith("i")):
        return None
    props = {"value": parse_attribute(f"dense<{zero}> : {type}")}
    return make_op("stablehlo.constant", [], [type], props=props)


def _body_ops(module: Module) -> list[_Thing]:
    return [(op, i, "") for op, body in _frozen_bodies(module) for i, n in enumerate(body) if not n.is_terminator]


def _drop_body_ops(module: Module, things: Sequence[_Thing]) -> None:
    for op, numbers in _by_op(things):
        body = op.regions[0].clone()
        ops = list(body.block)
        for i in reversed(numbers):
            _remove(ops[i])
        op.regions[0] = freeze(body)


def _by_op(things: Sequence[_Thing]) -> list[tuple[Op, list[int]]]:
    grouped: dict[Op, list[int]] = {}
    for op, index, _ in things:
        grouped.setdefault(op, []).append(index)
    return list(grouped.items())


def _calls_of(module: Module, function: FuncOp) -> list[Op]:
    calls = [(op, op.attr("callee")) for op in _mutable_ops(module) if op.name in _CALLS]
    return [op for op, callee in calls if isinstance(callee, SymbolRefAttr) and callee.name == function.sym_name]


def _function_results(module: Module) -> list[_Thing]:
    return [(f, i, "") for f in _defined(module) for i in range(len(f.type.results))]


def _drop_function_results(module: Module, things: Sequence[_Thing]) -> None:
    for op, numbers in _by_op(things):
        function = cast(FuncOp, op)
        for call in _calls_of(module, function):
            _without_results(call, numbers)
        function.erase_results(numbers)


def _function_arguments(module: Module) -> list[_Thing]:
    return [(f, arg.index, "") for f in _defined(module) for arg in f.body.args if not arg.has_uses]


def _drop_function_arguments(module: Module, things: Sequence[_Thing]) -> None:
    for op, numbers in _by_op(things):
        function = cast(FuncOp, op)
        for call in _calls_of(module, function):
            call.erase_operands(numbers)
        function.erase_args(numbers)


def _region_results(module: Module) -> list[_Thing]:
    return [(op, r.index, "") for op, _ in _frozen_bodies(module) for r in op.results if not r.has_uses]


def _drop_region_results(module: Module, things: Sequence[_Thing]) -> None:
    for op, numbers in _by_op(things):
        body = op.regions[0].clone()
        body.block.terminator.erase_operands(numbers)
        op.regions[0] = freeze(body)
        _without_results(op, numbers)


def _region_operands(module: Module) -> list[_Thing]:
    return [(op, arg.index, "") for op, body in _frozen_bodies(module) for arg in body.args]


def _drop_region_operands(module: Module, things: Sequence[_Thing]) -> None:
    for op, numbers in _by_op(things):
        body = op.regions[0].clone()
        block, gone = body.block, set(numbers)
        for i in numbers:
            if block.args[i].has_uses:
                block.args[i].replace_all_uses_with(_other_value(block, i, gone))
        kept = [arg.index for arg in block.args if arg.index not in gone]
        block.erase_args(numbers)
        op.regions[0] = freeze(body)
        op.erase_operands(numbers)
        pick_entries(op, ("arg_attrs", "in_shardings"), kept)


def _other_value(block: Block, index: int, gone: set[int]) -> Value:
    """Return what can stand for an argument of a body: another argument of its type, or zeros."""
    for arg in block.args:
        if arg.index not in gone and arg.type is block.args[index].type:
            return arg
    constant = _constant(block.args[index])
    if constant is None:
        raise ValueError("no value of that type")
    return block.insert_front(constant).results[0]


def _without_results(op: Op, numbers: Sequence[int]) -> None:
    """Replace the op by one without these results, which must be unused."""
    gone = set(numbers)
    if any(op.results[i].has_uses for i in gone):
        raise ValueError("the result is used")
    kept = [r for r in op.results if r.index not in gone]
    pick_entries(op, ("res_attrs", "out_shardings"), [r.index for r in kept])
    new = make_op(
        op.name, op.operands, [r.type for r in kept], props=op.props, attrs=op.attrs, regions=op.regions, loc=op.loc
    )
    assert op.block is not None
    op.block.insert_before(op, new)
    for old, result in zip(kept, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.regions = []
    op.erase()


def _operands(module: Module) -> list[_Thing]:
    """Operands that a function argument can stand for."""
    result = []
    for function in _defined(module):
        types = {arg.type for arg in function.body.args}
        for op in function.body:
            for use in op.operand_uses:
                if use.value not in function.body.args and use.value.type in types:
                    result.append((op, use.index, ""))
    return result


def _drop_operands(module: Module, things: Sequence[_Thing]) -> None:
    for op, index, _ in things:
        assert op.block is not None
        wanted = op.operand(index).type
        op.set_operand(index, next(arg for arg in op.block.args if arg.type is wanted))


def _attributes(module: Module) -> list[_Thing]:
    attributes = []
    for function in module.functions:
        own = [name for name in function.attrs if name not in _KEPT]
        own += [name for name in ("arg_attrs", "res_attrs") if name in function.props]
        attributes += [(function, 0, name) for name in own]
    return attributes + [(op, 0, name) for op in _mutable_ops(module) for name in op.attrs]


def _drop_attributes(module: Module, things: Sequence[_Thing]) -> None:
    for op, _, name in things:
        op.attrs.pop(name, None)
        if isinstance(op, FuncOp) and name in ("arg_attrs", "res_attrs"):
            op.props.pop(name, None)


_PHASES: list[tuple[str, _Things, _Drop]] = [
    ("functions", _symbols, _drop_ops),
    ("results", _function_results, _drop_function_results),
    ("ops", _function_ops, _drop_ops),
    ("ops in bodies", _body_ops, _drop_body_ops),
    ("results of bodies", _region_results, _drop_region_results),
    ("operands of bodies", _region_operands, _drop_region_operands),
    ("operands", _operands, _drop_operands),
    ("arguments", _function_arguments, _drop_function_arguments),
    ("attributes", _attributes, _drop_attributes),
]
