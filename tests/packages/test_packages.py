"""Models of packages that nobody here wrote, each trained for three steps and compared with `jax.jit`.

They need the extra `packages`; those that are not installed are skipped.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

import mpmd_trace as mt

sys.path.insert(0, str(Path(__file__).parent))

from package_recipes import RECIPES

OPTIMIZER = optax.sgd(1e-2, momentum=0.9)
NAMES = {"first": "m0", "second": "m1"}


def step_of(stages: list[Any]) -> Any:
    def loss(params: list[Any], x: Any) -> jax.Array:
        for p, (_, apply), name in zip(params, stages, NAMES, strict=True):
            x = mt.named_computation(apply, name=name)(p, x)
        return jnp.mean(x**2)

    def step(params: list[Any], state: Any, x: Any) -> Any:
        value, gradients = mt.value_and_grad(loss, microbatches=2)(params, x)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


@pytest.mark.filterwarnings("ignore:(?!.*mpmd_trace)")
@pytest.mark.parametrize("package", RECIPES)
def test_three_steps(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'mpmd_trace[packages]'")
    stages, x = RECIPES[package]()
    meshes = {name: Mesh(np.array(jax.devices()[i : i + 1]), ("x",)) for i, name in enumerate(NAMES.values())}
    step = step_of(stages)
    results = []
    for jit in (jax.jit(step), mt.jit(step, mt.make_config(meshes, NAMES, pipeline_schedule="1F1B"))):
        params = [p for p, _ in stages]
        state = OPTIMIZER.init(params)
        values = []
        for _ in range(3):
            params, state, value = jit(params, state, x)
            values.append(value)
        results.append((params, state, values))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-5)
    assert len(set(map(float, results[1][2]))) == 3, "it is trained"
    for own, mesh in zip(results[1][0], meshes.values(), strict=True):
        assert {d for leaf in jax.tree.leaves(own) for d in leaf.devices()} == set(mesh.devices.flat)
