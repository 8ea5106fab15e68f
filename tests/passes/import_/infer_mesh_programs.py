"""Tests of mesh inference: a short spelling of mesh sets, the sequence of passes, random programs."""

from __future__ import annotations

import random

import import_programs

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.ir.ops import Module

T = "tensor<6x2xf32>"
WIDE = "tensor<1x6x2xf32>"
TOPOLOGY = '#mpmd.topology<<"p0" : <["d"=4]>>, <"p1" : <["d"=4]>>, <"p2" : <["d"=4]>>>'
MESHES = ["p0", "p1", "p2"]


def spelled(text: str) -> str:
    """`text` with `use=<..>` and `src=<..>` written out as the attributes that they stand for."""
    for short in ("use", "src"):
        text = text.replace(f"{short}=<", f"mpmd.{short}_set = #mpmd.meshes_with_origins<")
    return text


def check(before: str, pipeline: str | list[str], after: str) -> Module:
    return import_programs.check(spelled(before), pipeline, spelled(after))


def run(before: str, pipeline: str | list[str]) -> Module:
    return import_programs.run(spelled(before), pipeline)


def diagnostics(before: str, pipeline: str) -> tuple[bool, list[Diagnostic]]:
    return import_programs.diagnostics(spelled(before), pipeline)


def sequence(
    *,
    infer_transfers: bool = True,
    infer_reductions: bool = True,
    constraints: str = "",
    max_clones: int = 1,
    until: str = "finalize",
) -> list[str]:
    """The passes of the infer-mesh pipeline, up to and with the one whose name ends in `until`."""
    flag = "true" if infer_transfers else "false"
    reductions = "true" if infer_reductions or infer_transfers else "false"
    steps = ["populate-use-set", "populate-src-set"]
    if constraints:
        steps.append(f"assign-using-input-output-constraints{{constraints={constraints}}}")
    steps.append(f"convert-reduce-ops{{infer-cross-mesh-reductions={reductions} keep-initial-value=true}}")
    if not infer_transfers:
        steps.append("validate-src-set-not-empty")
    steps += [f"assign-mesh-func-leaves{{infer-transfers={flag}}}", "populate-use-set"]
    if not infer_transfers:
        steps.append("validate-no-additional-transfers-needed")
    steps += [f"rewrite-using-analysis{{max-clones={max_clones}}}", f"finalize{{infer-transfers={flag}}}"]
    passes = []
    for step in steps:
        passes.append(f"mpmd-infer-mesh-{step}")
        if step.partition("{")[0] == until:
            return passes
    raise ValueError(until)


def mesh(name: str) -> str:
    return f'!mpmd.mesh_tensor<"{name}", {T}>'


