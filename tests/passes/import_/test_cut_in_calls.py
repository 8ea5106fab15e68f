"""`mpmd-cut-in-calls`: microbatches are cut by the fragments that need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.compiler import parse
from mpmd_trace.ir.ops import CallOp, Module
from mpmd_trace.passes.manager import PassManager
from mpmd_trace_devtools.comparison import assert_same_meaning
from pipelines import layer, loss_of, summed_gradients

MESHES = '#mpmd.topology<<"a" : <["x"=2]>>>'


def program(slices: Sequence[str], shape: str = "6x4", part: str = "2x4", sharding: str = "") -> Module:
    """A call of a function for each slice of `%x`; the ops behind a slice are given with it, `%s` is its result."""
    whole, piece = f"tensor<{shape}xf32>", f"tensor<{part}xf32>"
    lines, made = [], []
    for number, text in enumerate(slices):
        lines += text.replace("%s", f"%s{number}").replace("!x", whole).replace("!p", piece).splitlines()
        types = f"({piece}, {whole}) -> {piece}"
        lines.append(f"%r{number} = mpmd.call @f(%s{number}, %y) {{call_counter = {number} : ui32}} : {types}")
        made.append(f"%r{number}")
    types = ", ".join([piece] * len(made))
    return parse(
        f"func.func public @main(%x: {whole}{sharding}, %y: {whole}) -> ({types})\n"
        f"attributes {{topology = {MESHES}}} {{\n" + "\n".join(lines) + f"\nreturn {', '.join(made)} : {types}\n}}\n"
        f"func.func private @f(%u: {piece}, %v: {whole}) -> {piece} attributes {{topology = {MESHES}}} {{\n"
        f"%0 = stablehlo.negate %u : {piece}\n%1 = stablehlo.add %0, %u : {piece}\nreturn %1 : {piece}\n}}"
    )


def slices(*starts: int, size: int = 2, source: str = "%x") -> list[str]:
    return [f"%s = stablehlo.slice {source} [{i}:{i + size}, 0:4] : (!x) -> !p" for i in starts]


def changes(module: Module) -> bool:
    return PassManager("mpmd-cut-in-calls", verify=True).run(module)[0].changed


def cut(before: Module) -> tuple[Module, bool]:
    """The module after the pass, which means the same, and whether calls still slice outside."""
    after = before.clone()
    changes(after)
    assert_same_meaning(before, after)
    return after, any(op.name == "stablehlo.slice" for op in after.main.body)


def indices(module: Module) -> list[str]:
    """What calls pass behind what they passed before."""
    calls = [op for op in module.main.body if isinstance(op, CallOp)]
    return [call.operand(2).defining_op.attr("value").text for call in calls]  # type: ignore[union-attr]


def test_rows() -> None:
    """Parts of equal size are rows; each op of the callee that uses the argument has a cut of its own."""
    after, left = cut(program(slices(0, 4, 2)))
    assert not left
    assert indices(after) == [f"dense<{i}> : tensor<i32>" for i in (0, 2, 1)]
    callee = after.lookup("f")
    assert callee is not None
    assert [op.name for op in callee.body if "slice" in op.name or "reshape" in op.name] == [
        "stablehlo.reshape",
        "stablehlo.dynamic_slice",
        "stablehlo.reshape",
    ] * 2


def test_places() -> None:
    """Other parts are cut at their place."""
    after, left = cut(program(slices(0, 1, 3)))
    assert not left
    assert indices(after) == [f"dense<{i}> : tensor<i32>" for i in (0, 1, 3)]
    assert "sizes = [2, 4] : (tensor<6x4xf32>" in str(after)


def test_all_parts_of_several_values() -> None:
    """As of what several calls of an encoder return, each for two microbatches of a model."""
    assert cut(program([*slices(0, 2, 4), *slices(0, 2, 4, source="%y")]))[1] is False
    assert not changes(program([*slices(0, 2), *slices(0, 2, source="%y")]))  # more would be sent


def test_what_is_behind_the_slice() -> None:
    """Ops of one operand go along."""
    behind = "\n%t = stablehlo.reshape %c : (tensor<1x4x1x2xf32>) -> tensor<4x2xf32>\n"
    lines = [
        f"%c{i} = stablehlo.slice %x [{i}:{i + 1}, 0:4, 0:1, 1:3] : (!x) -> tensor<1x4x1x2xf32>"
        + behind.replace("%c", f"%c{i}").replace("%t", f"%t{i}")
        + f"%s = stablehlo.transpose %t{i}, dims = [1, 0] : (tensor<4x2xf32>) -> !p"
        for i in range(3)
    ]
    after, left = cut(program(lines, shape="3x4x1x3"))
    assert not left
    assert [op.name for op in after.main.body if "transpose" in op.name] == []


def test_one_index_for_all_that_is_cut_alike() -> None:
    before = program([f"%z{i} = stablehlo.negate %y : !x\n{text}" for i, text in enumerate(slices(0, 2, 4))])
    for call in [op for op in before.main.body if isinstance(op, CallOp)]:
        call.set_operand(1, before.main.args[1])
    after, left = cut(before)
    assert not left and all(len(op.operands) == 3 for op in after.main.body if isinstance(op, CallOp))


SHARDED = ' {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}, {}]>}'


@pytest.mark.parametrize(
    "before",
    [
        program(slices(2)),
        program(slices(2, 2)),
        program([slices(0)[0], slices(2, source="%y")[0]]),
        program([f"%s = stablehlo.slice %x [{i}:{i + 3}:2, 0:4] : (!x) -> !p" for i in (0, 1)]),
        program([f"%s = stablehlo.slice %x [{i}:{i + 2}, {i}:{i + 2}] : (!x) -> !p" for i in (0, 1)], part="2x2"),
        program([slices(0)[0], "%c = stablehlo.slice %x [2:4, 0:4] : (!x) -> !p\n%s = stablehlo.negate %c : !p"]),
        program(slices(0, 2), sharding=SHARDED),
    ],
    ids=["one call", "one place", "two values", "strides", "two dimensions", "other ops", "sharded"],
)
def test_other_arguments_stay(before: Module) -> None:
    assert not changes(before)


def test_a_sharding_of_another_dimension() -> None:
    sharding = SHARDED.replace('[{"x"}, {}]', '[{}, {"x"}]')
    assert changes(program(slices(0, 2), sharding=sharding))


@pytest.mark.parametrize(
    ("rows", "shape", "constraint"),
    [
        ("x", "3x2x4", '[{}, {"x"}, {}]'),
        ("", "3x2x4", ""),
        ("x", "2x3x4", ""),  # three rows are not divided by two devices
        ("x", "6x2x2", ""),
    ],
)
def test_rows_that_are_sharded_are_sharded_in_each_microbatch(rows: str, shape: str, constraint: str) -> None:
    """Of a batch that is reshaped to be cut."""
    count, *part = shape.split("x")
    mesh, kept = 'mesh<["x"=2]>', f"1x{'x'.join(part)}"
    ends = ", ".join(f"0:{size}" for size in part)
    cuts = [
        f"%b{i} = stablehlo.reshape %x : (!x) -> tensor<{shape}xf32>\n"
        f"%s = stablehlo.slice %b{0} [{i}:{i + 1}, {ends}] : (tensor<{shape}xf32>) -> !p"
        for i in range(int(count))
    ]
    sharding = f' {{sdy.sharding = #sdy.sharding<{mesh}, [{{"{rows}"}}, {{}}]>}}' if rows else ""
    after, _ = cut(program(cuts, part=kept, sharding=sharding))
    found = [op.props["sharding"].text for op in after.main.body if op.name == "sdy.sharding_constraint"]
    assert found == ([f"#sdy.sharding<{mesh}, {constraint}>"] if constraint else [])


MICROBATCHES, ROWS, PIXELS, WIDTH = 8, 64, 3072, 256


def lowered_classifier(devices: int, spec: PartitionSpec, **options: Any) -> mt.stages.Lowered:
    """Two layers on each of two meshes, for 512 images; a batch with two dimensions is reshaped into microbatches."""
    numbered = np.array(jax.devices()[: 2 * devices]).reshape(2, devices)
    meshes = {name: Mesh(numbered[i], ("data",)) for i, name in enumerate("ab")}

    def step(weights: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
        grads = summed_gradients(loss_of(layer, "layer"), weights, batch.reshape(MICROBATCHES, ROWS, PIXELS))
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    config = mt.make_config(meshes, {f"layer{i}": "aabb"[i] for i in range(4)}, pipeline_schedule="1F1B", **options)
    weights = [jax.ShapeDtypeStruct(shape, "float32") for shape in [(PIXELS, WIDTH), *[(WIDTH, WIDTH)] * 3]]
    batch = (MICROBATCHES * ROWS, PIXELS) if spec == PartitionSpec("data") else (MICROBATCHES, ROWS, PIXELS)
    jitted = mt.jit(step, config, in_shardings=(None, NamedSharding(meshes["a"], spec)))
    return jitted.lower(weights, jax.ShapeDtypeStruct(batch, "float32"))


def test_devices_share_the_rows_of_each_microbatch_of_a_batch_that_is_reshaped() -> None:
    one, two = (lowered_classifier(n, PartitionSpec("data")).cost_analysis() for n in (1, 2))
    for cost in ("flops", "bytes transferred"):  # of all devices
        assert two[cost] == pytest.approx(one[cost], rel=0.1), cost


def test_no_copy_of_the_batch_is_held() -> None:
    ours, reference = (
        lowered_classifier(2, PartitionSpec(None, "data"), **options).compile().memory_analysis()["a"].peak
        for options in ({}, {"placement": "reference"})
    )
    batch = 4 * MICROBATCHES * ROWS * PIXELS // 2
    assert ours < reference - 0.7 * batch
