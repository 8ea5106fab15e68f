"""Each stage has one forward and one backward program, whichever microbatch it is about."""

from __future__ import annotations

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mpmd_trace
from mpmd_trace.backend.plan import Plan
from pipelines import accumulate, assert_same, batch, config, loss, summed_values, weights

MICROBATCHES = 5
NAMES = {"f0": "m0", "f1": "m1", "f2": "m2"}
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))


#: Loss and gradients, summed by a loop that carries them; `accumulate` sums them by a loop in Python.
carried = functools.partial(summed_values, loss)


def step(summed: Any) -> Any:
    def step(ws: Any, state: Any, xs: Any) -> Any:
        value, grads = summed(ws, xs)
        updates, state = OPTIMIZER.update(grads, state, ws)
        return optax.apply_updates(ws, updates), state, value

    return step


def arguments() -> tuple[Any, ...]:
    ws = weights(3)
    return ws, OPTIMIZER.init(ws), batch(MICROBATCHES)


def compiled(summed: Any, **options: Any) -> mpmd_trace.stages.Compiled:
    settings = config(NAMES, meshes=3, pipeline_schedule="1F1B", placement="cut", partitioning_options=options)
    return mpmd_trace.jit(step(summed), settings, donate_argnums=(0, 1)).lower(*arguments()).compile()


def of_stages(plan: Plan) -> dict[str, set[tuple[str, int]]]:
    """The programs of named code on each mesh, each with the number of its runs."""
    runs = collections.Counter(run.program for run in plan.runs if run.origins)
    return {
        mesh: {(p.callee, runs[p.number]) for p in plan.programs if p.mesh == mesh and p.number in runs}
        for mesh in plan.meshes
    }


@pytest.mark.parametrize("summed", [carried, accumulate])
def test_a_stage_has_one_forward_and_one_backward_program(summed: Any) -> None:
    found = compiled(summed)
    for mesh, programs in of_stages(found.program.plan).items():
        # No other stage has the last one, whose forward and backward are one.
        assert [runs for _, runs in programs] == [MICROBATCHES] * (1 if mesh == "m2" else 2), (mesh, programs)
    assert_same(found(*arguments()), jax.jit(step(summed))(*arguments()))


def test_every_sum_is_where_the_last_one_was() -> None:
    """Also the first one: each sum starts from zeros of its own, which are given away."""
    plan = compiled(carried).program.plan
    made = {slot: run for run in plan.runs for slot in run.outputs}
    backwards = [run for run in plan.runs if any(count for _, count in run.origins) and run.mesh == "m1"]
    given = [run.inputs[i] for run in backwards for i in run.donated]
    zeros = {slot for slot in given if slot in made and not made[slot].origins}
    assert len(zeros) == 1 and [len(run.donated) for run in backwards] == [len(backwards[0].donated)] * MICROBATCHES


def test_the_option_to_merge_what_is_around_microbatches() -> None:
    """Fewer launches, more programs."""
    merged, apart = (
        compiled(carried, mpmd_equal_microbatches=on, mpmd_merge_forward_with_backward=False).program.plan
        for on in (False, True)
    )
    assert len(merged.runs) < len(apart.runs)
    assert len(of_stages(merged)["m1"]) > len(of_stages(apart)["m1"])


def test_a_loop_accumulate_does_not_keep_the_gradients_of_all_microbatches() -> None:
    one, other = (compiled(summed).memory_analysis() for summed in (carried, accumulate))
    for mesh in ("m0", "m1", "m2"):
        assert abs(one[mesh].peak - other[mesh].peak) <= 64, mesh


def test_negative_zero() -> None:
    """A sum that starts from zeros has no -0.0, as under `jax.jit` when the loop carries it."""

    def summed(w: Any, xs: Any) -> Any:
        product = mpmd_trace.named_computation(jnp.multiply, name="f0")
        found = [mpmd_trace.call(product, call_counter=i)(w, xs[i]) for i in range(2)]
        return found[0] + found[1]

    w, xs = np.float32([-0.0, 1.0]), np.float32([[1, 1], [1, 1]])
    found = mpmd_trace.jit(summed, config({"f0": "m0"}))(w, xs)
    np.testing.assert_array_equal(found, [0.0, 2.0])
    assert np.signbit(jax.jit(summed)(w, xs)[0]) and not np.signbit(found[0])
