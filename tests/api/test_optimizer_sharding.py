"""ZeRO-1: the state of an optimizer is sharded over the data axis of its mesh by an option."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace import MpmdError
from pipelines import assert_same, loss_of, summed_gradients
from util import normal

WIDTH, MICROBATCHES = 16, 4
WHOLE, ROWS = P(), P(None, "data")


def topology() -> dict[str, Mesh]:
    devices = np.array(jax.devices()[:8]).reshape(2, 2, 2)
    return {f"m{i}": Mesh(rows, ("data", "model")) for i, rows in enumerate(devices)}


def optimizer() -> Any:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01, weight_decay=0.1))


def step(params: Any, state: Any, batch: jax.Array) -> Any:
    grads = summed_gradients(loss_of(lambda p, x: jnp.tanh(x @ p["w"] + p["b"])), params, batch)
    updates, state = optimizer().update(grads, state, params)
    return optax.apply_updates(params, updates), state


def arguments() -> Any:
    params = [{"w": 0.3 * normal(i, WIDTH, WIDTH), "b": jnp.ones(WIDTH)} for i in range(2)]
    return params, optimizer().init(params), normal(2, MICROBATCHES, 4, WIDTH)


def jitted(spec: P = WHOLE, batch: P = ROWS, **options: Any) -> Any:
    meshes = topology()
    config = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B", **options)
    params = [{"w": NamedSharding(mesh, spec), "b": NamedSharding(mesh, P())} for mesh in meshes.values()]
    places = (params, None, NamedSharding(meshes["m0"], batch)) if spec or batch else None
    return mpmd_trace.jit(step, config, in_shardings=places, donate_argnums=(0, 1))


def run(program: Any, steps: int = 2) -> Any:
    params, state, batch = arguments()
    for _ in range(steps):
        params, state = program(params, state, batch)
    return params, state


def specs(tree: Any) -> list[Any]:
    return [x.sharding.spec for x in jax.tree.leaves(tree) if x.ndim]


def test_state_is_sharded_and_the_numbers_are_those_of_jit() -> None:
    compiled = jitted(optimizer_sharding="data").lower(*arguments()).compile()
    whole = jitted().lower(*arguments()).compile()
    params, state = found = run(compiled)
    assert_same(found, run(jax.jit(step)))
    assert not any(any(spec) for spec in specs(params))
    assert all(tuple(spec)[:1] == ("data",) for spec in specs(state))
    before, after = whole.memory_analysis(), compiled.memory_analysis()
    for held in whole.placement_report().meshes:
        halved = 2 * (WIDTH * WIDTH + WIDTH) * 4 // 2  # of two moments
        assert before[held.mesh].arguments - after[held.mesh].arguments == halved
        assert before[held.mesh].peak - after[held.mesh].peak >= halved // 2
    # Gradients are summed as before, the new parameters gathered once, and the norm is that of all parts.
    for mesh, collectives in compiled.collectives().items():
        assert collectives["all-gather"].arrays == 2
        assert collectives["all-gather"].bytes == (WIDTH * WIDTH + WIDTH) * 4
        assert collectives["all-reduce"].bytes <= whole.collectives()[mesh]["all-reduce"].bytes + 8


def test_it_is_added_to_the_sharding_that_is_there() -> None:
    """Of tensor parallelism, found by propagation; FSDP has the axis already."""
    program = jitted(P(None, "model"), optimizer_sharding="data")
    params, state = found = run(program, 1)
    assert_same(found, run(jax.jit(step), 1))
    assert set(specs(params)) == {P(None, "model"), P("model")}
    assert set(specs(state)) == {P("data", "model"), P(("model", "data"))}
    texts = [
        jitted(P("data"), optimizer_sharding=axes).lower(*arguments()).as_text() for axes in (None, ("data", "model"))
    ]
    assert '{"data"}, {"model"}' not in texts[0] and '{"data"}, {"model"}' in texts[1]


def test_programs_without_shardings_and_states_that_are_on_the_mesh() -> None:
    """Nothing is sharded but the state; what `optimizer.init` made of placed parameters is moved by the first call."""
    program = jitted(batch=WHOLE, optimizer_sharding="data", gradient_reduction="microbatch")
    params, _, batch = arguments()
    params = [jax.device_put(p, NamedSharding(mesh, P())) for p, mesh in zip(params, topology().values(), strict=True)]
    given = [optimizer().init([p]) for p in params]
    state = optimizer().init(arguments()[0])
    adam = state[1][0]
    moments = [[one[1][0].mu[0] for one in given], [one[1][0].nu[0] for one in given]]
    state = (state[0], (adam._replace(mu=moments[0], nu=moments[1]), *state[1][1:]))
    found = params, state
    for _ in range(2):
        found = program(*found, batch)
    assert_same(found, run(jax.jit(step)))
    assert all(tuple(spec)[:1] == ("data",) for spec in specs(found[1]))


def test_mistakes() -> None:
    with pytest.raises(MpmdError, match=r"optimizer_sharding has the axis 'dota', which no mesh .* 'data'"):
        jitted(optimizer_sharding="dota")
    with pytest.raises(MpmdError, match="optimizer_sharding is the name of an axis, several, or None, not 3"):
        jitted(optimizer_sharding=3)
