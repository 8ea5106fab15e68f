"""Inlining from the top gives what inlining callees first does, in time that grows with what comes of it."""

from __future__ import annotations

import random

import pytest

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.text import parse
from mpmd_trace.passes import inline_calls
from mpmd_trace.passes.inline_calls import InlineCalls
from mpmd_trace.passes.manager import run_passes
from util import check

TYPE = "tensor<4xf32>"


def chain(length: int) -> str:
    """Functions of which each calls the next one, with a constant in each."""
    functions = []
    for i in range(length):
        call = f"func.call @f{i + 1}(%1) : ({TYPE}) -> {TYPE}" if i + 1 < length else f"stablehlo.tanh %1 : {TYPE}"
        functions.append(
            f"""func.func {"private" if i else "public"} @{f"f{i}" if i else "main"}(%a: {TYPE}) -> {TYPE} {{
              %c = stablehlo.constant dense<{float(i)}> : {TYPE}
              %1 = stablehlo.add %a, %c : {TYPE}
              %2 = {call}
              return %2 : {TYPE}
            }}"""
        )
    return "\n".join(functions)


def random_program(seed: int) -> str:
    """Functions that call later ones: in loops, in named computations, with equal and unused constants."""
    draw = random.Random(seed)
    count = draw.randint(2, 6)
    number = 0

    def ops(values: list[str], callees: range, depth: int, names: bool) -> tuple[str, str]:
        """Some ops that read the values, and one of the values that there are then."""
        nonlocal number
        lines = []
        for _ in range(draw.randint(0, 5)):
            number += 1
            new, x, y = f"%v{number}", draw.choice(values), draw.choice(values)
            kind = draw.choices(
                ["constant", "call", "loop", "name", "add", "tanh"], [3, 3, 1, 1 if names else 0, 1, 1]
            )[0]
            if kind == "constant":
                lines.append(f"{new} = stablehlo.constant dense<{float(draw.randint(0, 4))}> : {TYPE}")
            elif kind == "call" and callees:
                lines.append(f"{new} = func.call @f{draw.choice(callees)}({x}, {y}) : ({TYPE}, {TYPE}) -> {TYPE}")
            elif kind == "loop" and depth < 2:
                inner, returned = ops([*values, f"%x{new[1:]}"], callees, depth + 1, False)
                lines.append(f"%go{new[1:]} = stablehlo.constant dense<true> : tensor<i1>")
                lines.append(
                    f"{new}:2 = stablehlo.while(%x{new[1:]} = {x}, %y{new[1:]} = %go{new[1:]}) : {TYPE}, tensor<i1> "
                    f"cond {{ stablehlo.return %y{new[1:]} : tensor<i1> }} "
                    f"do {{ {inner} stablehlo.return {returned}, %y{new[1:]} : {TYPE}, tensor<i1> }}"
                )
            elif kind == "name":
                inner, returned = ops([f"%x{new[1:]}"], callees, depth + 1, False)
                lines.append(
                    f'{new} = mpmd.named_computation<"n"> ({x}) (%x{new[1:]}: {TYPE}) '
                    f"{{ {inner} mpmd.return {returned} : {TYPE} }} : ({TYPE}) -> {TYPE}"
                )
            elif kind == "add":
                lines.append(f"{new} = stablehlo.add {x}, {y} : {TYPE}")
            else:
                lines.append(f"{new} = stablehlo.tanh {x} : {TYPE}")
            values = [*values, new + ("#0" if "while" in lines[-1] else "")]
        return "\n".join(lines), draw.choice(values)

    functions = []
    for i in range(count):
        number = 0
        inner, returned = ops(["%a", "%b"], range(i + 1, count), 0, i == 0)
        head = "private" if i and draw.random() < 0.9 else "public"
        topology = "" if i else " attributes {topology = #topo}"
        functions.append(
            f"func.func {head} @{f'f{i}' if i else 'main'}(%a: {TYPE}, %b: {TYPE}) -> {TYPE}{topology} {{\n"
            f"{inner}\nreturn {returned} : {TYPE} }}"
        )
    return '#topo = #mpmd.topology<<"alpha" : <["x"=2]>>>\n' + "\n".join(functions)


@pytest.mark.parametrize("pipeline", ["canonicalize", ""])
def test_as_level_by_level(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [random_program(seed) for seed in range(40)]
    at_once = [parse(text) for text in texts]
    assert all(inline_calls._at_once(module, hoists=True) for module in at_once)
    for module in at_once:
        InlineCalls(default_pipeline=pipeline).run(module, Diagnostics())
    monkeypatch.setattr(inline_calls, "_at_once", lambda *_, **__: False)
    for text, expected in zip(texts, at_once, strict=True):
        module = parse(text)
        InlineCalls(default_pipeline=pipeline).run(module, Diagnostics())
        assert module.to_generic() == expected.to_generic(), text


def test_constants_of_callees_in_front_stay_there() -> None:
    check(
        f"""
        func.func @main(%a: {TYPE}) -> {TYPE} {{
          %0 = func.call @f(%a) : ({TYPE}) -> {TYPE}
          %1 = func.call @g(%0) : ({TYPE}) -> {TYPE}
          return %1 : {TYPE}
        }}
        func.func private @f(%a: {TYPE}) -> {TYPE} {{
          %0 = stablehlo.constant dense<1.0> : {TYPE}
          %1 = stablehlo.constant dense<2.0> : {TYPE}
          %2 = stablehlo.clamp %0, %a, %1 : {TYPE}
          return %2 : {TYPE}
        }}
        func.func private @g(%a: {TYPE}) -> {TYPE} {{
          %0 = stablehlo.constant dense<3.0> : {TYPE}
          %1 = stablehlo.constant dense<4.0> : {TYPE}
          %2 = stablehlo.clamp %0, %a, %1 : {TYPE}
          return %2 : {TYPE}
        }}
        """,
        "inline{default-pipeline=canonicalize max-iterations=4}",
        f"""
        func.func @main(%a: {TYPE}) -> {TYPE} {{
          %0 = stablehlo.constant dense<4.0> : {TYPE}
          %1 = stablehlo.constant dense<3.0> : {TYPE}
          %2 = stablehlo.constant dense<1.0> : {TYPE}
          %3 = stablehlo.constant dense<2.0> : {TYPE}
          %4 = stablehlo.clamp %2, %a, %3 : {TYPE}
          %5 = stablehlo.clamp %1, %4, %0 : {TYPE}
          return %5 : {TYPE}
        }}
        """,
    )


def test_a_chain_of_calls_takes_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    clone = Op.clone

    def counted(op: Op, *args: object, **kwargs: object) -> Op:
        nonlocal made
        made += 1
        return clone(op, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Op, "clone", counted)
    counts = []
    for length in (20, 80):
        module, made = parse(chain(length)), 0
        run_passes(module, [InlineCalls()])
        assert len(module.functions) == 1
        counts.append(made)
    assert counts[1] <= 4.2 * counts[0]
