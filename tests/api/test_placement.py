"""`placement="cut"`: parameters and state stay where they are used, and what connects meshes is small and goes once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import placement_recipes as recipes
import pytest
from jax.flatten_util import ravel_pytree
from placement_recipes import ACTIVATION, MICROBATCHES, WIDTH, WORDS, Recipe

import mpmd_trace
from mpmd_trace import MpmdError
from pipelines import assert_same, config, layer, loss_of, summed_values, topology
from util import nightly, normal

#: Activations from layer f1 to f2 and their gradients back.
PIPELINE = 2 * MICROBATCHES * ACTIVATION
TABLE = 4 * WORDS * WIDTH
#: Room for the scalars of a step: counts, norms, flags.
SCALARS = 64
BOTH_WAYS = 2 * MICROBATCHES * 2 * 4 * WIDTH * 4

#: The recipe, and the most bytes that it may move.
RECIPES: dict[str, tuple[Callable[[], Recipe], int]] = {
    "clipped": (recipes.clipped, PIPELINE + SCALARS),
    "apply_if_finite": (recipes.finite, PIPELINE + SCALARS),
    "MultiSteps": (recipes.every_third, PIPELINE + SCALARS),
    "loss scaling": (recipes.loss_scaling, PIPELINE // 2 + SCALARS),
    "inner loop": (recipes.inner_loop, PIPELINE + SCALARS),
    "nested conditionals": (recipes.nested_conditionals, PIPELINE + SCALARS),
    # 8 words a microbatch; the table goes there, its gradient comes back, labels and inputs are words.
    "tied": (recipes.tied, BOTH_WAYS + 2 * TABLE + 4 * 10 * MICROBATCHES),
    "tied, averaged": (functools.partial(recipes.tied, average=True), BOTH_WAYS + 2 * TABLE + 4 * 10 * MICROBATCHES),
    "tied, in Python": (functools.partial(recipes.tied, python=True), BOTH_WAYS + 2 * TABLE + 4 * 10 * MICROBATCHES),
    "tied, half": (functools.partial(recipes.tied, half=True), BOTH_WAYS // 2 + 2 * TABLE + 4 * 10 * MICROBATCHES),
    "evaluation": (recipes.evaluation, BOTH_WAYS // 2 + 4 * 10 * MICROBATCHES + SCALARS),
    "generation": (recipes.generation, 3 * (ACTIVATION + 4 * 4) + SCALARS),
    "cross attention": (recipes.cross_attention, PIPELINE),
}


def compiled(recipe: Recipe, placement: str, meshes: int = 2) -> Any:
    names = {f"f{i}": f"m{i * meshes // 4}" for i in range(4)}
    step, args = recipe
    made = config(names, meshes, pipeline_schedule="1F1B", placement=placement)
    return mpmd_trace.jit(step, made).lower(*args).compile()


def moved(program: Any) -> int:
    plan = program.program.plan
    return sum(plan.slots[slot].bytes for transfer in plan.transfers for slot in transfer.outputs)


def check_homes(program: Any, meshes: int) -> None:
    """The arrays of each layer among the arguments are on the mesh of that layer."""
    for path, mesh in jax.tree_util.tree_leaves_with_path(program.function_mesh_assignment.inputs[0]):
        for i in range(4):
            if f"'w{i}'" in jax.tree_util.keystr(path):
                assert mesh == f"m{i * meshes // 4}", path


#: Of each kind one; the others in `make nightly`.
EACH_TIME = ("clipped", "nested conditionals", "MultiSteps", "cross attention")


@pytest.mark.parametrize("name", [name if name in EACH_TIME else nightly(name) for name in RECIPES])
def test_parameters_are_at_home(name: str) -> None:
    make, most = RECIPES[name]
    recipe = make()
    program = compiled(recipe, "cut")
    assert moved(program) <= most
    check_homes(program, 2)
    step, args = recipe
    half = name in ("loss scaling", "tied, half")
    loose = {"rtol": 2e-2, "atol": 1e-3} if half else {"rtol": 2e-4, "atol": 2e-5}
    assert_same(program(*args), jax.jit(step)(*args), **loose)


@pytest.mark.parametrize("name", [nightly("loss scaling"), "tied"])
def test_fewer_bytes_than_the_reference(name: str) -> None:
    recipe = RECIPES[name][0]()
    assert moved(compiled(recipe, "cut")) < moved(compiled(recipe, "reference"))


def test_four_meshes() -> None:
    recipe = recipes.finite()
    program = compiled(recipe, "cut", meshes=4)
    check_homes(program, 4)
    assert moved(program) <= 3 * (PIPELINE + SCALARS)
    step, args = recipe
    assert_same(program(*args), jax.jit(step)(*args), rtol=2e-4, atol=2e-5)


def test_the_step_is_skipped_when_a_gradient_is_not_finite() -> None:
    step, (ws, state, (x, y, mask)) = recipes.finite()
    program = compiled((step, (ws, state, (x, y, mask))), "cut")
    args = (ws, state, (x.at[1, 2, 3].set(np.nan), y, mask))
    assert_same(program(*args)[:2], jax.jit(step)(*args)[:2])


def kept_if_better(ws: Any, best: Any, lowest: Any, batch: Any) -> Any:
    """The parameters with the lowest loss so far: a choice between arguments, and nothing to compute."""
    grads, total, _ = recipes.summed(recipes.token_loss, ws, batch)
    best, lowest = jax.lax.cond(total < lowest, lambda: (ws, total), lambda: (best, lowest))
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), best, lowest


def by_phase(ws: Any, moments: Any, phase: Any, batch: Any) -> Any:
    """One of three optimizers."""
    grads, _, _ = recipes.summed(recipes.token_loss, ws, batch)
    heavier = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    updates = [lambda: (grads, moments), lambda: (heavier, heavier), lambda: (moments, moments)]
    chosen, moments = jax.lax.switch(phase, updates)
    return jax.tree.map(lambda w, u: w - 0.1 * u, ws, chosen), moments, phase


def raveled(ws: Any, moments: Any, rate: Any, batch: Any) -> Any:
    """All gradients as one vector, which is clipped and cut again."""
    flat, apart = ravel_pytree(recipes.summed(recipes.token_loss, ws, batch)[0])
    grads = apart(flat * jnp.minimum(1.0, 1.0 / jnp.linalg.norm(flat)))
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda w, m: w - rate * m, ws, moments), moments, rate


STEPS = [(kept_if_better, np.float32(9)), (by_phase, np.int32(1)), (raveled, np.float32(0.1))]


@pytest.mark.parametrize(("step", "small"), STEPS)
def test_what_looks_like_one_value_stays_at_home(step: Any, small: Any) -> None:
    made = config({f"f{i}": f"m{i // 2}" for i in range(4)}, 2, pipeline_schedule="1F1B")
    lowered = mpmd_trace.jit(step, made).lower(recipes.weights(), recipes.weights(), small, recipes.data())
    found = lowered.placement_report()
    assert found.misplaced == () and found.bytes <= 2 * (PIPELINE + SCALARS), "two devices a mesh"


def test_a_table_that_is_made_in_the_loop_is_made_on_both_meshes() -> None:
    """The frozen table goes there once, the thin matrices go there, and their gradients come back."""
    step, args = recipes.lora()
    found = mpmd_trace.jit(step, config({f"f{i}": f"m{i // 2}" for i in range(4)}, 2)).lower(*args).placement_report()
    drawn = BOTH_WAYS + TABLE + 2 * 4 * (WORDS + WIDTH) + 4 * 10 * MICROBATCHES
    assert found.bytes <= 2 * drawn, "two devices a mesh"


def test_the_same_program_twice_is_the_same_text() -> None:
    step, args = recipes.finite()
    made = config({f"f{i}": f"m{i // 2}" for i in range(4)}, 2, placement="cut")
    first, second = (mpmd_trace.jit(step, made).lower(*args).as_text() for _ in range(2))
    assert first == second


def test_a_placement_that_there_is_not() -> None:
    with pytest.raises(MpmdError, match="placement is 'reference' or 'cut', not 'best'"):
        config(placement="best")


def test_the_order_of_a_sort_has_its_constants() -> None:
    """XLA lets it read nothing else, and a zero that sums begin with is made by another program."""

    def step(weights: Any, xs: jax.Array) -> Any:
        total, grads = summed_values(loss_of(layer), weights, xs)
        large = jax.tree.map(lambda g: jnp.abs(g) >= jnp.sort(jnp.abs(g).ravel())[-5], grads)
        return jax.tree.map(lambda w, g, m: w - g * m, weights, grads, large), total

    placed = config(topology=topology(size=1), pipeline_schedule="1F1B")
    args = [normal(0, 4, 4), 0.3 * jnp.eye(4)], jnp.ones((3, 2, 4))
    assert_same(mpmd_trace.jit(step, placed)(*args), jax.jit(step)(*args))
