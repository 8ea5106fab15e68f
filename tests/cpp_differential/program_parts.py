"""Writes the parts that programs are made of: named computations and tensors, calls, loops, functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from generated_ops import INDEX, MATRIX, TYPES, Choices, Names, Scope, random_op, random_ops, region_results


@dataclasses.dataclass
class Callee:
    """A function that `mpmd.call` can call."""

    name: str
    inputs: list[str]
    outputs: list[str]


class Writer:
    """Writes one module."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.names = Names()
        self.computations: dict[str, None] = {}
        self.tensors: dict[str, None] = {}
        self.functions: list[str] = []
        self.callees: list[Callee] = []
        self.calls = 0

    # Named ops

    def computation(self, scope: Scope, name: str, transpose: int, depth: int = 0) -> None:
        """A named computation of random contents."""
        choices = self.choices
        self.computations[name] = None
        operands = [scope.any_value() for _ in range(choices.int(1, 4))]
        inner = self.inner(scope, operands)
        random_ops(inner, 0, 5)
        if depth == 0 and choices.chance(8):
            nested = choices.pick((name, "unassigned", "f0"))
            self.computation(inner, nested, transpose, 1)
            if nested == "unassigned":
                self.computations.pop(nested)
        if choices.chance(5):
            self.tensor(inner)
        results = [inner.any_value() for _ in range(choices.int(1, 3))]
        self.region_op(scope, f'mpmd.named_computation<"{name}"{count_text(transpose)}>', operands, inner, results)

    def inner(self, scope: Scope, operands: Sequence[tuple[str, str]]) -> Scope:
        """The region of an op that takes these operands as arguments."""
        return scope.inner([(self.names.fresh(), type) for _, type in operands])

    def region_op(
        self,
        scope: Scope,
        head: str,
        operands: Sequence[tuple[str, str]],
        inner: Scope,
        results: Sequence[tuple[str, str]],
        arguments: Sequence[tuple[str, str]] = (),
        is_loop: bool = False,
    ) -> list[tuple[str, str]]:
        """Write an op around a region; the region's first values are its arguments."""
        block = ", ".join(f"{n}: {t}" for n, t in (arguments or inner.values[: len(operands)]))
        types = [type for _, type in results]
        values = ", ".join(v for v, _ in operands)
        mpmd_return = f"mpmd.return {listed(v for v, _ in results)} : {listed(types)}"
        body = "\n".join([*inner.lines, inner.indent + mpmd_return])
        if is_loop:
            parts = head.split(" ", 1)
            text = f"{parts[0]} ({values}) {parts[1]} ({block}) {{\n{body}\n{scope.indent}}} : {listed(types)}"
        else:
            ending = f"({listed(t for _, t in operands)}) -> {result_types(types)}"
            text = f"{head} ({values}) ({block}) {{\n{body}\n{scope.indent}}} : {ending}"
        return region_results(scope, types, text)

    def tensor(self, scope: Scope) -> None:
        """A named tensor, whose name may have an assignment."""
        name = self.choices.pick(("t0", "t1", "t2"))
        self.tensors[name] = None
        value, type = scope.any_value()
        scope.op(type, f'mpmd.named_tensor {value} name="{name}" : {type}')

    def shared(self, scope: Scope) -> None:
        """`mpmd.broadcast` or `mpmd.reduce`."""
        value, type = scope.any_value()
        kind = self.choices.pick(("broadcast", "reduce<none>", "reduce<add>", "reduce<max>"))
        if kind == "broadcast":
            scope.op(type, f"mpmd.broadcast {value} : {type}")
            return
        values = [value]
        if kind != "reduce<none>":
            values += [scope.value(type) for _ in range(self.choices.int(1, 2))]
        scope.op(type, f"mpmd.{kind} {listed(values)} : ({listed([type] * len(values))}) -> {type}")

    # Calls and loops

    def callee(self) -> Callee:
        """Write a function with named computations and ops; several of its results may be as they came in."""
        choices = self.choices
        inputs = [MATRIX, *(choices.pick(TYPES) for _ in range(choices.int(0, 3)))]
        block = [(self.names.fresh(), type) for type in inputs]
        scope = Scope(choices, self.names, block, "    ")
        for _ in range(choices.int(1, 4)):
            self.statement(scope, calls=False)
        returned = [(scope.value(MATRIX), MATRIX), *(scope.any_value() for _ in range(choices.int(0, 2)))]
        if choices.chance(40):  # so that it can be chained
            returned = [(scope.value(type), type) for type in inputs]
        found = Callee(f"callee{len(self.callees)}", inputs, [t for _, t in returned])
        self.function(f"func.func private @{found.name}", block, scope, returned)
        return found

    def function(
        self,
        head: str,
        block: Sequence[tuple[str, str]],
        scope: Scope,
        returned: Sequence[tuple[str, str]],
        arguments: Sequence[str] = (),
        results: Sequence[str] = (),
    ) -> None:
        """Write a function; `arguments` and `results` are attribute dictionaries."""
        given = [*arguments, *([""] * (len(block) - len(arguments)))]
        declared = [*results, *([""] * (len(returned) - len(results)))]
        inputs = listed(f"{n}: {t}{a}" for (n, t), a in zip(block, given, strict=True))
        outputs = listed(f"{t}{a}" for (_, t), a in zip(returned, declared, strict=True))
        end = f"    return {listed(v for v, _ in returned)} : {listed(t for _, t in returned)}"
        body = "\n".join([*scope.lines, end])
        self.functions.append(f"  {head}({inputs}) -> ({outputs}) {{\n{body}\n  }}")

    def call(self, scope: Scope, callee: Callee, previous: Sequence[str] = ()) -> list[str]:
        """Call a function; values of `previous` are passed on where they fit."""
        operands = [
            previous[i] if i < len(previous) and (i == 0 or self.choices.chance(80)) else scope.value(type)
            for i, type in enumerate(callee.inputs)
        ]
        counter = "" if self.choices.chance(5) else f" {{call_counter = {self.calls} : ui32}}"
        self.calls += 1
        text = (
            f"mpmd.call @{callee.name}({listed(operands)}){counter}"
            f" : ({listed(callee.inputs)}) -> {result_types(callee.outputs)}"
        )
        return [name for name, _ in region_results(scope, callee.outputs, text)]

    def calls_of(self, scope: Scope) -> None:
        """One to three calls of a function, mostly each with the results of the one before."""
        if not self.callees or self.choices.chance(30):
            self.callees.append(self.callee())
        callee = self.choices.pick(self.callees)
        chained = callee.inputs == callee.outputs
        previous: list[str] = []
        for _ in range(self.choices.int(1, 3)):
            previous = self.call(scope, callee, previous if chained else ())
            if not chained:
                scope.kept.append(previous[0])
        if chained:
            scope.kept.append(previous[0])

    def loop(self, scope: Scope) -> None:
        """An `mpmd.for` that is unrolled, with calls or named computations inside."""
        choices = self.choices
        operands = [(scope.value(MATRIX), MATRIX), *(scope.any_value() for _ in range(choices.int(0, 2)))]
        iterations = choices.int(1, 3)
        inner = self.inner(scope, [*operands, ("", INDEX)])
        arguments = list(inner.values)
        for _ in range(choices.int(1, 3)):
            self.statement(inner, loops=False)
        if choices.chance(30):
            inner.op("tensor<f32>", f"stablehlo.convert {arguments[-1][0]} : ({INDEX}) -> tensor<f32>")
        # The reference crashes when a loop yields a value from outside, and constants end up there.
        wanted = [name for name, _ in inner.kept_value()] + [inner.value(type) for _, type in operands]
        results = [
            (inner.op(type, f"stablehlo.add {argument}, {value} : {type}"), type)
            for (argument, type), value in zip(arguments, wanted, strict=False)
        ][: len(operands)]
        head = f"mpmd.for {{iterations = {iterations} : ui32, unroll_factor = {iterations} : ui32}}"
        found = self.region_op(scope, head, operands, inner, results, arguments, is_loop=True)
        if inner.kept:
            scope.kept.append(found[0][0])

    # Functions

    def statement(self, scope: Scope, *, calls: bool = True, loops: bool = True) -> None:
        """Something in a function."""
        choices = self.choices
        kind = choices.int(0, 99)
        if kind < 45:
            name = choices.pick(("f0", "f1", "f2", "f3"))
            self.computation(scope, name, choices.pick((0, 0, 0, 1, 1)))
        elif kind < 78:
            random_op(scope)
        elif kind < 85:
            self.tensor(scope)
        elif kind < 88:
            self.shared(scope)
        elif calls and kind < 95:
            self.calls_of(scope)
        elif calls and loops:
            self.loop(scope)

    def main(self, block: Sequence[tuple[str, str]], scope: Scope, returned: Sequence[tuple[str, str]]) -> None:
        """Write `@main`."""
        arguments = [self.attributes(type) for _, type in block]
        results = [self.attributes(type) for _, type in returned]
        self.function("func.func public @main", block, scope, returned, arguments, results)
        self.functions.insert(0, self.functions.pop())

    def attributes(self, type: str) -> str:
        """Sometimes a sharding or a memory kind."""
        if type == MATRIX and self.choices.chance(8):
            sharding = self.choices.pick(('{"x"}, {}', '{}, {"x"}', "{?}, {?}"))
            return f" {{sdy.sharding = #sdy.sharding<@mesh, [{sharding}]>}}"
        return ""


def listed(parts: Iterable[str]) -> str:
    """Parts with commas between them."""
    return ", ".join(parts)


def count_text(transpose: int) -> str:
    """How an origin says its transpose count."""
    return f"({transpose})" if transpose else ""


def result_types(types: Sequence[str]) -> str:
    """How a function type says its results."""
    return types[0] if len(types) == 1 else f"({listed(types)})"