class _Function:
    def __init__(self, rng: random.Random, name: str, callees: list[_Function] | None) -> None:
        self.rng, self.name, self.callees = rng, name, callees
        self.lines: list[str] = []
        self.count = 0
        self.plain: list[str] = []
        self.placed: list[tuple[str, str]] = []
        self.used: set[str] = set()

    def emit(self, text: str) -> None:
        self.lines.append("    " + text)

    def op(self, text: str) -> str:
        self.count += 1
        self.emit(f"%v{self.count} = {text}")
        return f"%v{self.count}"

    def pick(self) -> str:
        if not self.plain:
            self.plain.append(self.op(f"stablehlo.constant dense<2.0> : {T}"))
        recent = self.plain[-4:] if self.rng.random() < 0.6 else self.plain
        return self.rng.choice(recent)

    def assign(self, value: str, name: str) -> str:
        label = self.rng.choice(['{origin = "a"} ', '{origin = "b"} ', ""])
        found = self.op(f"mpmd.assign {label}{value} : ({T}) -> {mesh(name)}")
        self.placed.append((found, name))
        return found

    def on(self, name: str) -> str:
        there = [v for v, m in self.placed if m == name]
        return self.rng.choice(there) if there and self.rng.random() < 0.8 else self.assign(self.pick(), name)

    def unassign(self, value: str, name: str) -> None:
        label = self.rng.choice(['{origin = "a"} ', '{origin = "c"} ', ""])
        self.plain.append(self.op(f"mpmd.unassign {label}{value} : ({mesh(name)}) -> {T}"))

    def fragment(self) -> None:
        rng, name = self.rng, self.rng.choice(MESHES)
        operands = [self.on(name) for _ in range(rng.randint(1, 3))]
        self.count += 1
        n = self.count
        args = ", ".join(f"%b{n}_{i}: {T}" for i in range(len(operands)))
        self.emit(f'%v{n}:2 = mpmd.fragment<mesh="{name}", origin=["f"]> ({", ".join(operands)}) ({args}) {{')
        last = f"%b{n}_0"
        for i in range(1, len(operands)):
            self.emit(f"  %k{n}_{i} = stablehlo.add {last}, %b{n}_{i} : {T}")
            last = f"%k{n}_{i}"
        self.emit(f"  mpmd.return {last}, %b{n}_0 : {T}, {T}")
        types = ", ".join([mesh(name)] * len(operands))
        self.emit(f"}} : ({types}) -> ({mesh(name)}, {mesh(name)})")
        for value in (f"%v{n}#0", f"%v{n}#1"):
            if rng.random() < 0.8:
                self.placed.append((value, name))
            if rng.random() < 0.7:
                self.unassign(value, name)

    def concat_reduce(self) -> None:
        rows = [self.op(f"stablehlo.reshape {self.pick()} : ({T}) -> {WIDE}") for _ in range(2)]
        joined = self.op(f"stablehlo.concatenate {', '.join(rows)}, dim = 0 : ({WIDE}, {WIDE}) -> tensor<2x6x2xf32>")
        zero = self.op("stablehlo.constant dense<0.0> : tensor<f32>")
        kind = self.rng.choice(["add", "maximum"])
        self.plain.append(
            self.op(
                f"stablehlo.reduce({joined} init: {zero}) applies stablehlo.{kind} across dimensions = [0] : "
                f"(tensor<2x6x2xf32>, tensor<f32>) -> {T}"
            )
        )

    def captured(self) -> None:
        """An op with a region that uses values from outside."""
        index = self.op("stablehlo.constant dense<0> : tensor<i32>")
        left, right = self.pick(), self.pick()
        self.plain.append(
            self.op(
                f'"stablehlo.case"({index}) ({{ stablehlo.return {left} : {T} }}, '
                f"{{ %s = stablehlo.add {left}, {right} : {T} stablehlo.return %s : {T} }}) : "
                f"(tensor<i32>) -> {T}"
            )
        )

    def call(self, callee: _Function) -> str:
        self.count += 1
        n, args, results = self.count, callee.arity, callee.results
        operands = ", ".join(self.pick() for _ in range(args))
        self.emit(
            f"%v{n}:{results} = mpmd.call @{callee.name}({operands}) {{call_counter = {n} : ui32}} : "
            f"({', '.join([T] * args)}) -> ({', '.join([T] * results)})"
        )
        self.plain += [f"%v{n}#{i}" for i in range(results)]
        return f"%v{n}#0"

    def step(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.25:
            name = rng.choice(["add", "add", "maximum", "minimum", "subtract"])
            self.plain.append(self.op(f"stablehlo.{name} {self.pick()}, {self.pick()} : {T}"))
        elif kind < 0.35:
            self.plain.append(self.op(f"stablehlo.{rng.choice(['abs', 'tanh'])} {self.pick()} : {T}"))
        elif kind < 0.4:
            self.plain.append(self.op(f"stablehlo.constant dense<{rng.randint(1, 4)}.0> : {T}"))
        elif kind < 0.43:
            self.concat_reduce()
        elif kind < 0.46:
            self.captured()
        elif kind < 0.5:
            self.plain.append(self.op(f"mpmd.broadcast {self.pick()} : {T}"))
        elif kind < 0.53:
            self.plain.append(self.op(f"mpmd.reduce<none> {self.pick()} : ({T}) -> {T}"))
        elif kind < 0.57:
            self.plain.append(self.op(f"mpmd.reduce<add> {self.pick()}, {self.pick()} : ({T}, {T}) -> {T}"))
        elif kind < 0.63 and self.placed:
            value, name = rng.choice(self.placed)
            target = rng.choice(MESHES)
            moved = self.op(f"mpmd.transfer {value} : ({mesh(name)}) -> {mesh(target)}")
            self.placed.append((moved, target))
        elif kind < 0.7:
            self.assign(self.pick(), rng.choice(MESHES))
        elif kind < 0.78 and self.callees:
            callee = rng.choice(self.callees)
            result = self.call(callee)
            if rng.random() < 0.6:
                self.assign(result, rng.choice(MESHES))
                self.used.add(callee.name)
        else:
            self.fragment()

    def build(self, arity: int, steps: int) -> _Function:
        self.arity = arity
        self.plain += [f"%a{i}" for i in range(arity)]
        for _ in range(steps):
            self.step()
        for callee in self.callees or []:
            if callee.name not in self.used:  # a callee is called, and some result of it is used
                self.assign(self.call(callee), self.rng.choice(MESHES))
        self.results = self.rng.randint(1, 3)
        values = [self.pick() for _ in range(self.results)]
        if self.callees is None:  # all arguments of a callee are used
            for i in range(arity):
                values[0] = self.op(f"stablehlo.add {values[0]}, %a{i} : {T}")
        self.emit(f"return {', '.join(values)} : {', '.join([T] * self.results)}")
        return self

    def __str__(self) -> str:
        args = ", ".join(f"%a{i}: {T}" for i in range(self.arity))
        visibility = "private" if self.callees is None else "public"
        return (
            f"  func.func {visibility} @{self.name}({args}) -> ({', '.join([T] * self.results)}) "
            f"attributes {{topology = {TOPOLOGY}}} {{\n" + "\n".join(self.lines) + "\n  }\n"
        )


def program(seed: int, steps: int = 15) -> str:
    """A module with a main function and up to two callees."""
    rng = random.Random(seed)
    callees = [
        _Function(rng, f"f{i}", None).build(rng.randint(1, 3), rng.randint(1, 6))
        for i in range(rng.choice([0, 1, 1, 2]))
    ]
    main = _Function(rng, "main", callees).build(rng.randint(1, 4), steps)
    return "module {\n" + "".join(str(f) for f in [main, *callees]) + "}\n"
