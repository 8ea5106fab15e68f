"""Random StableHLO ops as MLIR text: what stands inside named computations and between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MATRIX, VECTOR, ROW, SCALAR = "tensor<4x4xf32>", "tensor<4xf32>", "tensor<1x4xf32>", "tensor<f32>"
COUNT = "tensor<i32>"
INDEX = "tensor<ui32>"
#: The types of arguments, results and values that cross a boundary.
TYPES = (MATRIX, VECTOR, SCALAR)

UNARY = ("tanh", "abs", "negate", "exponential", "cosine")
BINARY = ("add", "multiply", "subtract", "maximum", "minimum", "divide")
NEUTRAL = {"add": "0.0", "multiply": "1.0", "maximum": "0xFF800000", "minimum": "0x7F800000"}


class Choices:
    """Decisions by a source of integers; smaller ones give simpler programs."""

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        self.int = integer

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""
        return options[self.int(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """True in about so many percent of the cases."""
        return self.int(0, 99) >= 100 - percent

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Up to `most` of the options, in their order."""
        found = [option for option in options if self.chance(100 * most // max(1, len(options)))]
        return found[:most]


@dataclasses.dataclass
class Names:
    """Gives out names that are unique in a module."""

    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"


class Scope:
    """The values and ops of one region while it is written.

    kept: matrices that the region has to return, so that the call that computes them has a use: the reference
    loses track of calls without any.
    """

    def __init__(self, choices: Choices, names: Names, values: Sequence[tuple[str, str]], indent: str) -> None:
        self.choices = choices
        self.names = names
        self.values = list(values)
        self.indent = indent
        self.lines: list[str] = []
        self.kept: list[str] = []

    def line(self, text: str) -> None:
        """Write a line as it is."""
        self.lines.append(self.indent + text)

    def op(self, type: str, text: str) -> str:
        """Write an op with one result."""
        name = self.names.fresh()
        self.line(f"{name} = {text}")
        self.values.append((name, type))
        return name

    def value(self, type: str) -> str:
        """A value of the type: often a recent one; a constant when there is none, and sometimes otherwise."""
        found = [name for name, known in self.values if known == type]
        if not found or self.choices.chance(6):
            return self.constant(type)
        return self.choices.pick(found[::-1][:4] if self.choices.chance(60) else found)

    def any_value(self) -> tuple[str, str]:
        """Some value of a type that may cross boundaries, and its type."""
        type = self.choices.pick(TYPES) if self.choices.chance(40) else MATRIX
        return self.value(type), type

    def constant(self, type: str) -> str:
        if type in (COUNT, INDEX):
            return self.op(type, f"stablehlo.constant dense<{self.choices.int(0, 2)}> : {type}")
        if type == VECTOR and self.choices.chance(30):
            return self.op(type, f"stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : {type}")
        return self.op(type, f"stablehlo.constant dense<{self.choices.pick(('0.0', '1.0', '2.5'))}> : {type}")

    def kept_value(self) -> list[tuple[str, str]]:
        """The sum of the values that have to be returned, if there are any."""
        if not self.kept:
            return []
        total = self.kept[0]
        for value in self.kept[1:]:
            total = self.op(MATRIX, f"stablehlo.add {total}, {value} : {MATRIX}")
        return [(total, MATRIX)]

    def inner(self, values: Sequence[tuple[str, str]]) -> Scope:
        """A region within this one that sees these values (and its own)."""
        return Scope(self.choices, self.names, values, self.indent + "  ")


def random_op(scope: Scope) -> None:
    """One more op, perhaps with constants that it needs."""
    KINDS[scope.choices.int(0, len(KINDS) - 1)](scope)


def random_ops(scope: Scope, least: int, most: int) -> None:
    """Several more ops."""
    for _ in range(scope.choices.int(least, most)):
        random_op(scope)


def unary(scope: Scope) -> None:
    value, type = scope.any_value()
    scope.op(type, f"stablehlo.{scope.choices.pick(UNARY)} {value} : {type}")


def binary(scope: Scope) -> None:
    value, type = scope.any_value()
    scope.op(type, f"stablehlo.{scope.choices.pick(BINARY)} {value}, {scope.value(type)} : {type}")


def dot(scope: Scope) -> None:
    a, b = scope.value(MATRIX), scope.value(MATRIX)
    scope.op(MATRIX, f"stablehlo.dot_general {a}, {b}, contracting_dims = [1] x [0] : ({MATRIX}, {MATRIX}) -> {MATRIX}")


def transpose(scope: Scope) -> None:
    scope.op(MATRIX, f"stablehlo.transpose {scope.value(MATRIX)}, dims = [1, 0] : ({MATRIX}) -> {MATRIX}")


def reduce(scope: Scope) -> None:
    kind = scope.choices.pick(("add", "maximum", "minimum", "multiply"))
    init = NEUTRAL[kind] if not scope.choices.chance(15) else "3.0"
    zero = scope.op(SCALAR, f"stablehlo.constant dense<{init}> : {SCALAR}")
    source, target, dims = scope.choices.pick(
        ((MATRIX, VECTOR, "0"), (MATRIX, VECTOR, "1"), (MATRIX, SCALAR, "0, 1"), (VECTOR, SCALAR, "0"))
    )
    scope.op(
        target,
        f"stablehlo.reduce({scope.value(source)} init: {zero}) applies stablehlo.{kind} across dimensions = [{dims}]"
        f" : ({source}, {SCALAR}) -> {target}",
    )


def broadcast(scope: Scope) -> None:
    source, target, dims = scope.choices.pick(
        ((SCALAR, MATRIX, ""), (VECTOR, MATRIX, "1"), (SCALAR, VECTOR, ""), (VECTOR, MATRIX, "0"))
    )
    scope.op(target, f"stablehlo.broadcast_in_dim {scope.value(source)}, dims = [{dims}] : ({source}) -> {target}")


def row(scope: Scope) -> None:
    """A row of a matrix, as microbatches are taken from a batch."""
    i = scope.choices.int(0, 3)
    cut = scope.op(ROW, f"stablehlo.slice {scope.value(MATRIX)} [{i}:{i + 1}, 0:4] : ({MATRIX}) -> {ROW}")
    scope.op(VECTOR, f"stablehlo.reshape {cut} : ({ROW}) -> {VECTOR}")


def stack(scope: Scope) -> None:
    """Rows put together and, mostly, added up: a reduction that mesh inference recognises."""
    count = scope.choices.int(2, 4)
    rows = [scope.op(ROW, f"stablehlo.reshape {scope.value(VECTOR)} : ({VECTOR}) -> {ROW}") for _ in range(count)]
    if scope.choices.chance(15):
        rows[0] = scope.value(ROW)
    type = f"tensor<{count}x4xf32>"
    joined = scope.op(
        type, f"stablehlo.concatenate {', '.join(rows)}, dim = 0 : ({', '.join([ROW] * count)}) -> {type}"
    )
    kind = scope.choices.pick(("add", "maximum"))
    zero = scope.op(SCALAR, f"stablehlo.constant dense<{NEUTRAL[kind]}> : {SCALAR}")
    scope.op(
        VECTOR,
        f"stablehlo.reduce({joined} init: {zero}) applies stablehlo.{kind} across dimensions = [0]"
        f" : ({type}, {SCALAR}) -> {VECTOR}",
    )


def constant(scope: Scope) -> None:
    scope.constant(scope.choices.pick(TYPES))


def iota(scope: Scope) -> None:
    scope.op(VECTOR, f"stablehlo.iota dim = 0 : {VECTOR}")


def select(scope: Scope) -> None:
    a, b = scope.value(SCALAR), scope.value(SCALAR)
    less = scope.op("tensor<i1>", f"stablehlo.compare LT, {a}, {b} : ({SCALAR}, {SCALAR}) -> tensor<i1>")
    value, type = scope.any_value()
    other = scope.value(type)
    scope.op(type, f"stablehlo.select {less}, {value}, {other} : tensor<i1>, {type}")


def barrier(scope: Scope) -> None:
    chosen = [scope.any_value() for _ in range(scope.choices.int(1, 3))]
    region_results(
        scope,
        [type for _, type in chosen],
        f"stablehlo.optimization_barrier {', '.join(v for v, _ in chosen)} : {', '.join(t for _, t in chosen)}",
    )


def region_results(scope: Scope, types: Sequence[str], text: str) -> list[tuple[str, str]]:
    """Write an op with any number of results."""
    if len(types) == 1:
        return [(scope.op(types[0], text), types[0])]
    name = scope.names.fresh()
    scope.line(f"{name}:{len(types)} = {text}" if types else text)
    found = [(f"{name}#{i}", type) for i, type in enumerate(types)]
    scope.values += found
    return found


def loop(scope: Scope) -> None:
    """A `while` whose body captures a value of the surrounding region."""
    start, bound = scope.constant(COUNT), scope.constant(COUNT)
    value, captured = scope.value(MATRIX), scope.value(MATRIX)
    v, i, done, total, c, j, name = (scope.names.fresh() for _ in range(7))
    scope.line(f"{name}:2 = stablehlo.while({v} = {value}, {i} = {start}) : {MATRIX}, {COUNT}")
    scope.line(f"cond {{ {done} = stablehlo.compare LT, {i}, {bound} : ({COUNT}, {COUNT}) -> tensor<i1>")
    scope.line(f"stablehlo.return {done} : tensor<i1> }} do {{")
    scope.line(f"{total} = stablehlo.add {v}, {captured} : {MATRIX}")
    scope.line(f"{c} = stablehlo.constant dense<1> : {COUNT}")
    scope.line(f"{j} = stablehlo.add {i}, {c} : {COUNT}")
    scope.line(f"stablehlo.return {total}, {j} : {MATRIX}, {COUNT} }}")
    scope.values.append((f"{name}#0", MATRIX))


def case(scope: Scope) -> None:
    """One of two branches, which use values of the surrounding region."""
    index, a, b = scope.value(COUNT), scope.value(VECTOR), scope.value(VECTOR)
    first, second, name = (scope.names.fresh() for _ in range(3))
    scope.line(f'{name} = "stablehlo.case"({index}) ({{')
    scope.line(f"{first} = stablehlo.add {a}, {b} : {VECTOR}")
    scope.line(f"stablehlo.return {first} : {VECTOR} }}, {{")
    scope.line(f"{second} = stablehlo.{scope.choices.pick(UNARY)} {a} : {VECTOR}")
    scope.line(f"stablehlo.return {second} : {VECTOR} }}) : ({COUNT}) -> {VECTOR}")
    scope.values.append((name, VECTOR))


def custom(scope: Scope) -> None:
    value, type = scope.any_value()
    effect = " {has_side_effect = true}" if scope.choices.chance(30) else ""
    scope.op(type, f"stablehlo.custom_call @somewhere({value}){effect} : ({type}) -> {type}")


def square(scope: Scope) -> None:
    value, type = scope.any_value()
    scope.op(type, f"chlo.square {value} : {type} -> {type}")


def constraint(scope: Scope) -> None:
    sharding = scope.choices.pick(('{"x"}, {}', '{}, {"x"}', "{}, {}", '{"x", ?}, {?}'))
    scope.op(MATRIX, f"sdy.sharding_constraint {scope.value(MATRIX)} <@mesh, [{sharding}]> : {MATRIX}")


def update(scope: Scope) -> None:
    """A row of a matrix replaced."""
    i, zero = scope.value(COUNT), scope.constant(COUNT)
    target, source = scope.value(MATRIX), scope.value(ROW)
    scope.op(
        MATRIX,
        f"stablehlo.dynamic_update_slice {target}, {source}, {i}, {zero}"
        f" : ({MATRIX}, {ROW}, {COUNT}, {COUNT}) -> {MATRIX}",
    )


def dynamic_row(scope: Scope) -> None:
    i, zero = scope.value(COUNT), scope.constant(COUNT)
    scope.op(
        ROW,
        f"stablehlo.dynamic_slice {scope.value(MATRIX)}, {i}, {zero}, sizes = [1, 4]"
        f" : ({MATRIX}, {COUNT}, {COUNT}) -> {ROW}",
    )


def helper(scope: Scope) -> None:
    """A call that the inliner replaces."""
    scope.op(MATRIX, f"func.call @helper({scope.value(MATRIX)}) : ({MATRIX}) -> {MATRIX}")


HELPER = f"""
  func.func private @helper(%x: {MATRIX}) -> {MATRIX} {{
    %h = stablehlo.add %x, %x : {MATRIX}
    return %h : {MATRIX}
  }}"""

#: Simple and frequent ones first; some stand twice because programs are full of them.
KINDS: tuple[Callable[[Scope], None], ...] = (
    unary,
    binary,
    binary,
    binary,
    dot,
    dot,
    broadcast,
    reduce,
    reduce,
    constant,
    transpose,
    row,
    stack,
    iota,
    select,
    barrier,
    square,
    constraint,
    update,
    dynamic_row,
    helper,
    custom,
    loop,
    case,
)
