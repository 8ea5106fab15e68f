"""`mpmd-accumulate-in-calls`: sums over microbatches become sums that calls carry."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import mpmd_trace as mt
from mpmd_trace.compiler import parse
from mpmd_trace.ir.ops import CallOp, Module
from mpmd_trace.passes.manager import PassManager
from mpmd_trace_devtools.comparison import assert_same_meaning
from pipelines import layer, loss_of

MESHES = '#mpmd.topology<<"a" : <["x"=2]>>>'
T = "tensor<2x4xf32>"


def program(main: str, returned: str, calls: int = 3) -> Module:
    """`calls` calls of a function, `%a<i>` and `%b<i>` being their results, then `main`."""
    lines = [
        f"%r{i}:2 = mpmd.call @f(%x, %y) {{call_counter = {i} : ui32}} : ({T}, {T}) -> ({T}, {T})" for i in range(calls)
    ]
    text = main
    for i in range(calls):
        text = text.replace(f"%a{i}", f"%r{i}#0").replace(f"%b{i}", f"%r{i}#1")
        returned = returned.replace(f"%a{i}", f"%r{i}#0").replace(f"%b{i}", f"%r{i}#1")
    types = ", ".join([T] * len(returned.split(",")))
    return parse(
        f"func.func public @main(%x: {T}, %y: {T}) -> ({types}) attributes {{topology = {MESHES}}} {{\n"
        + "\n".join([*lines, text.replace("!t", T)])
        + f"\nreturn {returned} : {types}\n}}\n"
        f"func.func private @f(%u: {T}, %v: {T}) -> ({T}, {T}) attributes {{topology = {MESHES}}} {{\n"
        f"%0 = stablehlo.negate %u : {T}\n%1 = stablehlo.sine %v : {T}\nreturn %0, %1 : {T}, {T}\n}}"
    )


def after(module: Module) -> tuple[list[str], list[int]]:
    """The names of the ops of `@main` behind the calls, and the number of operands of each call."""
    work = module.clone()
    PassManager("mpmd-accumulate-in-calls", verify=True).run(work)
    assert_same_meaning(module, work)
    ops = [op for op in work.main.body if op is not work.main.body.terminator]
    calls = [op for op in ops if isinstance(op, CallOp)]
    return [op.name for op in ops if op not in calls], [call.num_operands for call in calls]


def test_sums_of_all_results() -> None:
    text = (
        "%0 = stablehlo.add %a0, %a1 : !t\n%1 = stablehlo.add %b1, %b0 : !t\n"
        "%2 = stablehlo.add %0, %a2 : !t\n%3 = stablehlo.add %b2, %1 : !t"
    )
    assert after(program(text, "%2, %3")) == (["stablehlo.constant"] * 2, [4, 4, 4])


def test_the_order_of_the_microbatches() -> None:
    text = "%0 = stablehlo.add %a0, %a1 : !t"
    assert after(program(text, "%0", 2))[1] == [3, 3]
    back = parse(str(program(text, "%0", 2)).replace("= 0 : ui32", "= 7 : ui32"))
    assert after(back)[1] == [2, 2]


def test_what_a_sum_starts_with() -> None:
    text = "%0 = stablehlo.add %x, %a0 : !t\n%1 = stablehlo.add %0, %a1 : !t\n%2 = stablehlo.add %1, %a2 : !t"
    assert after(program(text, "%2")) == ([], [3, 3, 3])
    text = f"%c = stablehlo.constant dense<2.0> : {T}\n" + text.replace("%x", "%c")
    assert after(program(text, "%2")) == (["stablehlo.constant"], [3, 3, 3])


@pytest.mark.parametrize(
    ("text", "returned"),
    [
        ("%0 = stablehlo.add %a0, %a2 : !t\n%1 = stablehlo.add %0, %a1 : !t", "%1"),  # in another order
        ("%0 = stablehlo.add %a0, %a1 : !t\n%1 = stablehlo.add %0, %a2 : !t", "%0, %1"),  # a sum on the way is used
        ("%0 = stablehlo.add %a0, %a1 : !t\n%1 = stablehlo.add %0, %a2 : !t", "%1, %a1"),  # or one of the values
        ("%0 = stablehlo.add %a0, %a1 : !t", "%0, %a2"),  # not all of them
        ("%0 = stablehlo.add %a0, %a0 : !t\n%1 = stablehlo.add %0, %a1 : !t\n%2 = stablehlo.add %1, %a2 : !t", "%2"),
        ("%0 = stablehlo.add %a1, %a2 : !t\n%1 = stablehlo.add %a0, %0 : !t", "%1"),  # in other brackets
        ("%0 = stablehlo.multiply %a0, %a1 : !t\n%1 = stablehlo.multiply %0, %a2 : !t", "%1"),
    ],
)
def test_what_stays(text: str, returned: str) -> None:
    module = program(text, returned)
    names, operands = after(module)
    assert operands == [2, 2, 2] and names == [line.split()[2] for line in text.splitlines()]


def test_what_a_sum_starts_with_must_be_there_before_the_calls() -> None:
    text = (
        "%s = stablehlo.sine %b2 : !t\n%0 = stablehlo.add %s, %a0 : !t\n"
        "%1 = stablehlo.add %0, %a1 : !t\n%2 = stablehlo.add %1, %a2 : !t"
    )
    assert after(program(text, "%2"))[1] == [2, 2, 2]


def test_gradients_of_earlier_microbatches_are_not_held() -> None:
    """Of a loop in Python: without the pass, the devices hold those of eight microbatches, 10 times their weights."""
    microbatches, rows, width = 8, 32, 256

    def step(weights: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
        each = [mt.call(jax.grad(loss_of(layer, "layer")), i)(weights, x) for i, x in enumerate(batch)]
        sums = functools.reduce(functools.partial(jax.tree.map, jnp.add), each)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, sums)

    meshes = {name: AbstractMesh((2,), ("data",)) for name in ("a", "b")}
    config = mt.make_config(meshes, {f"layer{i}": "aabb"[i] for i in range(4)}, pipeline_schedule="1F1B")
    weights, batch = [jax.ShapeDtypeStruct((width, width), "float32")] * 4, (microbatches, rows, width)
    lowered = mt.jit(step, config, donate_argnums=0).lower(weights, jax.ShapeDtypeStruct(batch, "float32"))
    assert max(memory.peak for memory in lowered.memory_analysis().values()) < 4 * (2 * 4 * width**2)
