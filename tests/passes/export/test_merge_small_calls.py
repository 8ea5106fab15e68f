"""`mpmd-merge-small-calls`: a step of programs that take less time than starting them is few programs."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import mpmd_trace
from fuzz import oracles
from fuzz.programs import Program, random_setup, random_step
from fuzz.source import source, tolerance
from mpmd_trace import MpmdError, enumerated_for, named_computation
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentCallOp, Module, TransferOp
from mpmd_trace.passes.export.merge_small_calls import MergeSmallCalls
from mpmd_trace.report.timeline import FragmentActions
from oracle import assert_same_meaning

WIDTH, ROWS = 4, 2
Weights = list[jax.Array]


def loss(ws: Weights, x: jax.Array) -> jax.Array:
    for i, w in enumerate(ws[:-1]):
        x = named_computation(lambda w, x: jnp.tanh(x @ w), name=f"f{i}")(w, x)
    last = named_computation(lambda w, x: jnp.mean((x @ w) ** 2), name=f"f{len(ws) - 1}")
    return last(ws[-1], x)


def step(ws: Weights, xs: jax.Array) -> tuple[Weights, jax.Array]:
    def add(i: Any, total: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(ws, x))

    value, gradients = enumerated_for(add, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, ws)), xs)
    return [w - 0.1 * g for w, g in zip(ws, gradients, strict=True)], value


def arguments(stages: int, microbatches: int) -> tuple[Weights, jax.Array]:
    first, *keys = jax.random.split(jax.random.key(0), stages + 1)
    return [jax.random.normal(k, (WIDTH, WIDTH)) for k in keys], jax.random.normal(first, (microbatches, ROWS, WIDTH))


def config(
    stages: int, schedule: str = "1F1B", per_mesh: int = 1, chunks: int = 1, **options: Any
) -> mpmd_trace.Config:
    meshes = stages // chunks
    devices = np.array(jax.devices()[: meshes * per_mesh]).reshape(meshes, per_mesh)
    return mpmd_trace.make_config(
        {f"m{i}": Mesh(devices[i], ("x",)) for i in range(meshes)},
        {f"f{i}": (f"m{i % meshes}", i) for i in range(stages)},
        pipeline_schedule=schedule,
        **options,
    )


def exported(stages: int = 3, microbatches: int = 4, **options: Any) -> Module:
    jitted = mpmd_trace.jit(step, config(stages, **options), donate_argnums=(0,))
    return jitted.lower(*arguments(stages, microbatches)).compiler_ir()


def merged(module: Module, **options: int) -> Module:
    """The module after the pass, which means the same."""
    found = module.clone()
    if MergeSmallCalls(**options).run(found, Diagnostics()):
        mpmd_trace.parse(str(found))
        assert_same_meaning(module, found, rtol=1e-5)  # a loop is compiled as a whole
    else:
        assert str(found) == str(module)
    return found


def calls(module: Module) -> Counter[str]:
    return Counter(op.mesh for op in module.main.body if isinstance(op, FragmentCallOp))


def sent(module: Module) -> list[str]:
    return [op.source_type.tensor.text for op in module.main.body if isinstance(op, TransferOp)]


@pytest.mark.parametrize("schedule", ["1F1B", "GPipe", "ZeroBubbleH1"])
def test_a_forward_and_a_backward_are_one_program_each(schedule: str) -> None:
    module = exported(3, 4, schedule=schedule)
    found = merged(module)
    # The last mesh needs nothing between its forward and its backward.
    assert calls(found) == {"m0": 2, "m1": 2, "m2": 1}
    # What microbatches send is one array, and goes once.
    assert sent(found) == [f"tensor<4x{ROWS}x{WIDTH}xf32>"] * 4
    assert len(sent(module)) == 16


def test_several_stages_of_a_mesh() -> None:
    found = merged(exported(4, 4, schedule="Interleaved1F1B", chunks=2))
    # Forwards of m0, m1, m0, then all of m1 that is left, and backwards of m0, m1, m0.
    assert calls(found) == {"m0": 4, "m1": 3}
    assert sent(found) == [f"tensor<4x{ROWS}x{WIDTH}xf32>"] * 6


def test_programs_grow_only_so_far() -> None:
    module = exported(2, 8)
    small, large = (merged(module, most_ops=most) for most in (12, 1000))
    assert calls(large).total() == 3 < calls(small).total()


def test_what_is_donated_stays_donated() -> None:
    """Weights by the programs that update them, and what a forward leaves by the backward that reads it last."""
    plan = make_plan(merged(exported(2, 3)))
    forward, both, backward = plan.runs
    given = [[run.inputs[i] for i in run.donated] for run in (forward, both, backward)]
    ws, xs = plan.arguments[:2], plan.arguments[2]
    assert not given[0]
    assert set(given[1]) == {ws[1], plan.transfers[0].outputs[0]}
    assert set(given[2]) == {*backward.inputs} - {xs}


@pytest.mark.parametrize(
    ("options", "launch"),
    [
        ({}, 10),  # the work is more than the launches
        ({"per_mesh": 2}, 30000),  # several devices
        ({"input_mesh_assignment": (["m0#pinned_host", None, None], None)}, 30000),  # host memory
    ],
)
def test_nothing_changes(options: dict[str, Any], launch: int) -> None:
    module = exported(3, 4, **options)
    assert calls(merged(module, launch=launch)) == calls(module)


@pytest.mark.parametrize("what", ["loop", "branch", "callback"])
def test_functions_whose_work_is_not_known_stay(what: str) -> None:
    def odd(w: jax.Array, x: jax.Array) -> jax.Array:
        if what == "loop":
            return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * c + 1, x @ w)
        if what == "branch":
            return jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x @ w)
        jax.debug.callback(lambda _: None, x)
        return x @ w

    def f(ws: Weights, x: jax.Array) -> jax.Array:
        for i, w in enumerate(ws):
            x = named_computation(odd, name=f"f{i}")(w, named_computation(jnp.sin, name=f"f{i}")(x))
        return x

    ws, xs = arguments(2, 1)
    module = mpmd_trace.jit(f, config(2, "none")).lower(ws, xs[0]).compiler_ir()
    work = module.clone()
    assert not MergeSmallCalls(launch=10**9).run(work, Diagnostics())
    assert str(work) == str(module)


def test_random_steps_mean_the_same() -> None:
    """Bit for bit, in the interpreter; the steps have one device a mesh, with all schedules and kinds of loops."""
    changed = 0
    for seed in range(30):
        rng = random.Random(seed)
        made = random_step(rng, ((3, 2),), most=3)
        setup = random_setup(rng, made)
        setup = dataclasses.replace(setup, meshes=(1,) * len(setup.meshes))
        subject = oracles.load(source(Program(made, setup)), tolerance(made))
        try:
            module = oracles.attempt(lambda subject=subject: subject.lowered.partitioned.module)
        except oracles.Refused:
            continue
        changed += calls(merged(module)) != calls(module)
    assert changed > 10


# As it is run.


@pytest.mark.merged
def test_a_step_of_small_programs_is_few_of_them_by_default(tmp_path: Path) -> None:
    ws, xs = arguments(3, 4)
    jitted = mpmd_trace.jit(step, config(3), donate_argnums=(0,))
    wanted = jax.jit(step)(ws, xs)
    compiled = jitted.lower(ws, xs).compile()
    assert Counter(run.mesh for run in compiled.program.plan.runs) == {"m0": 2, "m1": 2, "m2": 1}
    # The schedule is what it was.
    assert calls(jitted.lower(ws, xs).compiler_ir()).total() > 20
    compiled.save(tmp_path / "step.mpmd")
    for call in (compiled, mpmd_trace.load(tmp_path / "step.mpmd")):
        (given, batch), _ = compiled.place(*arguments(3, 4))
        found = call(given, batch)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, wanted)
        assert all(w.is_deleted() for w in given)


@pytest.mark.merged
def test_what_is_looked_at_stays_apart() -> None:
    ws, xs = arguments(3, 4)

    def runs(**options: Any) -> int:
        return len(mpmd_trace.jit(step, config(3, **options)).lower(ws, xs).compile().program.plan.runs)

    assert runs() == 5 < runs(merge_small_programs=False)
    with jax.debug_nans(True):
        assert runs() > 5
    hooked = mpmd_trace.jit(step, config(3)).lower(ws, xs, hooks=[FragmentActions()])
    assert len(hooked.compile().program.plan.runs) > 5


def test_the_option_is_a_switch() -> None:
    with pytest.raises(MpmdError, match="merge_small_programs is True or False, not 'auto'"):
        config(2, merge_small_programs="auto")
