"""The last passes work once for what many microbatches share, and make nothing anew that only moves."""

from __future__ import annotations

import random

import pytest

from mpmd_trace.ir.attributes import StringAttr, SymbolRefAttr
from mpmd_trace.ir.core import Op, make_op
from mpmd_trace.ir.fast_ops import become
from mpmd_trace.ir.ops import FragmentCallOp, FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes

COUNT = 6


def microbatches() -> Module:
    """A chain of equal fragments, each with an operand of its own that nobody else reads."""
    args = ", ".join(f"%p{i}: !s" for i in range(COUNT + 1))
    lines = [
        f'%f{i} = mpmd.fragment<mesh="m", origin=["f"]> ({"%p0" if i == 0 else f"%f{i - 1}"}, %p{i + 1}) '
        f"{{call_counter = {i} : ui32}} (%x: tensor<4xf32>, %y: tensor<4xf32>) {{\n"
        "%0 = stablehlo.add %x, %y : tensor<4xf32> mpmd.return %0 : tensor<4xf32> } : (!s, !s) -> !s"
        for i in range(COUNT)
    ]
    body = "\n".join(lines)
    return parse(
        f'!s = !mpmd.mesh_tensor<"m", tensor<4xf32>>\nfunc.func public @main({args}) -> !s '
        f'attributes {{topology = #mpmd.topology<<"m" : <["x"=2]>>>}} {{\n{body}\nreturn %f{COUNT - 1} : !s\n}}'
    )


def test_a_call_has_the_operands_and_results_of_its_fragment() -> None:
    module = microbatches()
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    uses = [op.operand_uses for op in fragments]
    results = [op.results for op in fragments]
    run_passes(module, "mpmd-lower-to-fragment-calls")
    calls = [op for op in module.main.body if isinstance(op, FragmentCallOp)]
    assert [op.operand_uses for op in calls] == uses
    assert [op.results for op in calls] == results
    assert all(result.op is op for op in calls for result in op.results)
    assert all(use.owner is op for op in calls for use in op.operand_uses)


def _random_fragments(seed: int) -> list[Op]:
    """The ops of a function in which values are used at random, in a random order of uses."""
    rng = random.Random(seed)
    ops = [op for op in microbatches().main.body if op.name != "func.return"]
    values = [*ops[0].block.args] if ops[0].block is not None else []
    for op in ops:
        op.set_operands([rng.choice(values) for _ in range(2)])
        values += op.results
    for _ in range(20):
        rng.choice(rng.choice(ops).operand_uses).set(values[0])
    return ops


def _use_lists(ops: list[Op]) -> list[list[tuple[int, int]]]:
    block = ops[0].block
    assert block is not None
    numbers = {op: number for number, op in enumerate(block)}
    values = [*block.args, *(result for op in block for result in op.results)]
    return [[(numbers[use.owner], use.index) for use in value.uses] for value in values]


@pytest.mark.parametrize("seed", range(10))
def test_use_lists_are_those_after_a_replacement(seed: int) -> None:
    moved, replaced = _random_fragments(seed), _random_fragments(seed)
    props = {"callee": SymbolRefAttr.get("f"), "mesh_name": StringAttr.get("m")}
    for op in moved:
        become(op, FragmentCallOp, dict(props), {})
    others: list[Op] = []
    for op in replaced:
        call = make_op("mpmd.fragment_call", op.operands, [r.type for r in op.results], props=props)
        assert op.block is not None
        others.append(op.block.insert_before(op, call))
        op.replace_all_uses_with(call.results)
        op.erase()
    assert _use_lists(moved) == _use_lists(others)
