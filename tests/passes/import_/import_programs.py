"""The prelude of examples of the import passes, and random programs for property tests."""

from __future__ import annotations

import random

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.ir.ops import Module
from util import check as _check
from util import diagnostics as _diagnostics
from util import run as _run

PRELUDE = """
#topo = #mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>
!T  = tensor<6x2xf32>
!P0 = !mpmd.mesh_tensor<"p0", tensor<6x2xf32>>
!P1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>>
!P2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>>
!H1 = !mpmd.mesh_tensor<"p1", tensor<6x2xf32>, memory_kind="pinned_host">
!D2 = !mpmd.mesh_tensor<"p2", tensor<6x2xf32>, memory_kind="device">
"""


def run(before: str, pipeline: str) -> Module:
    return _run(before, pipeline, prelude=PRELUDE)


def check(before: str, pipeline: str, after: str) -> Module:
    return _check(before, pipeline, after, prelude=PRELUDE)


def diagnostics(before: str, pipeline: str) -> tuple[bool, list[Diagnostic]]:
    return _diagnostics(before, pipeline, prelude=PRELUDE)


T = "tensor<4xf32>"
TOPOLOGY = '#mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>'


class Named:
    """Programs of (nested) named computations with repeated, unused and passed-through values."""

    def __init__(self, seed: int, *, depth: int = 1, names: tuple[str, ...] = ("f", "g")) -> None:
        self.rng = random.Random(seed)
        self.names = names
        self.depth = depth
        self.count = 0
        self.lines: list[str] = []

    def value(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def leaf(self, values: list[str], indent: str) -> None:
        rng, name = self.rng, self.value()
        kind = rng.random()
        if kind < 0.15 or not values:
            text = f"stablehlo.constant dense<{rng.randint(0, 3)}.0> : {T}"
        elif kind < 0.2:
            text = f"stablehlo.iota dim = 0 : {T}"
        elif kind < 0.6:
            op = rng.choice(["add", "multiply", "maximum"])
            text = f"stablehlo.{op} {rng.choice(values)}, {rng.choice(values)} : {T}"
        elif kind < 0.75:
            count = rng.randint(1, 3)
            operands = ", ".join(rng.choice(values) for _ in range(count))
            types = ", ".join([T] * count)
            self.lines.append(f"{indent}{name}:{count} = stablehlo.optimization_barrier {operands} : {types}")
            values += [f"{name}#{i}" for i in range(count)]
            return
        elif kind < 0.85:
            text = f'mpmd.named_tensor {rng.choice(values)} name="t" : {T}'
        elif kind < 0.9:
            text = f"mpmd.broadcast {rng.choice(values)} : {T}"
        else:
            text = f"stablehlo.{rng.choice(['abs', 'tanh'])} {rng.choice(values)} : {T}"
        self.lines.append(f"{indent}{name} = {text}")
        values.append(name)

    def computation(self, values: list[str], indent: str, depth: int) -> None:
        rng, name = self.rng, self.value()
        operands = [rng.choice(values) for _ in range(rng.randint(1, 4))]
        args = [self.value() for _ in operands]
        count = rng.randint(1, 4)
        header = ", ".join(f"{a}: {T}" for a in args)
        self.lines.append(
            f'{indent}{name}:{count} = mpmd.named_computation<"{rng.choice(self.names)}"> '
            f"({', '.join(operands)}) ({header}) {{"
        )
        inside = list(args)
        for _ in range(rng.randint(0, 5)):
            if depth and rng.random() < 0.25:
                self.computation(inside, indent + "  ", depth - 1)
            else:
                self.leaf(inside, indent + "  ")
        returned = [rng.choice(args if rng.random() < 0.3 else inside) for _ in range(count)]
        types = ", ".join([T] * count)
        self.lines.append(f"{indent}  mpmd.return {', '.join(returned)} : {types}")
        results = T if count == 1 else f"({types})"
        self.lines.append(f"{indent}}} : ({', '.join([T] * len(args))}) -> {results}")
        values += [f"{name}#{i}" for i in range(count)]

    def module(self) -> str:
        rng = self.rng
        args = [self.value() for _ in range(rng.randint(1, 3))]
        values = list(args)
        for _ in range(rng.randint(1, 6)):
            if rng.random() < 0.6:
                self.computation(values, "  ", self.depth)
            else:
                self.leaf(values, "  ")
        returned = [rng.choice(values) for _ in range(rng.randint(1, 4))]
        types = ", ".join([T] * len(returned))
        header = ", ".join(f"{a}: {T}" for a in args)
        return "\n".join(
            [
                f"func.func @main({header}) -> ({types}) attributes {{topology = {TOPOLOGY}}} {{",
                *self.lines,
                f"  return {', '.join(returned)} : {types}",
                "}",
            ]
        )
